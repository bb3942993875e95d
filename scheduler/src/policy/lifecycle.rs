//! The life of a model on this node: `step(state, event, now) -> actions`.
//!
//! The model's task owns one [`Lifecycle`], feeds it every event and carries out the actions in order.
//!
//! ```text
//!            demand             prepared            ready
//!  Stopped ─────────▶ Preparing ─────────▶ Starting ──────▶ Ready
//!     ▲                   │                   │               │ idle, changed, stop, unresponsive
//!     │ gone              │ failed            │ failed, gone  ▼
//!     └───────────────────┴────▶ Waiting ◀────┴─────────── Draining ──▶ Stopping ──▶ (gone)
//!                                Refused (until the content changes)
//! ```
//!
//! What always holds:
//! - at most one instance exists, in `Starting`, `Ready`, `Draining` or `Stopping`; every way out of these passes
//!   through `Gone` (or `StartFailed`, when there never was a process);
//! - requests go to the instance only in `Ready` (those it has already may finish in `Draining`);
//! - a model that is held, refused or removed starts nothing;
//! - in every phase that waits for somebody else there is a moment at which it stops waiting.

mod events;

use super::Moment;
use super::backoff::{FIRST_WITHOUT_PLACE, Tally, without_place};
pub use events::{Action, Event, Next, Phase, Settings};
use std::time::Duration;

/// After SIGKILL the kernel needs moments; a worker that has not reported by then is given up as lost.
pub const GONE_AFTER_KILL: Duration = Duration::from_secs(10);
/// Time for `teardown` once nothing is in flight.
pub const STOP_GRACE: Duration = Duration::from_secs(5);
/// A launcher that was lost is asked again after this.
pub const ASK_AGAIN: Duration = Duration::from_millis(500);

/// The state of one model.
#[derive(Debug, Clone)]
pub struct Lifecycle {
    settings: Settings,
    phase: Phase,
    tally: Tally,
    held: bool,
    removed: bool,
    /// The content in `settings` may be served.
    servable: bool,
    /// The running instance is of an earlier content.
    stale: bool,
    /// The engine said that this content is hopeless.
    refused: bool,
    /// Requests wait.
    demand: bool,
    /// It pauses, or is refused, for want of a place on a GPU: nothing died.
    no_place: bool,
    /// How often in a row it was refused a place on a GPU.
    refusals: u32,
    /// When it asks for a place of itself, if it is kept without requests.
    ask_again: Option<Moment>,
    /// Set by the caller before a step that may back off; `0.0..1.0`.
    jitter: f64,
}

impl Lifecycle {
    /// A model that was just seen. Follow with [`Event::Content`] or [`Event::BadContent`].
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            phase: Phase::Stopped,
            tally: Tally::default(),
            held: false,
            removed: false,
            servable: false,
            stale: false,
            refused: false,
            demand: false,
            no_place: false,
            refusals: 0,
            ask_again: None,
            jitter: 0.5,
        }
    }

    /// Where the model is.
    #[must_use]
    pub fn phase(&self) -> &Phase {
        &self.phase
    }

    /// Whether a person stopped it.
    #[must_use]
    pub fn held(&self) -> bool {
        self.held
    }

    /// Deaths so far.
    #[must_use]
    pub fn deaths(&self) -> u64 {
        self.tally.total()
    }

    /// When the next [`Event::Tick`] is due.
    #[must_use]
    pub fn wake_at(&self) -> Option<Moment> {
        match self.phase {
            Phase::Stopped => self.ask_again.filter(|_| self.settings.always_on),
            Phase::Preparing | Phase::Refused => None,
            Phase::Starting { until }
            | Phase::Draining { until, .. }
            | Phase::Stopping { until, .. }
            | Phase::Waiting { until } => Some(until),
            Phase::Ready { idle_since, .. } => {
                idle_since.filter(|_| !self.settings.always_on).map(|since| since + self.settings.idle_timeout)
            }
        }
    }

    /// Whether an end of the instance is what this node asked for, whatever its cause.
    #[must_use]
    pub fn end_is_wanted(&self) -> bool {
        matches!(self.phase, Phase::Stopping { then: Next::Rest | Next::Again, .. })
    }

    /// Whether a request that comes now would have to be refused.
    #[must_use]
    pub fn refuses(&self) -> bool {
        self.held || self.removed || matches!(self.phase, Phase::Waiting { .. } | Phase::Refused)
    }

    /// Whether it is refused for want of a place on a GPU.
    #[must_use]
    pub fn lacks_place(&self) -> bool {
        self.no_place && !self.held && !self.removed && matches!(self.phase, Phase::Waiting { .. } | Phase::Refused)
    }

    /// Whether it was refused a place on a GPU the last time, and is going to ask for one again or does so now.
    #[must_use]
    pub fn asks_again(&self) -> bool {
        self.refusals > 0 && self.servable && !self.held && !self.removed
    }

    /// Takes one event. `jitter` (`0.0..1.0`) spreads back-off.
    pub fn step(&mut self, event: &Event, now: Moment, jitter: f64) -> Vec<Action> {
        self.jitter = jitter;
        let mut actions = Vec::new();
        match event {
            Event::Content(settings) => self.on_content(*settings, now, &mut actions),
            Event::BadContent => {
                self.servable = false;
                self.leave(Next::Rest, now, &mut actions);
            }
            Event::Removed => {
                self.removed = true;
                actions.push(Action::RefuseWaiting);
                self.leave(Next::Rest, now, &mut actions);
            }
            Event::Demand => {
                self.demand = true;
                match self.phase {
                    Phase::Stopped => self.begin(&mut actions),
                    Phase::Draining { ref mut then, .. } | Phase::Stopping { ref mut then, .. }
                        if *then == Next::Rest =>
                    {
                        *then = Next::Again;
                    }
                    Phase::Waiting { .. } | Phase::Refused => actions.push(Action::RefuseWaiting),
                    Phase::Preparing
                    | Phase::Starting { .. }
                    | Phase::Ready { .. }
                    | Phase::Draining { .. }
                    | Phase::Stopping { .. } => {}
                }
                if self.held || self.removed {
                    actions.push(Action::RefuseWaiting);
                }
            }
            Event::Busy => {
                if let Phase::Ready { idle_since, .. } = &mut self.phase {
                    *idle_since = None;
                }
            }
            Event::Idle => self.on_idle(now, &mut actions),
            Event::Prepared => self.on_prepared(now, &mut actions),
            Event::PrepareFailed { permanent } => {
                if self.phase == Phase::Preparing {
                    self.fail(*permanent, None, now, &mut actions);
                }
            }
            Event::StartFailed => {
                if matches!(self.phase, Phase::Starting { .. }) {
                    self.fail(false, None, now, &mut actions);
                } else {
                    self.on_gone(now, &mut actions);
                }
            }
            Event::Placed => {
                self.refusals = 0;
                if let Phase::Starting { until } = &mut self.phase {
                    *until = now + self.settings.startup;
                }
            }
            Event::NoPlace { hopeless } => self.on_no_place(*hopeless, now, &mut actions),
            Event::Displaced => match self.phase {
                Phase::Starting { .. } | Phase::Ready { .. } => self.leave(Next::Rest, now, &mut actions),
                Phase::Stopped
                | Phase::Preparing
                | Phase::Draining { .. }
                | Phase::Stopping { .. }
                | Phase::Waiting { .. }
                | Phase::Refused => {}
            },
            Event::Ready => {
                if matches!(self.phase, Phase::Starting { .. }) {
                    self.demand = false;
                    self.phase = Phase::Ready { since: now, idle_since: Some(now) };
                    actions.push(Action::Open);
                }
            }
            Event::EngineRefused => self.refused = true,
            Event::Adopted { ready, current } => self.on_adopted(*ready, *current, now, &mut actions),
            Event::Gone => self.on_gone(now, &mut actions),
            Event::Unresponsive => match self.phase {
                Phase::Starting { .. } | Phase::Ready { .. } => self.kill(Next::Replace, now, &mut actions),
                Phase::Draining { then, .. } => self.kill(then, now, &mut actions),
                Phase::Stopped | Phase::Preparing | Phase::Stopping { .. } | Phase::Waiting { .. } | Phase::Refused => {
                }
            },
            Event::LauncherLost => match self.phase {
                Phase::Preparing => self.phase = Phase::Waiting { until: now + ASK_AGAIN },
                // A start that was asked for may or may not have happened: the instance, if any, is found and adopted.
                Phase::Starting { .. }
                | Phase::Stopped
                | Phase::Ready { .. }
                | Phase::Draining { .. }
                | Phase::Stopping { .. }
                | Phase::Waiting { .. }
                | Phase::Refused => {}
            },
            Event::Start => {
                self.held = false;
                self.forgive();
                match &mut self.phase {
                    Phase::Stopped | Phase::Waiting { .. } | Phase::Refused => self.begin(&mut actions),
                    Phase::Draining { then, .. } | Phase::Stopping { then, .. } => *then = Next::Again,
                    Phase::Preparing | Phase::Starting { .. } | Phase::Ready { .. } => {}
                }
            }
            Event::Stop => {
                self.held = true;
                actions.push(Action::RefuseWaiting);
                self.leave(Next::Rest, now, &mut actions);
            }
            Event::Restart => {
                self.held = false;
                self.forgive();
                self.leave(Next::Again, now, &mut actions);
            }
            Event::Tick => self.on_tick(now, &mut actions),
        }
        if self.removed && self.phase == Phase::Stopped {
            actions.push(Action::End);
        }
        actions
    }

    fn on_content(&mut self, settings: Settings, now: Moment, actions: &mut Vec<Action>) {
        self.settings = settings;
        self.servable = true;
        self.removed = false;
        self.forgive();
        match self.phase {
            Phase::Stopped | Phase::Waiting { .. } | Phase::Refused => {
                self.phase = Phase::Stopped;
                if settings.always_on || self.demand {
                    self.begin(actions);
                }
            }
            Phase::Preparing => actions.push(Action::Prepare),
            Phase::Starting { .. } | Phase::Ready { .. } | Phase::Draining { .. } | Phase::Stopping { .. } => {
                self.leave(Next::Again, now, actions);
            }
        }
    }

    fn on_idle(&mut self, now: Moment, actions: &mut Vec<Action>) {
        match &mut self.phase {
            Phase::Ready { idle_since, .. } => *idle_since = Some(now),
            Phase::Draining { then, .. } => {
                let then = *then;
                self.stop(then, now, actions);
            }
            Phase::Stopped
            | Phase::Preparing
            | Phase::Starting { .. }
            | Phase::Stopping { .. }
            | Phase::Waiting { .. }
            | Phase::Refused => {}
        }
    }

    fn on_prepared(&mut self, now: Moment, actions: &mut Vec<Action>) {
        if self.phase == Phase::Preparing {
            self.stale = false;
            self.refused = false;
            self.phase = Phase::Starting { until: now + self.settings.startup };
            actions.push(Action::StartInstance);
        }
    }

    fn on_no_place(&mut self, hopeless: bool, now: Moment, actions: &mut Vec<Action>) {
        if !matches!(self.phase, Phase::Starting { .. }) {
            return self.on_gone(now, actions);
        }
        self.demand = false;
        self.no_place = true;
        self.refusals = self.refusals.saturating_add(1);
        if hopeless {
            self.phase = Phase::Refused;
        } else {
            self.phase = Phase::Waiting { until: now + FIRST_WITHOUT_PLACE };
            self.ask_again = Some(now + without_place(self.refusals, self.jitter));
        }
        actions.push(Action::RefuseWaiting);
    }

    fn on_adopted(&mut self, ready: bool, current: bool, now: Moment, actions: &mut Vec<Action>) {
        self.stale = !current;
        if ready {
            self.phase = Phase::Ready { since: now, idle_since: Some(now) };
            actions.push(Action::Open);
        } else {
            self.phase = Phase::Starting { until: now + self.settings.startup };
        }
        if !current || !self.servable {
            let then = if self.servable { Next::Again } else { Next::Rest };
            self.leave(then, now, actions);
        }
    }

    fn on_gone(&mut self, now: Moment, actions: &mut Vec<Action>) {
        match self.phase {
            Phase::Starting { .. } => self.fail(self.refused, None, now, actions),
            Phase::Ready { since, .. } => {
                actions.push(Action::Close);
                self.fail(self.refused, Some(since), now, actions);
            }
            Phase::Draining { then, .. } | Phase::Stopping { then, .. } => {
                actions.push(Action::Close);
                match then {
                    Next::Rest => self.phase = Phase::Stopped,
                    Next::Again => self.begin(actions),
                    Next::Replace => self.fail(false, None, now, actions),
                }
            }
            Phase::Stopped | Phase::Preparing | Phase::Waiting { .. } | Phase::Refused => {}
        }
    }

    fn on_tick(&mut self, now: Moment, actions: &mut Vec<Action>) {
        if self.wake_at().is_none_or(|at| at > now) {
            return;
        }
        match self.phase {
            Phase::Starting { .. } => self.kill(Next::Replace, now, actions),
            Phase::Ready { .. } => self.leave(Next::Rest, now, actions),
            Phase::Draining { then, .. } => {
                actions.push(Action::CancelInFlight);
                self.stop(then, now, actions);
            }
            Phase::Stopping { then, .. } => self.kill(then, now, actions),
            Phase::Waiting { .. } => {
                self.phase = Phase::Stopped;
                // Without a place it refuses no longer: the next request asks for one, if it does not itself before.
                if !self.no_place || self.wake_at().is_some_and(|at| at <= now) {
                    self.begin(actions);
                }
            }
            Phase::Stopped => self.begin(actions),
            Phase::Preparing | Phase::Refused => {}
        }
    }

    /// New content or a person's word: the past does not count.
    fn forgive(&mut self) {
        self.tally.forgive();
        self.refusals = 0;
        self.ask_again = None;
    }

    /// The way up, if there is one.
    fn begin(&mut self, actions: &mut Vec<Action>) {
        self.ask_again = None;
        if self.held || self.removed || !self.servable {
            self.phase = Phase::Stopped;
            actions.push(Action::RefuseWaiting);
            return;
        }
        self.no_place = false;
        self.phase = Phase::Preparing;
        actions.push(Action::Prepare);
    }

    /// The way down, gently: what is in flight may finish within `drain`.
    fn leave(&mut self, then: Next, now: Moment, actions: &mut Vec<Action>) {
        match &mut self.phase {
            Phase::Stopped | Phase::Waiting { .. } | Phase::Refused => {
                self.phase = Phase::Stopped;
                match then {
                    Next::Rest => self.ask_again = None,
                    Next::Again | Next::Replace => self.begin(actions),
                }
            }
            Phase::Preparing => match then {
                Next::Rest => self.phase = Phase::Stopped,
                Next::Again | Next::Replace => actions.push(Action::Prepare),
            },
            Phase::Starting { .. } => self.kill(then, now, actions),
            Phase::Ready { idle_since, .. } => {
                let idle = idle_since.is_some();
                actions.push(Action::Close);
                if idle {
                    self.stop(then, now, actions);
                } else {
                    self.phase = Phase::Draining { until: now + self.settings.drain, then };
                }
            }
            Phase::Draining { then: planned, .. } | Phase::Stopping { then: planned, .. } => *planned = then,
        }
    }

    fn stop(&mut self, then: Next, now: Moment, actions: &mut Vec<Action>) {
        self.phase = Phase::Stopping { until: now + STOP_GRACE + STOP_GRACE, then };
        actions.push(Action::StopInstance);
    }

    fn kill(&mut self, then: Next, now: Moment, actions: &mut Vec<Action>) {
        self.phase = Phase::Stopping { until: now + GONE_AFTER_KILL, then };
        actions.push(Action::Close);
        actions.push(Action::KillInstance);
    }

    /// A death: at once again, later again, or never with this content.
    fn fail(&mut self, permanent: bool, ready_since: Option<Moment>, now: Moment, actions: &mut Vec<Action>) {
        let pause = self.tally.death(ready_since, now, self.jitter);
        if permanent {
            self.phase = Phase::Refused;
            actions.push(Action::RefuseWaiting);
        } else if pause.is_zero() {
            self.begin(actions);
        } else {
            self.phase = Phase::Waiting { until: now + pause };
            actions.push(Action::RefuseWaiting);
        }
    }
}

#[cfg(test)]
#[path = "lifecycle_tests.rs"]
mod tests;
