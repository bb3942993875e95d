//! History of models in bounded memory: an hour in steps of ten seconds, a day in steps of two minutes. Pure.
//!
//! A lane is what one model does in one place: its GPU memory on one card, or its requests. It has two levels, of which
//! each is a ring of samples: two averages and two sums over a step. Invariants: there are at most [`LANES`] lanes, of
//! 17,280 bytes each, whatever the node does; further lanes are added up in one without a name. A lane without
//! activity for a day is gone.

mod axis;
mod encode;
mod series;

use axis::Axis;
pub(crate) use encode::Step;
use series::Series;
use std::collections::BTreeMap;

/// Most lanes.
const LANES: usize = 512;
/// Longest name of a lane that is kept, in bytes: that of a model.
const LONGEST_NAME: usize = 256;

/// An hour.
const HOUR: Resolution = Resolution { seconds: 10, steps: 360 };
/// A day.
const DAY: Resolution = Resolution { seconds: 120, steps: 720 };
/// Both levels, the finer one first.
const RESOLUTIONS: [Resolution; 2] = [HOUR, DAY];

/// Length of a step, and number of steps.
#[derive(Debug, Clone, Copy)]
struct Resolution {
    seconds: u64,
    steps: usize,
}

/// Span of time that a page can show.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Span {
    /// The last hour.
    Hour,
    /// The last 24 hours.
    Day,
}

impl Span {
    /// All spans.
    pub const ALL: [Self; 2] = [Self::Hour, Self::Day];

    /// Name in a URL.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Hour => "hour",
            Self::Day => "day",
        }
    }

    fn level(self) -> usize {
        match self {
            Self::Hour => 0,
            Self::Day => 1,
        }
    }
}

/// Two averages and two sums over one step.
pub(crate) type Sample = [u32; 4];
/// Values of one moment: two amounts, and two increments since the last moment. Of a card: KiB on it, KiB in host
/// memory, evictions, restores. Of requests: KiB of memory, requests running and waiting, requests ended and failed.
pub(crate) type Point = [u64; 4];

/// Place of a lane. The lane of all that find no place of their own has no model.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct LaneKey {
    /// Card of the memory; `None` for the requests of a model.
    pub(crate) card: Option<u32>,
    /// Name of the model.
    pub(crate) model: String,
}

/// History of a node.
#[derive(Debug, Default)]
pub(crate) struct History {
    axes: [Axis; RESOLUTIONS.len()],
    lanes: BTreeMap<LaneKey, Series>,
    /// Number of steps of an hour that have ended: increases when there is something new to show.
    version: u64,
}

impl History {
    /// Records a moment, in seconds since the scheduler started. Returns whether a step of the hour has ended with it.
    /// A moment before the last one counts as that one.
    pub(crate) fn record(&mut self, at: f64, points: impl IntoIterator<Item = (LaneKey, Point)>) -> bool {
        let second = if at > 0.0 { at as u64 } else { 0 };
        let mut ended = false;
        for (level, (axis, resolution)) in self.axes.iter_mut().zip(RESOLUTIONS).enumerate() {
            let steps = axis.advance(second, resolution);
            if steps > 0 {
                let ticks = axis.close(steps, resolution);
                self.lanes.values_mut().for_each(|series| series.close(level, ticks, steps, resolution));
                ended |= level == Span::Hour.level();
            }
            axis.tick();
        }
        if ended {
            self.version += 1;
            self.lanes.retain(|_, series| !series.is_over());
        }
        for (key, point) in points {
            self.add(key, point);
        }
        ended
    }

    fn add(&mut self, key: LaneKey, point: Point) {
        if point == Point::default() && !self.lanes.contains_key(&key) {
            return;
        }
        let has_place = self.lanes.contains_key(&key) || self.lanes.len() + 3 <= LANES;
        let fits = has_place && key.model.len() <= LONGEST_NAME;
        // Two lanes are left for those without a place: of cards and of requests.
        let key = if fits { key } else { LaneKey { card: key.card.map(|_| u32::MAX), model: String::new() } };
        self.lanes.entry(key).or_default().add(point);
    }

    /// Number that changes with each step of the hour.
    pub(crate) fn version(&self) -> u64 {
        self.version
    }
}

#[cfg(test)]
mod tests;
