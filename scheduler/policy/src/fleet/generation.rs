//! What is known of one generation: whether it may be started, and how it did so far.

use super::events::Settings;
use super::view::ModelState;
use crate::backoff::Tally;
use crate::{Generation, Moment};
use std::time::Duration;

/// Who had no place asks for one again after this, and after twice as long each time...
pub const PLACE_AGAIN: Duration = Duration::from_secs(2);
/// ... up to this.
pub const PLACE_AGAIN_AT_MOST: Duration = Duration::from_secs(30);
/// A launcher that was lost is asked again after this; and a request asks again for a place that was refused longer ago.
pub const ASK_AGAIN: Duration = Duration::from_millis(500);

/// Whether a generation may be started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// Nothing speaks against it, and nothing was asked.
    Fresh,
    /// The launcher makes its environment. It bounds that time itself.
    Preparing,
    /// Its environment is there.
    Prepared,
    /// It failed; the next try is at `until`.
    Waiting {
        /// The moment of the next try.
        until: Moment,
    },
    /// It cannot work: not before somebody changes something.
    Refused,
    /// There was no place for (another) one of its instances. Nothing died.
    NoPlace {
        /// When it asks again if it is wanted still; `None` when that cannot help.
        again: Option<Moment>,
    },
}

impl Standing {
    /// An instance of it can be there without anybody's doing.
    pub(super) fn is_coming(self) -> bool {
        match self {
            Self::Fresh | Self::Preparing | Self::Prepared | Self::NoPlace { again: Some(_) } => true,
            Self::Waiting { .. } | Self::Refused | Self::NoPlace { again: None } => false,
        }
    }

    /// What a generation without instances is.
    #[must_use]
    pub fn at_rest(self) -> ModelState {
        match self {
            Self::Preparing => ModelState::Preparing,
            Self::Waiting { .. } | Self::Refused | Self::NoPlace { .. } => ModelState::Failed,
            Self::Fresh | Self::Prepared => ModelState::Stopped,
        }
    }

    /// When it is tried again, if it is.
    #[must_use]
    pub fn wake_at(self) -> Option<Moment> {
        match self {
            Self::Waiting { until } => Some(until),
            Self::NoPlace { again } => again,
            Self::Fresh | Self::Preparing | Self::Prepared | Self::Refused => None,
        }
    }
}

#[derive(Debug, Clone)]
pub(super) struct Record {
    pub(super) settings: Settings,
    /// It served and was ready once.
    pub(super) proven: bool,
    pub(super) standing: Standing,
    /// The launcher was asked for its environment and has not answered yet, whatever became of it meanwhile.
    asked: bool,
    tally: Tally,
    /// The last pause for want of a place.
    place_pause: Duration,
    /// When a place was refused.
    place_refused: Option<Moment>,
}

impl Record {
    pub(super) fn new(settings: Settings) -> Self {
        Self {
            settings,
            proven: false,
            standing: Standing::Fresh,
            asked: false,
            tally: Tally::default(),
            place_pause: Duration::ZERO,
            place_refused: None,
        }
    }

    /// New content or a person's word: the past does not count.
    pub(super) fn forgive(&mut self) {
        self.tally.forgive();
        self.forget_place();
        match self.standing {
            Standing::Waiting { .. } | Standing::Refused | Standing::NoPlace { .. } => self.standing = Standing::Fresh,
            Standing::Fresh | Standing::Preparing | Standing::Prepared => {}
        }
    }

    /// A death: at once again, later again, or never with this content.
    pub(super) fn fail(&mut self, permanent: bool, ready_since: Option<Moment>, now: Moment, jitter: f64) {
        let pause = self.tally.death(ready_since, now, jitter);
        if permanent {
            self.standing = Standing::Refused;
        } else if !pause.is_zero() {
            self.standing = Standing::Waiting { until: now + pause };
        } else if self.standing != Standing::Preparing {
            self.standing = Standing::Fresh;
        }
    }

    /// Its environment took too long to make: that counts as a death, and `after` is the least pause.
    pub(super) fn timed_out(&mut self, after: Duration, now: Moment, jitter: f64) {
        let pause = self.tally.death(None, now, jitter).max(after);
        self.standing = Standing::Waiting { until: now + pause };
    }

    /// The end of an instance for its stuck handlers: nothing is wrong with this content, and its place is free.
    pub(super) fn overrun(&mut self) {
        self.forget_place();
        if matches!(self.standing, Standing::NoPlace { .. }) {
            self.standing = Standing::Fresh;
        }
    }

    /// Its environment is needed. Whether the launcher has to be asked.
    pub(super) fn prepare(&mut self) -> bool {
        self.standing = Standing::Preparing;
        !std::mem::replace(&mut self.asked, true)
    }

    pub(super) fn prepared(&mut self) {
        self.asked = false;
        if self.standing == Standing::Preparing {
            self.standing = Standing::Prepared;
        }
    }

    /// The environment cannot be made. Whether that matters still.
    pub(super) fn unprepared(&mut self) -> bool {
        self.asked = false;
        let matters = self.standing == Standing::Preparing;
        if matters {
            self.standing = Standing::Fresh;
        }
        matters
    }

    /// Its environment is not needed any more. Whether the launcher makes it still.
    pub(super) fn unprepare(&mut self) -> bool {
        if self.standing == Standing::Preparing {
            self.standing = Standing::Fresh;
        }
        std::mem::take(&mut self.asked)
    }

    /// There is no answer to come.
    pub(super) fn launcher_lost(&mut self, now: Moment) {
        if self.standing == Standing::Preparing {
            self.launcher_away(now);
        }
        self.asked = false;
    }

    /// It cannot be asked.
    pub(super) fn launcher_away(&mut self, now: Moment) {
        self.asked = false;
        match self.standing {
            Standing::Fresh | Standing::Preparing | Standing::Prepared => {
                self.standing = Standing::Waiting { until: now + ASK_AGAIN };
            }
            Standing::Waiting { .. } | Standing::Refused | Standing::NoPlace { .. } => {}
        }
    }

    /// A place was refused.
    pub(super) fn no_place(&mut self, hopeless: bool, now: Moment) {
        self.place_refused = Some(now);
        if hopeless {
            self.standing = Standing::NoPlace { again: None };
        } else {
            self.pause_for_place(now);
        }
    }

    /// A place was refused or taken away: it is not asked for again at once. Several at a time count once.
    pub(super) fn pause_for_place(&mut self, now: Moment) {
        match self.standing {
            Standing::Fresh | Standing::Prepared => {
                self.place_pause = (self.place_pause * 2).clamp(PLACE_AGAIN, PLACE_AGAIN_AT_MOST);
                self.standing = Standing::NoPlace { again: Some(now + self.place_pause) };
            }
            Standing::Preparing | Standing::Waiting { .. } | Standing::Refused | Standing::NoPlace { .. } => {}
        }
    }

    /// Whether there was no place for it, the last time or the times before that one.
    pub(super) fn lacked_place(&self) -> bool {
        matches!(self.standing, Standing::NoPlace { .. }) || !self.place_pause.is_zero()
    }

    /// The pause begins small again.
    pub(super) fn forget_place(&mut self) {
        self.place_pause = Duration::ZERO;
        self.place_refused = None;
    }

    /// A request comes: does it ask for a place at once? Not when one was refused only just.
    pub(super) fn ask_for_place(&mut self, now: Moment) {
        let recently = self.place_refused.is_some_and(|at| now < at + ASK_AGAIN);
        if matches!(self.standing, Standing::NoPlace { again: Some(_) }) && !recently {
            self.standing = Standing::Fresh;
        }
    }

    /// A place is asked for again at once; should it be refused, the pause goes on growing.
    pub(super) fn room_appeared(&mut self) {
        if matches!(self.standing, Standing::NoPlace { again: Some(_) }) {
            self.standing = Standing::Fresh;
        }
    }

    pub(super) fn tick(&mut self, now: Moment) {
        if self.standing.wake_at().is_some_and(|at| at <= now) {
            self.standing = Standing::Fresh;
        }
    }
}

/// The newest generation, on its way to the traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Candidate {
    pub(super) generation: Generation,
    /// So many instances are ready before traffic moves: as many as served when the first one was started, or have since.
    pub(super) goal: Option<u32>,
    /// There is room for so many, as far as is known.
    pub(super) most: u32,
    /// There was no room beside the serving generation, and a person said that it takes its place, or nobody asks for that
    /// one.
    pub(super) in_place: bool,
}

impl Candidate {
    pub(super) fn new(generation: Generation) -> Self {
        Self { generation, goal: None, most: u32::MAX, in_place: false }
    }
}
