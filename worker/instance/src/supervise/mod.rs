//! State machine of an instance in its worker: events in, actions out. Pure: no clock, descriptor or process in here.
//!
//! | state | event | next state | action |
//! | --- | --- | --- | --- |
//! | Running | `Stop`, `Terminate` | Stopping | tells the engine |
//! | Running | the engine closed its socket | Stopping (short) | - |
//! | any but Gone | memory is short | the same | looks for the kernel's kill for a while |
//! | Running, Stopping | `Kill`, deadline, the engine's process being known | Dying | asks the engine for its stacks |
//! | Running, Stopping, Dying | asked for stacks a while ago | the same | insists, if the engine has not answered |
//! | Running, Stopping, Dying | `Kill`, out of memory, protocol violation, deadline | Killed | kills all |
//! | Killed | deadline | Killed | ends the meminfo file, kills again |
//! | any | all processes gone | Gone | none: the caller reads [`Instance::cause`] |
//!
//! The cause of an end: out of memory when the kernel counted such a kill; else the step that failed; else how the
//! engine ended, as pid 1 saw it; else how pid 1 itself ended; else, for a process of a zygote whose sandbox is gone
//! with it, unobserved.

use omni_engine_protocol::control::{FromEngine, HandlerMode};
use omni_node_protocol::exit::ExitCause;
use omni_node_protocol::instance::FromWorker;
use std::time::Duration;

/// Grace of an engine that has closed its socket: it is about to exit, and useless if it does not.
const CLOSED_GRACE: Duration = Duration::from_secs(1);
/// SIGTERM to the worker, for example at the machine's shutdown, gives the model this long.
const TERMINATE_GRACE: Duration = Duration::from_secs(5);
/// An engine that is to be killed has this long to write its stacks.
const STACKS: Duration = Duration::from_millis(200);
/// An engine that was asked for its stacks has this long until the question is put again, in a way that is answered without
/// the interpreter's lock but can crash an engine whose threads only wait long for their turn. Many threads that compute
/// may each wait a second for it.
const PATIENCE: Duration = Duration::from_millis(1500);
/// Delay before the second question for stacks to an engine that is to be killed.
const LAST_PATIENCE: Duration = Duration::from_millis(150);
/// A process that is still there this long after SIGKILL waits in the kernel, most likely for a file system.
const KILL_PATIENCE: Duration = Duration::from_millis(500);
/// How often, and how long, to look for the kill that follows a shortage of memory.
const LOOK_EVERY: Duration = Duration::from_millis(5);
const LOOK_FOR: Duration = Duration::from_secs(1);

/// Something happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Event {
    /// The engine's process is there and about to begin.
    Executing { pid: i32 },
    /// A step of the sandbox failed.
    Failed(String),
    /// Pid 1, its own or the zygote's, saw the engine's end: its raw wait status.
    Ended(i32),
    /// The engine said something.
    Engine(FromEngine),
    /// The engine said something that is not in the contract.
    EngineBroken(String),
    /// The engine closed its socket.
    EngineClosed,
    /// The group has no memory left. Version 1 says so just before the kernel kills something, and not again after.
    MemoryShort,
    /// The kernel killed something of the instance for want of memory.
    OutOfMemory,
    /// The scheduler wants the model to stop within a time.
    Stop { grace: Duration },
    /// The scheduler wants it gone.
    Kill,
    /// The scheduler wants the engine's stacks.
    Stacks,
    /// The engine does not write its stacks.
    NoStacks,
    /// SIGTERM to the worker.
    Terminate,
    /// A deadline may have passed.
    Tick,
    /// Pid 1, or the process of a zygote, is gone, and so is every other process: its raw wait status.
    Gone(i32),
    /// As `Gone`, but the process that could have observed the end has ended too.
    Unseen,
}

/// Something to do.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Action {
    /// Tell the engine to stop.
    StopEngine,
    /// Look whether the kernel has killed something for want of memory.
    LookForOom,
    /// Have the engine write the stacks of its threads to its log.
    AskForStacks { pid: i32 },
    /// Have the engine write its stacks without the interpreter's lock, unless it has answered.
    InsistOnStacks { pid: i32 },
    /// SIGKILL to everything.
    Kill,
    /// End the file over `/proc/meminfo`: its readers must not keep anything alive.
    AbortMeminfo,
    /// Tell the scheduler, if one is there.
    Tell(FromWorker),
    /// Tell the scheduler, if one is there, what the instance is now.
    Introduce,
    /// A line of the worker in the instance's log.
    Note(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Running,
    Stopping { kill_at: Duration },
    Dying { kill_at: Duration },
    Killed { again_at: Duration },
    Gone { status: Option<i32> },
}

/// A shortage of memory whose victim is looked for.
#[derive(Debug, Clone, Copy)]
struct Short {
    next: Duration,
    until: Duration,
}

/// Instance as the worker knows it.
#[derive(Debug)]
pub(super) struct Instance {
    phase: Phase,
    engine_pid: Option<i32>,
    /// When to insist on the stacks that the engine was asked for.
    insist_at: Option<Duration>,
    ready: Option<HandlerMode>,
    answered: bool,
    out_of_memory: bool,
    short: Option<Short>,
    failed: Option<String>,
    ended: Option<i32>,
}

impl Instance {
    pub(super) fn new() -> Self {
        Self {
            phase: Phase::Running,
            engine_pid: None,
            insist_at: None,
            ready: None,
            answered: false,
            out_of_memory: false,
            short: None,
            failed: None,
            ended: None,
        }
    }

    pub(super) fn engine_pid(&self) -> Option<i32> {
        self.engine_pid
    }

    pub(super) fn ready(&self) -> Option<HandlerMode> {
        self.ready
    }

    /// When to come back with a `Tick`.
    pub(super) fn deadline(&self) -> Option<Duration> {
        let phase = match self.phase {
            Phase::Running | Phase::Gone { .. } => None,
            Phase::Stopping { kill_at } | Phase::Dying { kill_at } => Some(kill_at),
            Phase::Killed { again_at } => Some(again_at),
        };
        [phase, self.insist_at, self.short.map(|short| short.next)].into_iter().flatten().min()
    }

    /// Why everything is gone; `None` while it is not.
    pub(super) fn cause(&self) -> Option<ExitCause> {
        let Phase::Gone { status } = self.phase else { return None };
        Some(match (self.out_of_memory, &self.failed, self.ended) {
            (true, _, _) => ExitCause::OomKilled,
            (false, Some(message), _) => ExitCause::StartFailed { message: message.clone() },
            (false, None, Some(ended)) => cause_of(ended),
            (false, None, None) => match status {
                Some(status) if libc::WIFEXITED(status) => {
                    ExitCause::StartFailed { message: "the sandbox's first process ended without a report".into() }
                }
                Some(status) => cause_of(status),
                None => ExitCause::WorkerLost,
            },
        })
    }

    /// Takes an event at a time since the start.
    pub(super) fn on(&mut self, event: Event, now: Duration) -> Vec<Action> {
        match event {
            Event::Executing { pid } => {
                self.engine_pid = Some(pid);
                vec![Action::Introduce]
            }
            Event::Failed(message) => {
                self.failed = Some(message);
                vec![]
            }
            Event::Ended(status) => {
                self.ended = Some(status);
                self.insist_at = None;
                vec![]
            }
            Event::Engine(message) => self.engine(message, now),
            Event::EngineBroken(why) => self.kill(format!("the engine broke its contract: {why}"), now),
            Event::EngineClosed => {
                self.stop_by(now + CLOSED_GRACE);
                vec![]
            }
            Event::MemoryShort => {
                self.short = Some(Short { next: now + LOOK_EVERY, until: now + LOOK_FOR });
                vec![Action::LookForOom]
            }
            Event::OutOfMemory => {
                self.out_of_memory = true;
                self.short = None;
                self.kill("out of memory: the whole instance ends".into(), now)
            }
            Event::Stop { grace } => self.stop(grace, now),
            Event::Terminate => self.stop(TERMINATE_GRACE, now),
            Event::Kill => self.kill_with_stacks(now),
            Event::Stacks => self.ask(now + PATIENCE),
            Event::NoStacks => self.no_stacks(now),
            Event::Tick => {
                let mut actions = self.tick(now);
                actions.extend(self.insist(now));
                actions.extend(self.look(now));
                actions
            }
            Event::Gone(status) => self.gone(Some(status)),
            Event::Unseen => self.gone(None),
        }
    }

    fn engine(&mut self, message: FromEngine, now: Duration) -> Vec<Action> {
        if self.answered {
            return self.kill("the engine broke its contract: it answered twice".into(), now);
        }
        self.answered = true;
        match message {
            FromEngine::Forked => self.kill("the engine broke its contract: nobody asked for a fork".into(), now),
            FromEngine::Ready { mode } => {
                self.ready = Some(mode);
                vec![Action::Tell(FromWorker::Ready { mode })]
            }
            FromEngine::Failed { phase, message } => vec![Action::Tell(FromWorker::EngineFailed { phase, message })],
        }
    }

    fn stop(&mut self, grace: Duration, now: Duration) -> Vec<Action> {
        let first = self.phase == Phase::Running;
        self.stop_by(now.saturating_add(grace));
        if first { vec![Action::StopEngine] } else { vec![] }
    }

    fn stop_by(&mut self, time: Duration) {
        self.phase = match self.phase {
            Phase::Running => Phase::Stopping { kill_at: time },
            Phase::Stopping { kill_at } => Phase::Stopping { kill_at: kill_at.min(time) },
            ending @ (Phase::Dying { .. } | Phase::Killed { .. } | Phase::Gone { .. }) => ending,
        };
    }

    fn kill(&mut self, why: String, now: Duration) -> Vec<Action> {
        let mut actions = self.kill_quietly(now);
        if !actions.is_empty() {
            actions.push(Action::Note(why));
        }
        actions
    }

    /// Asks an engine that runs for its stacks. A question before the last one was answered puts off the insisting.
    fn ask(&mut self, insist_at: Duration) -> Vec<Action> {
        match (self.phase, self.engine_pid.filter(|_| self.ended.is_none())) {
            (Phase::Running | Phase::Stopping { .. }, Some(pid)) => {
                self.insist_at = Some(insist_at);
                vec![Action::AskForStacks { pid }]
            }
            (Phase::Dying { .. }, Some(_)) => vec![],
            _ => vec![cannot_say()],
        }
    }

    fn no_stacks(&mut self, now: Duration) -> Vec<Action> {
        match self.phase {
            Phase::Running | Phase::Stopping { .. } => {
                self.insist_at = None;
                vec![cannot_say()]
            }
            Phase::Dying { .. } => self.kill_quietly(now),
            Phase::Killed { .. } | Phase::Gone { .. } => vec![],
        }
    }

    fn insist(&mut self, now: Duration) -> Option<Action> {
        self.insist_at.take_if(|at| *at <= now)?;
        self.engine_pid.map(|pid| Action::InsistOnStacks { pid })
    }

    /// Kills an engine that runs once it has said where it is, and any other one at once.
    fn kill_with_stacks(&mut self, now: Duration) -> Vec<Action> {
        match (self.phase, self.engine_pid.filter(|_| self.ended.is_none())) {
            (Phase::Running | Phase::Stopping { .. }, Some(pid)) => {
                self.phase = Phase::Dying { kill_at: now + STACKS };
                self.insist_at = Some(now + LAST_PATIENCE);
                vec![Action::AskForStacks { pid }]
            }
            _ => self.kill_quietly(now),
        }
    }

    fn kill_quietly(&mut self, now: Duration) -> Vec<Action> {
        self.insist_at = None;
        match self.phase {
            Phase::Running | Phase::Stopping { .. } | Phase::Dying { .. } => {
                self.phase = Phase::Killed { again_at: now + KILL_PATIENCE };
                vec![Action::Kill]
            }
            Phase::Killed { .. } | Phase::Gone { .. } => vec![],
        }
    }

    fn gone(&mut self, status: Option<i32>) -> Vec<Action> {
        self.phase = Phase::Gone { status };
        self.insist_at = None;
        self.short = None;
        vec![]
    }

    fn look(&mut self, now: Duration) -> Option<Action> {
        let short = self.short.filter(|short| short.next <= now)?;
        let next = now + LOOK_EVERY;
        self.short = (next <= short.until).then_some(Short { next, until: short.until });
        Some(Action::LookForOom)
    }

    fn tick(&mut self, now: Duration) -> Vec<Action> {
        match self.phase {
            Phase::Stopping { kill_at } if kill_at <= now => {
                let mut actions = self.kill_with_stacks(now);
                actions.push(Action::Note("the model did not stop in time: killed".into()));
                actions
            }
            Phase::Dying { kill_at } if kill_at <= now => self.kill_quietly(now),
            Phase::Killed { again_at } if again_at <= now => {
                self.phase = Phase::Killed { again_at: now + KILL_PATIENCE };
                vec![Action::AbortMeminfo, Action::Kill]
            }
            Phase::Running
            | Phase::Stopping { .. }
            | Phase::Dying { .. }
            | Phase::Killed { .. }
            | Phase::Gone { .. } => vec![],
        }
    }
}

fn cannot_say() -> Action {
    Action::Note("the engine cannot write its stacks: it has not begun, or it has ended".into())
}

/// Cause from a raw wait status, for every signal there is.
pub(super) fn cause_of(status: i32) -> ExitCause {
    if libc::WIFSIGNALED(status) {
        ExitCause::Signaled { signal: libc::WTERMSIG(status) }
    } else {
        ExitCause::Exited { code: libc::WEXITSTATUS(status) }
    }
}

#[cfg(test)]
mod tests;
