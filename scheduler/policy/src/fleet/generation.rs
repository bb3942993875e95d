//! State of one generation: whether it may be started, and how its starts went so far.
//!
//! ```text
//!   Unprepared ──needed──▶ Preparing ──▶ Prepared ──▶ instances start
//!       ▲                     │ failed     │ capacity refused
//!       │                     ▼            ▼
//!       └──── due ────── BackingOff     NoCapacity ──── due, or capacity freed ──▶ Unprepared
//!                             │
//!                             └── failed for good ──▶ Refused ──▶ new content or a command ──▶ Unprepared
//! ```

use super::events::Settings;
use super::model_state::ModelState;
use crate::backoff::FailureTally;
use crate::{Generation, Moment};
use std::time::Duration;

/// Pause before capacity is requested again after a refusal; each further refusal doubles it...
pub const FIRST_CAPACITY_PAUSE: Duration = Duration::from_secs(2);
/// ... up to this.
pub const LONGEST_CAPACITY_PAUSE: Duration = Duration::from_secs(30);
/// Pause before a lost launcher is asked again, and before a request of a client may ask again for refused capacity.
pub const LAUNCHER_RETRY: Duration = Duration::from_millis(500);

/// Returns whether instances of a generation may be started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StartState {
    /// Startable; the environment has not been asked for.
    Unprepared,
    /// The launcher prepares the environment, within a time that it bounds itself.
    Preparing,
    /// The environment is there: instances can be started.
    Prepared,
    /// A start failed; the next try is due at `until`.
    BackingOff {
        /// Time of the next try.
        until: Moment,
    },
    /// The content cannot work: no try before the content or a command changes that.
    Refused,
    /// Capacity for a first or further instance was refused. Nothing died.
    NoCapacity {
        /// Time of the next request for capacity, if one is still wanted; `None` when asking again cannot help.
        retry_at: Option<Moment>,
    },
}

impl StartState {
    /// Returns whether an instance can be there soon without anyone's intervention.
    pub(super) fn is_coming(self) -> bool {
        match self {
            Self::Unprepared | Self::Preparing | Self::Prepared | Self::NoCapacity { retry_at: Some(_) } => true,
            Self::BackingOff { .. } | Self::Refused | Self::NoCapacity { retry_at: None } => false,
        }
    }

    /// State shown for a generation without instances.
    #[must_use]
    pub fn resting_state(self) -> ModelState {
        match self {
            Self::Preparing => ModelState::Preparing,
            Self::BackingOff { .. } | Self::Refused | Self::NoCapacity { .. } => ModelState::Failed,
            Self::Unprepared | Self::Prepared => ModelState::Stopped,
        }
    }

    /// Time of the next try, if there is one.
    #[must_use]
    pub fn retry_at(self) -> Option<Moment> {
        match self {
            Self::BackingOff { until } => Some(until),
            Self::NoCapacity { retry_at } => retry_at,
            Self::Unprepared | Self::Preparing | Self::Prepared | Self::Refused => None,
        }
    }
}

/// Start state and history of one generation.
#[derive(Debug, Clone)]
pub(super) struct GenerationState {
    pub(super) settings: Settings,
    /// The generation served and had a ready instance once.
    pub(super) was_ready: bool,
    pub(super) start_state: StartState,
    /// A request for the environment is unanswered by the launcher, even if it is not needed any more.
    asked: bool,
    tally: FailureTally,
    /// Last pause before a new request for capacity; zero after a success.
    capacity_pause: Duration,
    capacity_refused_at: Option<Moment>,
}

impl GenerationState {
    pub(super) fn new(settings: Settings) -> Self {
        Self {
            settings,
            was_ready: false,
            start_state: StartState::Unprepared,
            asked: false,
            tally: FailureTally::default(),
            capacity_pause: Duration::ZERO,
            capacity_refused_at: None,
        }
    }

    /// New content or a command: earlier failures do not count.
    pub(super) fn reset_backoff(&mut self) {
        self.tally.reset();
        self.reset_capacity_pause();
        match self.start_state {
            StartState::BackingOff { .. } | StartState::Refused | StartState::NoCapacity { .. } => {
                self.start_state = StartState::Unprepared;
            }
            StartState::Unprepared | StartState::Preparing | StartState::Prepared => {}
        }
    }

    /// Counts a death: the next try is at once, later, or never with this content.
    pub(super) fn record_failure(&mut self, permanent: bool, ready_since: Option<Moment>, now: Moment, jitter: f64) {
        let pause = self.tally.record_failure(ready_since, now, jitter);
        if permanent {
            self.start_state = StartState::Refused;
        } else if !pause.is_zero() {
            self.start_state = StartState::BackingOff { until: now + pause };
        } else if self.start_state != StartState::Preparing {
            self.start_state = StartState::Unprepared;
        }
    }

    /// Counts a build that timed out as a death; `after` is the shortest pause.
    pub(super) fn record_build_timeout(&mut self, after: Duration, now: Moment, jitter: f64) {
        let pause = self.tally.record_failure(None, now, jitter).max(after);
        self.start_state = StartState::BackingOff { until: now + pause };
    }

    /// An instance ended for its stuck handlers: nothing is wrong with this content, and capacity is free.
    pub(super) fn on_stuck_instance_ended(&mut self) {
        self.reset_capacity_pause();
        if matches!(self.start_state, StartState::NoCapacity { .. }) {
            self.start_state = StartState::Unprepared;
        }
    }

    /// The environment is needed. Returns whether the launcher has to be asked.
    pub(super) fn prepare(&mut self) -> bool {
        self.start_state = StartState::Preparing;
        !std::mem::replace(&mut self.asked, true)
    }

    pub(super) fn prepared(&mut self) {
        self.asked = false;
        if self.start_state == StartState::Preparing {
            self.start_state = StartState::Prepared;
        }
    }

    /// Preparing failed. Returns whether the environment is still needed.
    pub(super) fn on_preparation_failed(&mut self) -> bool {
        self.asked = false;
        let matters = self.start_state == StartState::Preparing;
        if matters {
            self.start_state = StartState::Unprepared;
        }
        matters
    }

    /// The environment is not needed any more. Returns whether the launcher is still preparing it.
    pub(super) fn cancel_preparation(&mut self) -> bool {
        if self.start_state == StartState::Preparing {
            self.start_state = StartState::Unprepared;
        }
        std::mem::take(&mut self.asked)
    }

    /// The launcher is lost: its answers will not come.
    pub(super) fn launcher_lost(&mut self, now: Moment) {
        if self.start_state == StartState::Preparing {
            self.launcher_unavailable(now);
        }
        self.asked = false;
    }

    /// The launcher cannot be asked.
    pub(super) fn launcher_unavailable(&mut self, now: Moment) {
        self.asked = false;
        match self.start_state {
            StartState::Unprepared | StartState::Preparing | StartState::Prepared => {
                self.start_state = StartState::BackingOff { until: now + LAUNCHER_RETRY };
            }
            StartState::BackingOff { .. } | StartState::Refused | StartState::NoCapacity { .. } => {}
        }
    }

    /// Capacity was refused.
    pub(super) fn on_no_capacity(&mut self, permanent: bool, now: Moment) {
        self.capacity_refused_at = Some(now);
        if permanent {
            self.start_state = StartState::NoCapacity { retry_at: None };
        } else {
            self.delay_capacity_request(now);
        }
    }

    /// Capacity was refused or taken away: the next request waits. Several refusals at a time count once.
    pub(super) fn delay_capacity_request(&mut self, now: Moment) {
        match self.start_state {
            StartState::Unprepared | StartState::Prepared => {
                self.capacity_pause = (self.capacity_pause * 2).clamp(FIRST_CAPACITY_PAUSE, LONGEST_CAPACITY_PAUSE);
                self.start_state = StartState::NoCapacity { retry_at: Some(now + self.capacity_pause) };
            }
            StartState::Preparing
            | StartState::BackingOff { .. }
            | StartState::Refused
            | StartState::NoCapacity { .. } => {}
        }
    }

    /// Returns whether the last request for capacity, or the ones before it, were refused.
    pub(super) fn lacked_capacity(&self) -> bool {
        matches!(self.start_state, StartState::NoCapacity { .. }) || !self.capacity_pause.is_zero()
    }

    /// Starts the pauses from the shortest again.
    pub(super) fn reset_capacity_pause(&mut self) {
        self.capacity_pause = Duration::ZERO;
        self.capacity_refused_at = None;
    }

    /// A request of a client arrived: capacity is requested at once, unless it was refused only just.
    pub(super) fn request_capacity_on_demand(&mut self, now: Moment) {
        let recently = self.capacity_refused_at.is_some_and(|at| now < at + LAUNCHER_RETRY);
        if matches!(self.start_state, StartState::NoCapacity { retry_at: Some(_) }) && !recently {
            self.start_state = StartState::Unprepared;
        }
    }

    /// Capacity was freed somewhere: it is requested at once; if refused, the pauses go on growing.
    pub(super) fn on_capacity_freed(&mut self) {
        if matches!(self.start_state, StartState::NoCapacity { retry_at: Some(_) }) {
            self.start_state = StartState::Unprepared;
        }
    }

    pub(super) fn tick(&mut self, now: Moment) {
        if self.start_state.retry_at().is_some_and(|at| at <= now) {
            self.start_state = StartState::Unprepared;
        }
    }
}

/// How a candidate replaces the serving generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RolloutStrategy {
    /// The candidate's instances start beside the serving ones.
    Parallel,
    /// The serving instances stop first: there was no capacity beside them, and either the `Restart` command allowed it
    /// or the model is unused.
    Recreate,
}

/// The newest generation, on its way to the traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Candidate {
    pub(super) generation: Generation,
    /// Ready instances before the traffic moves: as many as served when the first one was started, or at any time
    /// since.
    pub(super) goal: Option<u32>,
    /// Instances that fit on the node; `None` before capacity was refused.
    pub(super) fits: Option<u32>,
    pub(super) strategy: RolloutStrategy,
}

impl Candidate {
    pub(super) fn new(generation: Generation) -> Self {
        Self { generation, goal: None, fits: None, strategy: RolloutStrategy::Parallel }
    }

    /// `count`, as far as it fits on the node.
    pub(super) fn fitting(&self, count: u32) -> u32 {
        self.fits.map_or(count, |fits| count.min(fits))
    }
}
