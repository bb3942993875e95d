//! Models that the watcher has seen, and the messages about them for a scheduler. Pure.

use super::event::ModelState;
use omni_node_protocol::id::SnapshotDigest;
use omni_node_protocol::launcher::FromLauncher;
use std::collections::BTreeMap;

/// Every model directory as it was last seen.
#[derive(Debug, Default)]
pub(super) struct Catalog {
    models: BTreeMap<String, ModelState>,
    scanned: bool,
}

impl Catalog {
    /// A model was seen; the message for a scheduler that knows the others, when there is news.
    pub(super) fn seen(&mut self, name: String, state: ModelState) -> Option<FromLauncher> {
        let message = message(&name, &state);
        let old = match state {
            ModelState::Gone => return self.models.remove(&name).map(|_| message),
            ModelState::Taken { .. } | ModelState::Refused { .. } | ModelState::NoModel { .. } => {
                self.models.insert(name, state.clone())
            }
        };
        (old != Some(state)).then_some(message)
    }

    /// Every model has been seen once.
    pub(super) fn scanned(&mut self) -> FromLauncher {
        self.scanned = true;
        FromLauncher::Scanned
    }

    /// Messages for a new scheduler: everything known.
    pub(super) fn all(&self) -> impl Iterator<Item = FromLauncher> {
        let models = self.models.iter().map(|(name, state)| message(name, state));
        models.chain(self.scanned.then_some(FromLauncher::Scanned))
    }

    /// The names of all models; `None` before all have been seen.
    pub(super) fn names(&self) -> Option<impl Iterator<Item = &str>> {
        self.scanned.then(|| self.models.keys().map(String::as_str))
    }

    /// The snapshot that a model's directory has now.
    pub(super) fn snapshot(&self, model: &str) -> Option<&SnapshotDigest> {
        match self.models.get(model)? {
            ModelState::Taken { snapshot, .. } => Some(snapshot),
            ModelState::Refused { .. } | ModelState::NoModel { .. } | ModelState::Gone => None,
        }
    }

    /// The snapshots that models have now; `None` before all have been seen.
    pub(super) fn snapshots(&self) -> Option<impl Iterator<Item = &SnapshotDigest>> {
        self.scanned.then(|| {
            self.models.values().filter_map(|state| match state {
                ModelState::Taken { snapshot, .. } => Some(snapshot),
                ModelState::Refused { .. } | ModelState::NoModel { .. } | ModelState::Gone => None,
            })
        })
    }
}

fn message(name: &str, state: &ModelState) -> FromLauncher {
    let name = name.to_owned();
    match state.clone() {
        ModelState::Taken { snapshot, manifest } => FromLauncher::Model { name, snapshot, manifest },
        ModelState::Refused { message } => FromLauncher::ModelRefused { name, message, no_model: false },
        ModelState::NoModel { message } => FromLauncher::ModelRefused { name, message, no_model: true },
        ModelState::Gone => FromLauncher::ModelGone { name },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(digit: char) -> ModelState {
        let snapshot = SnapshotDigest::parse(&digit.to_string().repeat(64)).unwrap();
        ModelState::Taken { snapshot, manifest: None }
    }

    fn refused() -> ModelState {
        ModelState::Refused { message: "no".into() }
    }

    #[test]
    fn only_changes_are_reported() {
        let mut catalog = Catalog::default();
        let steps = [
            (taken('a'), true),
            (taken('a'), false),
            (taken('b'), true),
            (refused(), true),
            (refused(), false),
            (ModelState::Gone, true),
            (ModelState::Gone, false),
            (taken('a'), true),
        ];
        for (number, (state, told)) in steps.into_iter().enumerate() {
            let expected = told.then(|| message("m", &state));
            assert_eq!(catalog.seen("m".into(), state), expected, "step {number}");
        }
    }

    #[test]
    fn a_new_scheduler_receives_all_models_and_the_end_of_the_scan() {
        let mut catalog = Catalog::default();
        catalog.seen("b".into(), refused());
        catalog.seen("a".into(), taken('a'));
        catalog.seen("c".into(), taken('c'));
        catalog.seen("c".into(), ModelState::Gone);
        let models = vec![message("a", &taken('a')), message("b", &refused())];
        assert_eq!(catalog.all().collect::<Vec<_>>(), models);
        assert!(catalog.snapshots().is_none());
        catalog.scanned();
        assert_eq!(catalog.all().count(), 3);
        assert_eq!(catalog.snapshots().unwrap().count(), 1);
    }
}
