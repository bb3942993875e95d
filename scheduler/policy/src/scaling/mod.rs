//! Number of instances that a model's requests need: fast up, slow down.
//!
//! The model's actor reports its load (requests in flight and queued) whenever it changes, and asks how many instances
//! are wanted. One instance is wanted for each `concurrency` of the sustained load: the average over [`UP`], but never
//! more than the current load, since finished requests need no instance. What was wanted stays wanted for [`DOWN`], so
//! that instances do not come and go with every pause.
//!
//! Invariants:
//! - between `min` and `max` instances are wanted, and at least one while there is a request;
//! - a load that stays is wanted in full after [`UP`] and a tenth of a second; one that is gone is forgotten a second
//!   after [`DOWN`];
//! - neither time nor memory depends on how often the load changes.

use super::{Moment, nanos};
use std::borrow::Cow;
use std::time::Duration;

/// Window over which the load is averaged.
pub const UP: Duration = Duration::from_secs(2);
/// Time for which a number of instances stays wanted.
pub const DOWN: Duration = Duration::from_secs(30);

const UP_NANOS: u64 = 2_000_000_000;
/// Resolution of the average: exact but for the far end of [`UP`], where the load is taken to be even within a step.
const STEP_NANOS: u64 = 100_000_000;
/// [`UP`] in steps, and one for the far end.
const STEPS: usize = 21;
const SECOND_NANOS: u64 = 1_000_000_000;
/// [`DOWN`] in seconds, and one for the second that has begun.
const SECONDS: usize = 31;
/// Load that wants every instance a manifest can ask for; a higher load is counted as this.
const MAX_LOAD: u32 = 1 << 20;

/// Scaling bounds of a manifest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Instances kept without requests.
    pub min: u32,
    /// Most instances.
    pub max: u32,
    /// Requests one instance takes at once; at least 1.
    pub concurrency: u32,
}

/// Why this number of instances is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScalingReason {
    /// Nothing calls for more than `min`.
    Min,
    /// The current load.
    Load,
    /// The load within the last [`DOWN`].
    RecentLoad,
    /// The load calls for more than `max`.
    Max,
}

/// Derivation of the wanted number, for operators.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Explanation {
    /// Requests in flight and queued.
    pub load: u32,
    /// Average load over [`UP`].
    pub average: f64,
    /// Greatest sustained load within the last [`DOWN`].
    pub greatest: f64,
    /// Number of instances wanted.
    pub wanted: u32,
    /// Reason for the number.
    pub reason: ScalingReason,
}

/// Load of a model over time.
#[derive(Debug, Clone)]
pub struct Demand {
    load: u64,
    /// Time up to which the load is counted, in nanoseconds.
    at: u64,
    /// Load times its nanoseconds in each of the last steps, indexed by the step's number modulo their count.
    steps: [u64; STEPS],
    /// Sum of `steps`.
    sum: u64,
    /// Greatest sustained load, times [`UP_NANOS`], in each of the last seconds, indexed likewise.
    seconds: [u64; SECONDS],
}

impl Default for Demand {
    fn default() -> Self {
        Self { load: 0, at: 0, steps: [0; STEPS], sum: 0, seconds: [0; SECONDS] }
    }
}

impl Demand {
    /// Records the load from `now` on: requests in flight and queued.
    pub fn observe(&mut self, load: u32, now: Moment) {
        self.settle(nanos(now));
        self.load = load.min(MAX_LOAD).into();
        self.note();
    }

    /// Number of instances wanted.
    #[must_use]
    pub fn wanted(&self, now: Moment, bounds: Bounds) -> u32 {
        self.settled(now).needs(bounds).wanted
    }

    /// Derivation of the wanted number.
    #[must_use]
    pub fn explain(&self, now: Moment, bounds: Bounds) -> Explanation {
        let demand = self.settled(now);
        let Needs { now, recent, wanted } = demand.needs(bounds);
        let reason = if recent <= bounds.min {
            ScalingReason::Min
        } else if recent > bounds.max {
            ScalingReason::Max
        } else if recent > now {
            ScalingReason::RecentLoad
        } else {
            ScalingReason::Load
        };
        let of_window = |value: u64| value as f64 / UP_NANOS as f64;
        let (average, greatest) = (of_window(demand.integral()), of_window(demand.greatest()));
        Explanation { load: u32::try_from(demand.load).unwrap_or(u32::MAX), average, greatest, wanted, reason }
    }

    /// Time at which another number may be wanted although the load stays the same.
    #[must_use]
    pub fn wake_at(&self, now: Moment, bounds: Bounds) -> Option<Moment> {
        let demand = self.settled(now);
        let needs = demand.needs(bounds);
        let in_full = instances(demand.load * UP_NANOS, bounds).min(bounds.max);
        let rise = (in_full > needs.wanted).then(|| (demand.at / STEP_NANOS + 1) * STEP_NANOS);
        // Fewer may be wanted once the newest second in which as many were needed is forgotten.
        let this = demand.at / SECOND_NANOS;
        let falls = needs.wanted > needs.now.max(bounds.min);
        let mut known = (this.saturating_sub(SECONDS as u64 - 1)..=this).rev().filter(|_| falls);
        let newest = known.find(|second| instances(demand.second(*second), bounds) >= needs.wanted);
        let fall = newest.map(|second| (second + SECONDS as u64) * SECOND_NANOS);
        rise.into_iter().chain(fall).min().map(Moment::from_nanos)
    }

    fn needs(&self, bounds: Bounds) -> Needs {
        let now = instances(self.sustained(), bounds).max(u32::from(self.load > 0));
        let recent = instances(self.greatest(), bounds).max(now);
        Needs { now, recent, wanted: recent.min(bounds.max).max(bounds.min) }
    }

    /// State as of `now`; without a copy if the load was recorded just now.
    fn settled(&self, now: Moment) -> Cow<'_, Self> {
        let mut settled = Cow::Borrowed(self);
        if nanos(now) > self.at {
            settled.to_mut().settle(nanos(now));
        }
        settled
    }

    /// Counts the load up to now.
    fn settle(&mut self, now: u64) {
        if now <= self.at {
            return;
        }
        let (last, this) = (self.at / STEP_NANOS, now / STEP_NANOS);
        if last == this {
            self.count(this, self.load * (now - self.at));
        } else {
            self.count(last, self.load * ((last + 1) * STEP_NANOS - self.at));
            for step in (last + 1).max((this + 1).saturating_sub(STEPS as u64))..=this {
                self.forget_step(step);
                self.count(step, self.load * (now - step * STEP_NANOS).min(STEP_NANOS));
            }
            let (last, this) = (self.at / SECOND_NANOS, now / SECOND_NANOS);
            for second in (last + 1).max((this + 1).saturating_sub(SECONDS as u64))..=this {
                if let Some(noted) = self.seconds.get_mut(place(second, SECONDS)) {
                    *noted = 0;
                }
            }
        }
        self.at = now;
        self.note();
    }

    fn count(&mut self, step: u64, amount: u64) {
        if let Some(counted) = self.steps.get_mut(place(step, STEPS)) {
            *counted += amount;
            self.sum += amount;
        }
    }

    /// Clears the slot of a step that begins: it holds the step that has left the window.
    fn forget_step(&mut self, step: u64) {
        if let Some(counted) = self.steps.get_mut(place(step, STEPS)) {
            self.sum -= std::mem::take(counted);
        }
    }

    /// Records the sustained load. It does not fall while the load stays, so the value at the end is the greatest.
    fn note(&mut self) {
        let sustained = self.sustained();
        if let Some(noted) = self.seconds.get_mut(place(self.at / SECOND_NANOS, SECONDS)) {
            *noted = sustained.max(*noted);
        }
    }

    /// Load of the last [`UP`], times its nanoseconds.
    fn integral(&self) -> u64 {
        let this = self.at / STEP_NANOS;
        let oldest = self.steps.get(place(this + 1, STEPS)).copied().unwrap_or(0);
        // In microseconds: the product would not fit otherwise.
        let passed = (self.at % STEP_NANOS) / 1000;
        self.sum - oldest * passed / (STEP_NANOS / 1000)
    }

    fn sustained(&self) -> u64 {
        self.integral().min(self.load * UP_NANOS)
    }

    fn greatest(&self) -> u64 {
        self.seconds.iter().copied().max().unwrap_or(0)
    }

    fn second(&self, second: u64) -> u64 {
        self.seconds.get(place(second, SECONDS)).copied().unwrap_or(0)
    }
}

/// Instances needed by the current load, by the load of the last [`DOWN`], and wanted within the bounds.
struct Needs {
    now: u32,
    recent: u32,
    wanted: u32,
}

fn instances(load: u64, bounds: Bounds) -> u32 {
    u32::try_from(load.div_ceil(UP_NANOS * u64::from(bounds.concurrency.max(1)))).unwrap_or(u32::MAX)
}

fn place(number: u64, count: usize) -> usize {
    (number % count as u64) as usize
}

#[cfg(test)]
mod tests;
