//! Life of one instance, from the request for its capacity until all its processes are gone.
//!
//! ```text
//!   start ──▶ Starting ──────▶ Ready ──────▶ Draining ──▶ Stopping ──▶ (gone)
//!                 │              │ idle                       ▲
//!                 └──────────────┴────────────────────────────┘
//! ```
//!
//! A ready instance with a handler that ignores its cancellation is [`Overrun`]: it stays ready and keeps its route,
//! with the slots that it has left, until a replacement is ready.
//!
//! Each phase that waits for another process has a deadline; every phase can end with `Gone` (or `LauncherUnavailable`,
//! `NoCapacity` when there never was a process).

use super::events::Action;
use crate::{Generation, InstanceNumber, Moment};
use std::time::Duration;

/// Time after SIGKILL until a worker that has not reported is killed again; the kernel needs moments.
pub const KILL_RETRY: Duration = Duration::from_secs(10);
/// Time for `teardown` once nothing is in flight.
pub const STOP_GRACE: Duration = Duration::from_secs(5);
/// Shortest life of an instance without a request yet: the request it was started for is about to reach it.
pub const FIRST_USE_GRACE: Duration = Duration::from_secs(1);

/// Phase of an instance's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Waits for its capacity, then its processes start.
    Starting {
        /// Deadline; the instance is killed then.
        until: Moment,
    },
    /// The engine takes requests; it gets some while its generation serves.
    Ready {
        /// Time it became ready.
        since: Moment,
        /// Start of its idle time, `None` while it is busy; for an instance started without a request, the last use of
        /// its model.
        idle_since: Option<Moment>,
    },
    /// Finishes its requests and takes no new ones.
    Draining {
        /// Deadline; the remaining requests are cancelled then.
        until: Moment,
    },
    /// Asked to stop, or killed.
    Stopping {
        /// Deadline; it is killed (again) then.
        until: Moment,
        /// StopReason.
        end: StopCause,
    },
}

/// Why an instance stops, which decides what its end counts as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopCause {
    /// The instance is not needed.
    Requested,
    /// The instance does not work: its end counts as a death.
    Failed,
    /// The stuck handlers were in the way. Its end counts as a death, but never delays a start: clients cause it.
    StuckHandlers,
}

#[derive(Debug, Clone)]
pub(super) struct Instance {
    pub(super) generation: Generation,
    pub(super) phase: Phase,
    /// Requests are routed to it.
    pub(super) routed: bool,
    /// The engine reported that it cannot work with this content.
    pub(super) refused: bool,
    /// The instance had a request since its route was enabled.
    pub(super) used: bool,
    /// The instance has a request in flight.
    pub(super) in_use: bool,
    /// Time its route was enabled.
    pub(super) routed_at: Moment,
    /// Set while a handler ignores its cancellation, or did so when the instance's replacement was started.
    pub(super) overrun: Option<Overrun>,
}

/// State of an instance that is being replaced for its stuck handlers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Overrun {
    /// Other requests run in it.
    pub(super) other_requests: bool,
    /// The instance can run further requests.
    pub(super) free_slots: bool,
    /// The stuck handlers have ended after all.
    pub(super) recovered: bool,
    /// The instance is stopping because of its stuck handlers, not for another reason.
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

    /// Starting or ready.
    pub(super) fn is_up(&self) -> bool {
        match self.phase {
            Phase::Starting { .. } | Phase::Ready { .. } => true,
            Phase::Draining { .. } | Phase::Stopping { .. } => false,
        }
    }

    pub(super) fn is_ready(&self) -> bool {
        matches!(self.phase, Phase::Ready { .. })
    }

    /// The death is certain but not counted yet: its replacement waits for that.
    pub(super) fn is_dying(&self) -> bool {
        matches!(self.phase, Phase::Stopping { end: StopCause::Failed | StopCause::StuckHandlers, .. })
    }

    /// Deadline of the current phase.
    pub(super) fn deadline(&self) -> Option<Moment> {
        match self.phase {
            Phase::Starting { until } | Phase::Draining { until } | Phase::Stopping { until, .. } => Some(until),
            Phase::Ready { .. } => None,
        }
    }

    /// Time at which it has been idle for `timeout`.
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

    /// Stops it gracefully: requests in flight may finish within `drain`. No effect if it is stopping already.
    pub(super) fn leave(&mut self, number: InstanceNumber, drain: Duration, now: Moment, actions: &mut Vec<Action>) {
        match self.phase {
            Phase::Starting { .. } => self.kill(number, StopCause::Requested, now, actions),
            Phase::Ready { idle_since, .. } => {
                self.close(number, actions);
                if idle_since.is_some() {
                    self.stop(number, now, actions);
                } else if self.overrun.is_some_and(|overrun| !overrun.other_requests) {
                    self.kill(number, StopCause::Requested, now, actions); // only stuck handlers run in it, for clients that are gone
                } else {
                    self.phase = Phase::Draining { until: now + drain };
                }
            }
            Phase::Draining { .. } | Phase::Stopping { .. } => {}
        }
    }

    /// Kills it: it does not work.
    pub(super) fn on_unresponsive(&mut self, number: InstanceNumber, now: Moment, actions: &mut Vec<Action>) {
        match self.phase {
            Phase::Starting { .. } | Phase::Ready { .. } => self.kill(number, StopCause::Failed, now, actions),
            Phase::Draining { .. } => self.kill(number, StopCause::Requested, now, actions),
            Phase::Stopping { .. } => {}
        }
    }

    /// Stops it for its stuck handlers. Other requests in it end within `bound`, the latest of their deadlines.
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

    /// Kills it if it is draining and only stuck handlers are left.
    pub(super) fn end_if_drained(&mut self, number: InstanceNumber, now: Moment, actions: &mut Vec<Action>) {
        if let (Phase::Draining { .. }, Some(Overrun { other_requests: false, retiring, .. })) =
            (self.phase, self.overrun)
        {
            self.kill(number, if retiring { StopCause::StuckHandlers } else { StopCause::Requested }, now, actions);
        }
    }

    /// The deadline of its phase has passed.
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
