//! Queue of callers that want a process of the zygote: which caller gets one, which process has ended, and when the
//! zygote is over. Pure.
//!
//! | zygote | a caller asks | |
//! | --- | --- | --- |
//! | imports | waits | until everything is imported |
//! | is ready | gets a process, or waits | a few at a time: a zygote forks one after the other |
//! | is spent: it ended, cannot be used, or was stopped | is refused | processes from it live on |
//!
//! The zygote is over when no caller has a process and it is spent, or has had no caller for [`LINGER`].

use omni_node_protocol::id::InstanceId;
use omni_node_protocol::zygote::LINGER;
use std::collections::BTreeMap;
use std::time::Duration;

/// How long a fork may take until it is claimed: less than a caller's patience, which would hide that the zygote hangs.
const FORK_WITHIN: Duration = Duration::from_secs(2);
/// Forks that the zygote has been sent and that no caller has claimed yet: a request that waits behind others is not
/// late.
const FORKS: usize = 8;

/// A connection, by the number that it got when it was accepted.
pub(super) type Caller = u64;

/// Something happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Event {
    /// New connection of a caller.
    Came(Caller),
    /// A caller wants a process for this instance.
    Asked(Caller, InstanceId),
    /// A process of the sandbox, by the number that it has there, is this caller's.
    Claimed(Caller, i32),
    /// A caller has hung up.
    Left(Caller),
    /// The zygote has imported everything.
    Preloaded,
    /// The zygote made no process for this instance.
    ForkFailed(InstanceId, String),
    /// The zygote makes no more processes.
    Spent(String),
    /// A process of the sandbox, by the number that it has there, ended with this raw status.
    Ended(i32, i32),
}

/// Something to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Action {
    /// Have the zygote fork for this caller.
    Fork(Caller),
    /// Tell a caller that it gets nothing, and why.
    Refuse(Caller, String),
    /// Tell a caller how its process ended.
    TellEnd(Caller, i32),
    /// The process of this caller is not wanted any more.
    Kill(Caller),
    /// Take no more callers.
    Close,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Zygote {
    Importing,
    Ready,
    Spent(String),
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum CallerState {
    Silent,
    Waits(InstanceId),
    Forking(InstanceId, Duration),
    Holds(i32),
    Done,
}

/// Zygote with all callers that have, or wait for, a process of it.
#[derive(Debug)]
pub(super) struct ForkQueue {
    zygote: Zygote,
    callers: BTreeMap<Caller, CallerState>,
    idle_since: Duration,
    /// Until when everything is to be imported.
    imported_until: Duration,
}

impl ForkQueue {
    /// New queue. The imports may take this long, however many callers wait meanwhile.
    pub(super) fn new(import_within: Duration) -> Self {
        Self {
            zygote: Zygote::Importing,
            callers: BTreeMap::new(),
            idle_since: Duration::ZERO,
            imported_until: import_within,
        }
    }

    /// Tests that it has neither reported that it is preloaded, nor ended.
    pub(super) fn is_importing(&self) -> bool {
        self.zygote == Zygote::Importing
    }

    /// Tests that this caller waits for a process whose fork the zygote has been sent.
    pub(super) fn may_claim(&self, caller: Caller) -> bool {
        matches!(self.callers.get(&caller), Some(CallerState::Forking(..)))
    }

    /// Tests that a process of the sandbox belongs to a caller already.
    pub(super) fn is_held(&self, pid: i32) -> bool {
        self.callers.values().any(|state| *state == CallerState::Holds(pid))
    }

    /// When [`ForkQueue::is_over`] may become true, or [`ForkQueue::hangs`] say something, by itself.
    pub(super) fn deadline(&self) -> Option<Duration> {
        let idle = self.callers.is_empty().then(|| self.idle_since + LINGER);
        let imports = (self.zygote == Zygote::Importing).then_some(self.imported_until);
        idle.into_iter().chain(imports).chain(self.forks()).min()
    }

    /// Overdue step of a living zygote.
    pub(super) fn hangs(&self, now: Duration) -> Option<&'static str> {
        match self.zygote {
            Zygote::Importing if self.imported_until <= now => Some("it did not import its modules in time"),
            Zygote::Ready if self.forks().any(|until| until <= now) => Some("it did not fork in time"),
            Zygote::Importing | Zygote::Ready | Zygote::Spent(_) => None,
        }
    }

    fn forks(&self) -> impl Iterator<Item = Duration> {
        self.callers.values().filter_map(|state| match state {
            CallerState::Forking(_, until) => Some(*until),
            CallerState::Silent | CallerState::Waits(_) | CallerState::Holds(_) | CallerState::Done => None,
        })
    }

    pub(super) fn is_over(&self, now: Duration) -> bool {
        let spent = matches!(self.zygote, Zygote::Spent(_));
        self.callers.is_empty() && (spent || self.idle_since + LINGER <= now)
    }

    pub(super) fn on(&mut self, event: Event, now: Duration) -> Vec<Action> {
        let mut actions = self.take(event, now);
        actions.extend(self.fork(now));
        actions
    }

    fn take(&mut self, event: Event, now: Duration) -> Vec<Action> {
        match event {
            Event::Came(caller) => {
                self.callers.insert(caller, CallerState::Silent);
                vec![]
            }
            Event::Asked(caller, instance) => self.asked(caller, instance),
            Event::Claimed(caller, pid) => {
                self.set(caller, CallerState::Holds(pid));
                vec![]
            }
            Event::Left(caller) => {
                let state = self.callers.remove(&caller);
                if self.callers.is_empty() {
                    self.idle_since = now;
                }
                // A process that is not claimed yet sees the end of its control socket.
                match state {
                    Some(CallerState::Holds(_)) => vec![Action::Kill(caller)],
                    Some(
                        CallerState::Silent | CallerState::Waits(_) | CallerState::Forking(..) | CallerState::Done,
                    )
                    | None => vec![],
                }
            }
            Event::Preloaded => {
                if self.zygote == Zygote::Importing {
                    self.zygote = Zygote::Ready;
                }
                vec![]
            }
            Event::ForkFailed(instance, why) => {
                let asked = |state: &CallerState| matches!(state, CallerState::Forking(of, _) if *of == instance);
                let caller = self.callers.iter().find(|(_, state)| asked(state)).map(|(caller, _)| *caller);
                caller.map(|caller| self.refuse(caller, why)).into_iter().collect()
            }
            Event::Spent(why) => self.spent(&why),
            Event::Ended(pid, status) => {
                let holds = CallerState::Holds(pid);
                let caller = self.callers.iter().find(|(_, state)| **state == holds).map(|(caller, _)| *caller);
                let Some(caller) = caller else { return vec![] };
                self.set(caller, CallerState::Done);
                vec![Action::TellEnd(caller, status)]
            }
        }
    }

    fn set(&mut self, caller: Caller, state: CallerState) {
        if let Some(place) = self.callers.get_mut(&caller) {
            *place = state;
        }
    }

    fn refuse(&mut self, caller: Caller, why: String) -> Action {
        self.set(caller, CallerState::Done);
        Action::Refuse(caller, why)
    }

    fn asked(&mut self, caller: Caller, instance: InstanceId) -> Vec<Action> {
        if self.callers.get(&caller) != Some(&CallerState::Silent) {
            return vec![self.refuse(caller, "it asked twice".into())];
        }
        match &self.zygote {
            Zygote::Importing | Zygote::Ready => {
                self.set(caller, CallerState::Waits(instance));
                vec![]
            }
            Zygote::Spent(why) => {
                let why = why.clone();
                vec![self.refuse(caller, why)]
            }
        }
    }

    /// As many forks as the zygote may have to make, in the order in which their callers came.
    fn fork(&mut self, now: Duration) -> Vec<Action> {
        if self.zygote != Zygote::Ready {
            return vec![];
        }
        let free = FORKS.saturating_sub(self.forks().count());
        let mut actions = Vec::new();
        for (caller, state) in &mut self.callers {
            if let CallerState::Waits(instance) = state
                && actions.len() < free
            {
                *state = CallerState::Forking(instance.clone(), now + FORK_WITHIN);
                actions.push(Action::Fork(*caller));
            }
        }
        actions
    }

    /// The first reason counts.
    fn spent(&mut self, why: &str) -> Vec<Action> {
        if matches!(self.zygote, Zygote::Spent(_)) {
            return vec![];
        }
        let unserved = |(caller, state): (&Caller, &CallerState)| {
            matches!(state, CallerState::Waits(_) | CallerState::Forking(..)).then_some(*caller)
        };
        let unserved: Vec<Caller> = self.callers.iter().filter_map(unserved).collect();
        self.zygote = Zygote::Spent(why.to_owned());
        let refusals = unserved.into_iter().map(|caller| self.refuse(caller, why.to_owned()));
        let mut actions: Vec<Action> = refusals.collect();
        actions.push(Action::Close);
        actions
    }
}

#[cfg(test)]
mod tests;
