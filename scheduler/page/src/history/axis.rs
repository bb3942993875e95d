//! Time axis of one level: which step is open, and which of the last steps were observed. Pure.

use super::Resolution;
use std::collections::VecDeque;

/// Time axis of one level.
#[derive(Debug, Default)]
pub(super) struct Axis {
    /// Number of the open step; `None` before the first moment.
    open: Option<u64>,
    /// Moments in the open step.
    ticks: u32,
    /// Which of the last steps had a moment, the oldest first.
    observed: VecDeque<bool>,
}

impl Axis {
    /// Moves to the step of a second. Returns the number of steps that end with it.
    pub(super) fn advance(&mut self, second: u64, resolution: Resolution) -> u64 {
        let step = second / resolution.seconds;
        let open = *self.open.get_or_insert(step);
        let ended = step.saturating_sub(open);
        self.open = Some(open.max(step));
        ended
    }

    /// Ends the open step and those that were skipped after it. Returns the number of moments in the first.
    pub(super) fn close(&mut self, steps: u64, resolution: Resolution) -> u32 {
        let ticks = std::mem::take(&mut self.ticks);
        for step in 0..kept(steps, resolution) {
            if self.observed.len() == resolution.steps {
                self.observed.pop_front();
            }
            self.observed.push_back(step == 0 && ticks > 0);
        }
        ticks
    }

    pub(super) fn tick(&mut self) {
        self.ticks += 1;
    }

    /// Steps that have ended: whether each was observed, the oldest first.
    pub(super) fn observed(&self) -> impl ExactSizeIterator<Item = bool> + '_ {
        self.observed.iter().copied()
    }

    /// Second at which the last step ended.
    pub(super) fn end(&self, resolution: Resolution) -> u64 {
        self.open.unwrap_or(0) * resolution.seconds
    }
}

/// Number of steps to add for so many that ended: one more than a ring holds empties it.
pub(super) fn kept(steps: u64, resolution: Resolution) -> usize {
    usize::try_from(steps).unwrap_or(usize::MAX).min(resolution.steps + 1)
}
