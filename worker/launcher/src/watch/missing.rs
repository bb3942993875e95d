//! Which models are gone, and not just being replaced: an update by two renames has a moment without the directory. Pure.

use super::QUIET;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

/// Models whose directory was not there at the last look, and since when.
#[derive(Debug, Default)]
pub(super) struct Missing(BTreeMap<String, Instant>);

impl Missing {
    /// A look that did not find these. Who is gone for good, and when to look again for the others.
    pub(super) fn look<'a>(
        &mut self,
        missing: impl Iterator<Item = &'a String>,
        now: Instant,
    ) -> (BTreeSet<String>, Option<Instant>) {
        let since = |name: &String| (name.clone(), self.0.get(name).copied().unwrap_or(now));
        let (gone, waiting): (BTreeMap<_, _>, BTreeMap<_, _>) =
            missing.map(since).partition(|(_, since)| *since + QUIET <= now);
        self.0 = waiting;
        (gone.into_keys().collect(), self.0.values().min().map(|since| *since + QUIET))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_directory_is_gone_when_missing_at_two_spaced_looks() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<String>>();
        let mut missing = Missing::default();
        // When, what is not there, what is gone, and when to look again.
        type Row = (u64, &'static [&'static str], &'static [&'static str], Option<u64>);
        let table: [Row; 8] = [
            (0, &["replaced", "removed"], &[], Some(200)),
            (1, &["removed"], &[], Some(200)),
            (150, &["removed", "later"], &[], Some(200)),
            (200, &["removed", "later"], &["removed"], Some(350)),
            (350, &["later", "replaced"], &["later"], Some(550)),
            (400, &[], &[], None),
            (700, &["replaced"], &[], Some(900)), // the time before does not count
            (901, &["replaced"], &["replaced"], None),
        ];
        for (ms, away, gone, again) in table {
            let found = missing.look(names(away).iter(), at(ms));
            assert_eq!(found, (names(gone), again.map(at)), "at {ms}");
        }
    }
}
