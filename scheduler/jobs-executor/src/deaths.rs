//! Pauses of owners whose items end instances. Pure.
//!
//! A model whose instance died is started again at once, one that dies again within a minute only after a pause, in which
//! clients are refused. So an owner whose item was the only one on its model when the instance died gets no further item
//! for that model for a while: a few seconds after the first, soon so long that the instance has been ready for more than
//! a minute before the next may end it. Items of other owners go on.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// First pause. One item that kills among many good ones is nothing to punish.
const FIRST: Duration = Duration::from_secs(5);
/// Factor of the next pause. The third is longer than the minute after which a model's earlier deaths are forgotten.
const GROWTH: u32 = 4;
const LONGEST: Duration = Duration::from_secs(1800);
/// Time from a death to the next after which the pauses begin with the first.
const FORGOTTEN: Duration = Duration::from_secs(2 * 3600);

/// Pauses of owners, by model and owner.
#[derive(Debug, Default)]
pub(crate) struct Deaths {
    pauses: HashMap<String, HashMap<String, Pause>>,
}

#[derive(Debug, Clone, Copy)]
struct Pause {
    since: Instant,
    length: Duration,
}

impl Pause {
    fn lasts(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.since) < self.length
    }

    /// Returns true if the next pause is longer.
    fn counts(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.since) < FORGOTTEN
    }
}

impl Deaths {
    /// Counts the death of an instance that had this owner's item alone; returns the pause.
    pub(crate) fn record(&mut self, model: &str, owner: &str, now: Instant) -> Duration {
        self.forget(now);
        let of_model = self.pauses.entry(model.to_owned()).or_default();
        let length = of_model.get(owner).map_or(FIRST, |pause| (pause.length * GROWTH).min(LONGEST));
        of_model.insert(owner.to_owned(), Pause { since: now, length });
        length
    }

    /// Returns whether an owner gets no item for a model now.
    pub(crate) fn pauses(&self, model: &str, owner: &str, now: Instant) -> bool {
        self.pauses.get(model).and_then(|owners| owners.get(owner)).is_some_and(|pause| pause.lasts(now))
    }

    /// Removes pauses that do not count any more.
    fn forget(&mut self, now: Instant) {
        for owners in self.pauses.values_mut() {
            owners.retain(|_, pause| pause.counts(now));
        }
        self.pauses.retain(|_, owners| !owners.is_empty());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_of_an_owner_grow_and_are_forgotten() {
        let (mut deaths, mut now, mut lengths) = (Deaths::default(), Instant::now(), Vec::new());
        for _ in 0..7 {
            let pause = deaths.record("m", "a", now);
            assert!(deaths.pauses("m", "a", now + pause - Duration::from_secs(1)));
            assert!(!deaths.pauses("m", "a", now + pause));
            assert!(!deaths.pauses("m", "b", now) && !deaths.pauses("n", "a", now), "others go on");
            lengths.push(pause.as_secs());
            now += pause;
        }
        assert_eq!(lengths, [5, 20, 80, 320, 1280, 1800, 1800]);
        assert_eq!(deaths.record("m", "a", now + FORGOTTEN), FIRST);
    }

    #[test]
    fn owners_that_are_forgotten_take_no_memory() {
        let (mut deaths, now) = (Deaths::default(), Instant::now());
        for owner in 0..100 {
            deaths.record(&format!("m{}", owner % 7), &owner.to_string(), now);
        }
        deaths.record("m", "a", now + FORGOTTEN);
        assert_eq!(deaths.pauses.len(), 1);
    }
}
