//! Commands about GPU memory, from the scheduler, carried out by the shims of one instance. Pure: events in, actions out.
//!
//! One command runs at a time, the others wait in a short queue. It is answered when every shim that it was sent to has
//! answered or is gone, or at its deadline; a shim that has not answered by then is counted, and its late answer is
//! recognised by its number and dropped. With several shims, an eviction of a part first queries each for its usage,
//! and then takes from the largest first; for a shim that does not answer in time its last report is used.
//!
//! A connection is a shim's once it has said hello. Before, it is sent nothing and owes nothing: a program that
//! connects and keeps silent does not hold up a command. Memory of such a process on the card stands in the account all
//! the same.
//!
//! A shim answers each command once and sends nothing else. One that does otherwise, or leaves [`OWED`] commands
//! unanswered, is disconnected.

use omni_gpu_protocol::control::{Command, CommandPacket, Report, ReportKind};
use omni_node_protocol::instance::ResidencyCommand;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// How long a command may take: at the slowest copy that is still of use, 80 GB leave a card in this time.
const PATIENCE: Duration = Duration::from_secs(30);
/// Longest wait of an eviction for the usage reports.
const ASKING: Duration = Duration::from_secs(1);
/// Longest queue of commands behind the running one.
const WAITING: usize = 8;
/// Unanswered commands at which a shim is given up.
const OWED: usize = 4;

/// A connection of a shim.
pub(super) type Shim = u64;

/// Something happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Event {
    /// The scheduler has sent a command.
    Commanded { number: u64, command: ResidencyCommand },
    /// A scheduler has come, whose numbers mean other commands.
    NewScheduler,
    /// New connection: a shim, once it says hello.
    Connected { shim: Shim },
    /// A shim has sent a packet; `None` for one that is no report.
    Reported { shim: Shim, report: Option<Report> },
    /// A shim's process is gone, or it has closed its connection.
    Left { shim: Shim },
    /// A shim takes no more commands: it does not read them.
    NotReading { shim: Shim },
    /// A deadline may have passed.
    Tick,
}

/// Something to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Action {
    /// Send a command to a shim.
    Send { shim: Shim, packet: CommandPacket },
    /// Tell the scheduler what came of a command.
    Answer(Answer),
    /// Close a shim's connection and say why in the log.
    Close { shim: Shim, why: &'static str },
}

/// Result of a command, as far as the shims report it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Answer {
    /// The scheduler's.
    pub number: u64,
    pub moved_bytes: u64,
    pub micros: u64,
    pub error: u32,
    pub unanswered: u32,
}

/// The shims of an instance and their commands.
#[derive(Debug, Default)]
pub(super) struct CommandQueue {
    shims: BTreeMap<Shim, State>,
    running: Option<Running>,
    waiting: VecDeque<(u64, ResidencyCommand)>,
    /// The last number that went to a shim. Theirs, not the scheduler's: they never repeat.
    last: u64,
}

#[derive(Debug, Default)]
struct State {
    has_said_hello: bool,
    /// Numbers of the commands it has not answered.
    owes: VecDeque<u64>,
    resident: u64,
}

#[derive(Debug)]
struct Running {
    /// `None` when the scheduler that asked is gone.
    asked: Option<u64>,
    /// Bytes still to be shared out, once all usage reports are there.
    to_evict: Option<u64>,
    /// The number of the commands that are out.
    number: u64,
    began: Duration,
    /// Deadline, at which the command goes on without shims that have not answered.
    until: Duration,
    answer: Answer,
}

impl CommandQueue {
    /// When to come back with a `Tick`.
    pub(super) fn deadline(&self) -> Option<Duration> {
        self.running.as_ref().map(|running| running.until)
    }

    /// Takes an event at a time since the start.
    pub(super) fn on(&mut self, event: Event, now: Duration) -> Vec<Action> {
        let mut actions = match event {
            Event::Commanded { number, command } => self.asked(number, command),
            Event::NewScheduler => {
                self.waiting.clear();
                if let Some(running) = &mut self.running {
                    running.asked = None;
                }
                vec![]
            }
            Event::Connected { shim } => {
                self.shims.insert(shim, State::default());
                vec![]
            }
            Event::Reported { shim, report } => self.on_report(shim, report),
            Event::Left { shim } => {
                self.shims.remove(&shim);
                vec![]
            }
            Event::NotReading { shim } => self.disconnect(shim, "it does not read its commands"),
            Event::Tick => vec![],
        };
        self.go_on(now, &mut actions);
        actions
    }

    fn asked(&mut self, number: u64, command: ResidencyCommand) -> Vec<Action> {
        if self.waiting.len() < WAITING {
            self.waiting.push_back((number, command));
            return vec![];
        }
        // No shim was sent the command, so none has answered; with no shim left there would still be a command that was
        // not carried out.
        let unanswered = u32::try_from(self.greeted().count()).unwrap_or(u32::MAX).max(1);
        vec![Action::Answer(Answer { number, unanswered, ..Answer::default() })]
    }

    fn on_report(&mut self, shim: Shim, report: Option<Report>) -> Vec<Action> {
        let Some(state) = self.shims.get_mut(&shim) else { return vec![] };
        let Some(report) = report else { return self.disconnect(shim, "it sent what is no report") };
        state.resident = report.resident.min(report.managed);
        match (report.kind, state.has_said_hello) {
            (ReportKind::Hello, false) => state.has_said_hello = true,
            (ReportKind::Hello, true) => return self.disconnect(shim, "it said hello twice"),
            (ReportKind::Done, false) => return self.disconnect(shim, "it did not say hello first"),
            (ReportKind::Done, true) => {
                let Some(place) = state.owes.iter().position(|number| *number == report.number) else {
                    return self.disconnect(shim, "it answered a command that it was not given");
                };
                state.owes.remove(place);
                if let Some(running) = self.running.as_mut().filter(|running| running.number == report.number) {
                    running.take(&report);
                }
            }
        }
        vec![]
    }

    /// Disconnects a shim that lives and violates the protocol: where its memory is, is unknown.
    fn disconnect(&mut self, shim: Shim, why: &'static str) -> Vec<Action> {
        let Some(state) = self.shims.remove(&shim) else { return vec![] };
        if let Some(running) = self.running.as_mut().filter(|running| state.owes.contains(&running.number)) {
            running.answer.unanswered = running.answer.unanswered.saturating_add(1);
        }
        vec![Action::Close { shim, why }]
    }

    /// Ends what is done or late, and begins what waits.
    fn go_on(&mut self, now: Duration, actions: &mut Vec<Action>) {
        loop {
            let Some(running) = &mut self.running else {
                let Some((number, command)) = self.waiting.pop_front() else { return };
                self.begin(number, command, now, actions);
                continue;
            };
            let unanswered = self.shims.values().filter(|state| state.owes.contains(&running.number)).count();
            if unanswered > 0 && now < running.until {
                return;
            }
            if let Some(bytes) = running.to_evict.take() {
                running.until = running.began.saturating_add(PATIENCE);
                self.share_out(bytes, actions);
                continue;
            }
            running.answer.unanswered =
                running.answer.unanswered.saturating_add(u32::try_from(unanswered).unwrap_or(u32::MAX));
            running.answer.micros = u64::try_from(now.saturating_sub(running.began).as_micros()).unwrap_or(u64::MAX);
            actions.extend(running.asked.map(|number| Action::Answer(Answer { number, ..running.answer })));
            self.running = None;
        }
    }

    fn begin(&mut self, number: u64, residency: ResidencyCommand, now: Duration, actions: &mut Vec<Action>) {
        let (command, to_evict) = match residency {
            ResidencyCommand::Evict { bytes } if bytes < u64::MAX && self.greeted().nth(1).is_some() => {
                (Command::Report, Some(bytes))
            }
            ResidencyCommand::Evict { bytes } => (Command::Evict { bytes }, None),
            ResidencyCommand::Restore => (Command::Restore, None),
            ResidencyCommand::Report => (Command::Report, None),
        };
        let patience = if to_evict.is_some() { ASKING } else { PATIENCE };
        self.last += 1;
        self.running = Some(Running {
            asked: Some(number),
            to_evict,
            number: self.last,
            began: now,
            until: now.saturating_add(patience),
            answer: Answer::default(),
        });
        let shims: Vec<Shim> = self.greeted().map(|(shim, _)| shim).collect();
        for shim in shims {
            self.send(shim, command, actions);
        }
    }

    /// The most from the shim that has the most, until it is enough.
    fn share_out(&mut self, bytes: u64, actions: &mut Vec<Action>) {
        self.last += 1;
        if let Some(running) = &mut self.running {
            running.number = self.last;
        }
        let mut shares: Vec<(u64, Shim)> = self.greeted().map(|(shim, state)| (state.resident, shim)).collect();
        shares.sort_unstable_by_key(|(resident, shim)| (u64::MAX - resident, *shim));
        let mut left = bytes;
        for (resident, shim) in shares {
            let share = resident.min(left);
            if share > 0 {
                left -= share;
                self.send(shim, Command::Evict { bytes: share }, actions);
            }
        }
    }

    /// The connections that are shims'.
    fn greeted(&self) -> impl Iterator<Item = (Shim, &State)> {
        self.shims.iter().filter(|(_, state)| state.has_said_hello).map(|(shim, state)| (*shim, state))
    }

    fn send(&mut self, shim: Shim, command: Command, actions: &mut Vec<Action>) {
        let Some(state) = self.shims.get_mut(&shim) else { return };
        state.owes.push_back(self.last);
        if state.owes.len() > OWED {
            actions.extend(self.disconnect(shim, "it has not answered its commands"));
        } else {
            actions.push(Action::Send { shim, packet: CommandPacket { number: self.last, command } });
        }
    }
}

impl Running {
    fn take(&mut self, report: &Report) {
        self.answer.moved_bytes = self.answer.moved_bytes.saturating_add(report.moved);
        if self.answer.error == 0 {
            self.answer.error = report.error;
        }
    }
}

#[cfg(test)]
mod tests;
