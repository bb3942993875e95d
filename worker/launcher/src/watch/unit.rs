//! State of one place in the models folder. Pure.

use super::scan::{Found, Scan};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Extent of a look.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Changed {
    All,
    Below(BTreeSet<PathBuf>),
}

impl Default for Changed {
    fn default() -> Self {
        Self::Below(BTreeSet::new())
    }
}

impl Changed {
    /// Tests that a change at `path` may change this, by itself or by a directory around or in it.
    pub(super) fn is_of(&self, path: &Path) -> bool {
        match self {
            Self::All => true,
            Self::Below(paths) => paths.iter().any(|changed| changed.starts_with(path) || path.starts_with(changed)),
        }
    }

    /// Adds a path, up to a number of them from which on all count as changed.
    pub(super) fn add(&mut self, path: PathBuf, most: usize) {
        if let Self::Below(paths) = self {
            paths.insert(path);
            if paths.len() > most {
                *self = Self::All;
            }
        }
    }

    /// Adds what of these is of `path`.
    pub(super) fn add_of(&mut self, path: &Path, others: &Self, most: usize) {
        match others {
            Self::All => *self = Self::All,
            Self::Below(paths) => {
                let of = paths.iter().filter(|changed| changed.starts_with(path) || path.starts_with(changed));
                of.for_each(|changed| self.add(changed.clone(), most));
            }
        }
    }
}

/// A name in the folder, or a mount below one, as it was last looked at.
#[derive(Debug, Default)]
pub(super) struct State {
    /// The last look; `None` before the first has ended.
    pub(super) scan: Option<Scan>,
    /// Changes whose models have not been looked after yet.
    pub(super) changed: Changed,
}

impl State {
    /// Contents of the unit, each with its classification.
    pub(super) fn found(&self) -> impl Iterator<Item = (&String, &Found)> {
        self.scan.iter().flat_map(|scan| &scan.found)
    }

    /// Names to report as not answering: its models, or itself when there is none.
    pub(super) fn silent(&mut self, shown: String) -> Vec<String> {
        let models = self.found().filter(|(_, found)| **found == Found::Model).map(|(name, _)| name.clone());
        let models: Vec<_> = models.collect();
        if !models.is_empty() {
            return models;
        }
        let found = BTreeMap::from([(shown.clone(), Found::Silent)]);
        self.scan = Some(Scan { found, ..self.scan.take().unwrap_or_default() });
        vec![shown]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_around_or_inside_of_a_change_are_looked_at() {
        let changed = |path: &str| Changed::Below([PathBuf::from(path)].into());
        for (change, path, expected) in
            [("a/b", "a", true), ("a", "a/b", true), ("", "a", true), ("ab", "a", false), ("a/c", "a/b", false)]
        {
            assert_eq!(changed(change).is_of(Path::new(path)), expected, "{change} and {path}");
            let mut of = Changed::default();
            of.add_of(Path::new(path), &changed(change), 10);
            assert_eq!(of != Changed::default(), expected, "{change} and {path}");
        }
        assert!(Changed::All.is_of(Path::new("a")));
    }

    #[test]
    fn too_many_changes_are_changes_of_all() {
        let mut changed = Changed::default();
        for number in 0..3 {
            assert_ne!(changed, Changed::All);
            changed.add(number.to_string().into(), 2);
        }
        assert_eq!(changed, Changed::All);
    }

    #[test]
    fn the_models_of_a_place_that_does_not_answer_are_named_or_the_place_itself() {
        let mut state = State::default();
        assert_eq!(state.silent("a".into()), ["a"]);
        assert_eq!(state.found().collect::<Vec<_>>(), [(&"a".to_owned(), &Found::Silent)]);
        let found = [("a/b", Found::Model), ("a/c", Found::Deep)];
        let found = BTreeMap::from(found.map(|(name, found)| (name.to_owned(), found)));
        state.scan = Some(Scan { found, ..Scan::default() });
        assert_eq!(state.silent("a".into()), ["a/b"]);
    }
}
