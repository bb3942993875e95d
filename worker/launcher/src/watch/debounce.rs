//! When to look at a directory that is being written: after a pause, but not never. Pure.

use std::time::{Duration, Instant};

/// Collects changes until it is time to look.
#[derive(Debug)]
pub(super) struct Debounce {
    quiet: Duration,
    patience: Duration,
    first: Option<Instant>,
    due: Option<Instant>,
}

impl Debounce {
    /// Looks `quiet` after the last change, and not later than `patience` after the first.
    pub(super) fn new(quiet: Duration, patience: Duration) -> Self {
        Self { quiet, patience, first: None, due: None }
    }

    /// Something was written.
    pub(super) fn changed(&mut self, now: Instant) {
        let first = *self.first.get_or_insert(now);
        self.due = Some((now + self.quiet).min(first + self.patience));
    }

    /// Something finished was renamed into or out of place: no reason to wait, unless something else is being written.
    pub(super) fn published(&mut self, now: Instant) {
        if self.first.is_none() {
            self.due = Some(now);
        }
    }

    /// Looks at `then`, unless there is reason to look earlier.
    pub(super) fn later(&mut self, then: Instant) {
        self.due = Some(self.due.map_or(then, |due| due.min(then)));
    }

    /// When to look; `None` while nothing has changed.
    pub(super) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// The look is done.
    pub(super) fn done(&mut self) {
        (self.first, self.due) = (None, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    enum Step {
        Changed,
        Published,
        Later(u64),
        Done,
    }

    #[test]
    fn looks_are_debounced() {
        use Step::{Changed, Done, Later, Published};
        /// Steps with their times, and the time of the next look.
        type Row = (&'static str, &'static [(u64, Step)], Option<u64>);
        let table: [Row; 9] = [
            ("nothing happened", &[], None),
            ("one change", &[(0, Changed)], Some(200)),
            ("changes go on", &[(0, Changed), (150, Changed), (300, Changed)], Some(500)),
            ("and on", &[(0, Changed), (1900, Changed)], Some(2000)),
            ("renamed into place", &[(5, Published)], Some(5)),
            ("renamed while something is written", &[(0, Changed), (5, Published)], Some(200)),
            ("written after a rename", &[(5, Published), (7, Changed)], Some(207)),
            ("another look is wanted", &[(0, Later(2000)), (100, Changed)], Some(300)),
            ("looked", &[(0, Changed), (200, Done)], None),
        ];
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        for (what, steps, due) in table {
            let mut debounce = Debounce::new(Duration::from_millis(200), Duration::from_secs(2));
            for (ms, step) in steps {
                match step {
                    Changed => debounce.changed(at(*ms)),
                    Published => debounce.published(at(*ms)),
                    Later(then) => debounce.later(at(*then)),
                    Done => debounce.done(),
                }
            }
            assert_eq!(debounce.due(), due.map(at), "{what}");
        }
    }
}
