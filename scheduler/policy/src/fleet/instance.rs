//! One instance, from the moment it is asked for until all its processes are gone.
//!
//! ```text
//!   start ──▶ Starting ──────▶ Ready ──────▶ Draining ──▶ Stopping ──▶ (gone)
//!                 │              │ idle                       ▲
//!                 └──────────────┴────────────────────────────┘
//! ```
//!
//! A ready instance with a handler that ignores its cancellation is [`Overrun`]: it stays ready and open, with the slots
//! that it has left, until another one is ready in its place.
//!
//! Each phase that waits for somebody else has an end; the way out of every one is `Gone` (or `NotAsked`, `NoPlace`
//! when there never was a process).

use super::events::Action;
use crate::{Generation, InstanceNumber, Moment};
use std::time::Duration;

/// After SIGKILL the kernel needs moments; a worker that has not reported by then is killed again.
pub const KILL_RETRY: Duration = Duration::from_secs(10);
/// Time for `teardown` once nothing is in flight.
pub const STOP_GRACE: Duration = Duration::from_secs(5);
/// An instance that had no request yet stays at least this long: what it was started for is about to reach it.
pub const FIRST_USE_GRACE: Duration = Duration::from_secs(1);

/// Where an instance is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// It waits for its place, then its processes start.
    Starting {
        /// Give up then.
        until: Moment,
    },
    /// Its engine takes requests. It gets some when its generation serves.
    Ready {
        /// Since when.
        since: Moment,
        /// Since when it has nothing to do; one that was started without a request has had nothing since its model was last
        /// used.
        idle_since: Option<Moment>,
    },
    /// It finishes what it has.
    Draining {
        /// Then the rest is cancelled.
        until: Moment,
    },
    /// It was told to stop, or killed.
    Stopping {
        /// Kill (again) then.
        until: Moment,
        /// StopReason.
        end: StopCause,
    },
}

/// Why an instance goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopCause {
    /// It is not needed.
    Requested,
    /// It does not do its work: its end counts as a death.
    Failed,
    /// Its stuck handlers were in the way. Its end counts as a death, and never delays the start of another one: clients
    /// cause it.
    StuckHandlers,
}

#[derive(Debug, Clone)]
pub(super) struct Instance {
    pub(super) generation: Generation,
    pub(super) phase: Phase,
    /// Its lane is open.
    pub(super) routed: bool,
    /// Its engine said that this content is hopeless.
    pub(super) refused: bool,
    /// It had a request since its lane is open.
    pub(super) used: bool,
    /// It has something in flight.
    pub(super) in_use: bool,
    /// When its lane was opened.
    pub(super) routed_at: Moment,
    /// A handler ignores its cancellation, or did before the instance's replacement was started.
    pub(super) overrun: Option<Overrun>,
}

/// An instance that is to be replaced for its stuck handlers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Overrun {
    /// Other requests run in it.
    pub(super) other_requests: bool,
    /// It can run further ones.
    pub(super) free_slots: bool,
    /// Its handlers have ended after all.
    pub(super) recovered: bool,
    /// It is on its way down for its stuck handlers, not for anything else.
    pub(super) retiring: bool,
}

impl Instance {
    pub(super) fn new(generation: Generation, phase: Phase) -> Self {
        Self {
            generation,
            phase,
            routed: false,
            refused: false,
            used: false,
            in_use: false,
            routed_at: Moment::ZERO,
            overrun: None,
        }
    }

    /// On its way to requests, or there.
    pub(super) fn is_up(&self) -> bool {
        match self.phase {
            Phase::Starting { .. } | Phase::Ready { .. } => true,
            Phase::Draining { .. } | Phase::Stopping { .. } => false,
        }
    }

    pub(super) fn is_ready(&self) -> bool {
        matches!(self.phase, Phase::Ready { .. })
    }

    /// Its death is certain and not reckoned yet: what replaces it waits for that.
    pub(super) fn is_dying(&self) -> bool {
        matches!(self.phase, Phase::Stopping { end: StopCause::Failed | StopCause::StuckHandlers, .. })
    }

    /// When waiting for somebody else ends.
    pub(super) fn deadline(&self) -> Option<Moment> {
        match self.phase {
            Phase::Starting { until } | Phase::Draining { until } | Phase::Stopping { until, .. } => Some(until),
            Phase::Ready { .. } => None,
        }
    }

    /// When it has been idle for `timeout`.
    pub(super) fn idle_stop_at(&self, timeout: Duration) -> Option<Moment> {
        match self.phase {
            Phase::Ready { idle_since: Some(since), .. } => {
                let first_use = if self.used { Moment::ZERO } else { self.routed_at + FIRST_USE_GRACE };
                Some((since + timeout).max(first_use))
            }
            Phase::Ready { idle_since: None, .. }
            | Phase::Starting { .. }
            | Phase::Draining { .. }
            | Phase::Stopping { .. } => None,
        }
    }

    /// The way down, gently: what is in flight may finish within `drain`. Nothing for one that is on it already.
    pub(super) fn leave(&mut self, number: InstanceNumber, drain: Duration, now: Moment, actions: &mut Vec<Action>) {
        match self.phase {
            Phase::Starting { .. } => self.kill(number, StopCause::Requested, now, actions),
            Phase::Ready { idle_since, .. } => {
                self.close(number, actions);
                if idle_since.is_some() {
                    self.stop(number, now, actions);
                } else if self.overrun.is_some_and(|overrun| !overrun.other_requests) {
                    self.kill(number, StopCause::Requested, now, actions); // nobody waits for what runs in it
                } else {
                    self.phase = Phase::Draining { until: now + drain };
                }
            }
            Phase::Draining { .. } | Phase::Stopping { .. } => {}
        }
    }

    /// It does not do its work.
    pub(super) fn on_unresponsive(&mut self, number: InstanceNumber, now: Moment, actions: &mut Vec<Action>) {
        match self.phase {
            Phase::Starting { .. } | Phase::Ready { .. } => self.kill(number, StopCause::Failed, now, actions),
            Phase::Draining { .. } => self.kill(number, StopCause::Requested, now, actions),
            Phase::Stopping { .. } => {}
        }
    }

    /// The way down of one whose stuck handlers keep it from being what it was. Others in it end within `bound`, which
    /// is what their deadlines allow.
    pub(super) fn retire_stuck(
        &mut self,
        number: InstanceNumber,
        bound: Duration,
        now: Moment,
        actions: &mut Vec<Action>,
    ) {
        let (Some(overrun), Phase::Ready { idle_since, .. }) = (&mut self.overrun, self.phase) else { return };
        overrun.retiring = true;
        if overrun.other_requests || idle_since.is_some() {
            self.leave(number, bound, now, actions);
        } else {
            self.kill(number, StopCause::StuckHandlers, now, actions);
        }
    }

    /// The end of one that drains when only its stuck handlers are left: nobody waits for them.
    pub(super) fn end_if_drained(&mut self, number: InstanceNumber, now: Moment, actions: &mut Vec<Action>) {
        if let (Phase::Draining { .. }, Some(Overrun { other_requests: false, retiring, .. })) =
            (self.phase, self.overrun)
        {
            self.kill(number, if retiring { StopCause::StuckHandlers } else { StopCause::Requested }, now, actions);
        }
    }

    /// Somebody did not keep to the time.
    pub(super) fn on_deadline(&mut self, number: InstanceNumber, now: Moment, actions: &mut Vec<Action>) {
        match self.phase {
            Phase::Starting { .. } => self.kill(number, StopCause::Failed, now, actions),
            Phase::Ready { .. } => {}
            Phase::Draining { .. } => {
                actions.push(Action::CancelInFlight(number));
                self.stop(number, now, actions);
            }
            Phase::Stopping { end, .. } => self.kill(number, end, now, actions),
        }
    }

    pub(super) fn stop(&mut self, number: InstanceNumber, now: Moment, actions: &mut Vec<Action>) {
        self.phase = Phase::Stopping { until: now + STOP_GRACE + STOP_GRACE, end: StopCause::Requested };
        actions.push(Action::Stop(number));
    }

    fn kill(&mut self, number: InstanceNumber, end: StopCause, now: Moment, actions: &mut Vec<Action>) {
        self.close(number, actions);
        self.phase = Phase::Stopping { until: now + KILL_RETRY, end };
        actions.push(Action::Kill(number));
    }

    fn close(&mut self, number: InstanceNumber, actions: &mut Vec<Action>) {
        if std::mem::take(&mut self.routed) {
            actions.push(Action::DisableRoute(number));
        }
    }
}
