//! Samples of one lane, on both levels. Pure.

use super::axis::kept;
use super::{Point, RESOLUTIONS, Resolution, Sample};
use std::collections::VecDeque;

/// Samples of one lane.
#[derive(Debug, Default)]
pub(super) struct Series {
    levels: [Level; RESOLUTIONS.len()],
}

/// Samples of one level.
#[derive(Debug, Default)]
struct Level {
    /// Steps that have ended, the oldest first; those before the lane began are left out.
    ended: VecDeque<Sample>,
    /// Sum of the moments in the open step.
    open: [u64; 4],
}

impl Series {
    /// Adds a moment to the open steps.
    pub(super) fn add(&mut self, point: Point) {
        for level in &mut self.levels {
            level.open.iter_mut().zip(point).for_each(|(sum, value)| *sum = sum.saturating_add(value));
        }
    }

    /// Ends the open step of a level, which had so many moments, and those that were skipped after it.
    pub(super) fn close(&mut self, level: usize, ticks: u32, steps: u64, resolution: Resolution) {
        let Some(level) = self.levels.get_mut(level) else { return };
        let open = std::mem::take(&mut level.open);
        let average = |sum: u64| narrow(sum / u64::from(ticks.max(1)));
        let [first, second, third, fourth] = open;
        let sample = [average(first), average(second), narrow(third), narrow(fourth)];
        if level.ended.capacity() == 0 {
            level.ended.reserve_exact(resolution.steps);
        }
        for step in 0..kept(steps, resolution) {
            if level.ended.len() == resolution.steps {
                level.ended.pop_front();
            }
            level.ended.push_back(if step == 0 { sample } else { Sample::default() });
        }
    }

    /// Returns whether nothing but zeros is left.
    pub(super) fn is_over(&self) -> bool {
        self.levels
            .iter()
            .all(|level| level.open == [0; 4] && level.ended.iter().all(|sample| *sample == Sample::default()))
    }

    /// Samples of a level, the oldest first, and zeros before the lane began: `steps` in all.
    pub(super) fn samples(&self, level: usize, steps: usize) -> impl Iterator<Item = Sample> + '_ {
        let ended = self.levels.get(level).map(|level| &level.ended);
        let before = steps.saturating_sub(ended.map_or(0, VecDeque::len));
        std::iter::repeat_n(Sample::default(), before).chain(ended.into_iter().flatten().copied())
    }

    /// Sample of the last step of a level.
    pub(super) fn last(&self, level: usize) -> Sample {
        self.levels.get(level).and_then(|level| level.ended.back()).copied().unwrap_or_default()
    }
}

fn narrow(value: u64) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}
