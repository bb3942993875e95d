//! Versions of a model: the directory's content, the one that serves, and the history that outlives the scheduler.
//!
//! The choice between them is a policy ([`omni_policy::versions`]). A version that served is recorded with its manifest, so
//! that it can be started again without its directory: after a rollback, and by the next scheduler until the directory's new
//! content is proven.

use super::ModelActor;
use crate::clock::unix_ms;
use crate::model::content::{Content, Unservable};
use omni_control_api as api;
use omni_log::Kind;
use omni_node_protocol::id::SnapshotDigest;
use omni_policy::Generation;
use omni_policy::fleet::Event;
use omni_policy::versions::{self, Known, RollbackRefusal};
use omni_store::{PersistedState, Pin, Unprepared, Version};
use std::sync::Arc;

/// Versions of a model.
#[derive(Debug)]
pub(super) struct Versions {
    /// Content that takes the traffic.
    serving: Option<Arc<Content>>,
    /// The directory, as the launcher reported it last.
    directory: Option<api::Directory>,
    /// State that outlives the scheduler, as of now and as it was stored last.
    persisted: PersistedState,
    stored: PersistedState,
    /// The directory was removed, and came back.
    came_back: bool,
}

impl Versions {
    pub(super) fn new(persisted: PersistedState) -> Self {
        let stored = persisted.clone();
        let came_back = persisted.removed_for_ms.is_some();
        let persisted = PersistedState { removed_for_ms: None, ..persisted };
        Self { serving: None, directory: None, persisted, stored, came_back }
    }

    pub(super) fn serving(&self) -> Option<&Content> {
        self.serving.as_deref()
    }

    pub(super) fn serving_shared(&self) -> Option<&Arc<Content>> {
        self.serving.as_ref()
    }

    /// Replaces the content that serves. Returns whether there was one.
    pub(super) fn serve(&mut self, content: Option<Arc<Content>>) -> bool {
        std::mem::replace(&mut self.serving, content).is_some()
    }

    pub(super) fn directory(&self) -> Option<&api::Directory> {
        self.directory.as_ref()
    }

    pub(super) fn pinned(&self) -> Option<&SnapshotDigest> {
        self.persisted.pinned.as_ref().map(|pin| &pin.to)
    }

    /// Returns whether a version was ready at least once.
    pub(super) fn was_ready(&self, snapshot: &SnapshotDigest) -> bool {
        self.persisted.was_ready(snapshot)
    }

    fn version(&self, snapshot: &str) -> Option<&Version> {
        self.persisted.history.iter().find(|version| version.snapshot.as_str() == snapshot)
    }

    fn history(&self) -> Vec<&str> {
        self.persisted.history.iter().map(|version| version.snapshot.as_str()).collect()
    }

    /// Takes the fleet's part of the state. Returns whether the state has changed since it was stored.
    fn update(&mut self, held: bool, deaths: u64) -> bool {
        (self.persisted.held, self.persisted.deaths) = (held, deaths);
        self.persisted != self.stored
    }

    /// Forgets why a version could not be prepared.
    pub(super) fn on_prepared(&mut self, snapshot: &SnapshotDigest) {
        self.persisted.unprepared.take_if(|unprepared| unprepared.snapshot == *snapshot);
    }

    /// Records why a version cannot be prepared: the next scheduler, which tries it only when it is needed, shows it.
    pub(super) fn on_prepare_failed(&mut self, snapshot: &SnapshotDigest, message: &str) {
        self.persisted.unprepared = Some(Unprepared::new(snapshot.clone(), message));
    }

    /// Why a version could not be prepared at the last attempt.
    fn unprepared(&self, snapshot: &SnapshotDigest) -> Option<String> {
        let unprepared = self.persisted.unprepared.as_ref();
        unprepared.filter(|unprepared| unprepared.snapshot == *snapshot).map(|unprepared| unprepared.message.clone())
    }

    /// Records that a content was ready.
    fn record(&mut self, content: &Content, unix_ms: u64) {
        self.persisted.record_ready(Version {
            snapshot: content.snapshot.clone(),
            manifest: content.text.clone(),
            first_ready_unix_ms: unix_ms,
        });
    }
}

impl ModelActor {
    /// The launcher reports the directory's content.
    pub(super) fn on_content(&mut self, content: Result<Content, Unservable>) {
        let snapshot = match &content {
            Ok(content) => Some(content.snapshot.clone()),
            Err(unservable) => unservable.snapshot.clone(),
        };
        let refused = content.as_ref().err().map(|unservable| unservable.message.clone());
        let directory = api::Directory { version: snapshot.as_ref().map(ToString::to_string), refused };
        if self.versions.directory.as_ref() == Some(&directory) {
            return; // a launcher that came back reports everything again
        }
        let is_first_report = self.versions.directory.replace(directory).is_none();
        let pin = self.versions.persisted.pinned.clone();
        let pinned = pin.as_ref().and_then(|pin| self.recall(pin.to.as_str()));
        let history = self.versions.history();
        let fleet = &self.lifecycle.fleet;
        let known = Known {
            history: &history,
            pin: pin.as_ref().filter(|_| pinned.is_some()).map(as_policy),
            is_first_report,
            serving_was_ready: fleet.serving().is_some_and(|serving| fleet.was_ready(serving)),
            came_back: self.versions.came_back,
        };
        let choice = versions::choose(snapshot.as_ref().map(SnapshotDigest::as_str), &known);
        let (is_pinned, ends_pin) = (choice.pinned.is_some(), choice.ends_pin);
        let fall_back = choice.fall_back.map(str::to_owned);
        if ends_pin {
            self.versions.persisted.pinned = None;
        }
        if let Some(version) = fall_back {
            self.fall_back(&version);
        }
        match pinned.filter(|_| is_pinned).map_or(content, Ok) {
            Ok(content) => self.aim_at(content, is_first_report),
            Err(_) => self.event(Event::UnservableContent),
        }
    }

    /// An instance of this version was found. Unless it served last, that version serves until another one is proven.
    pub(super) fn fall_back_at_adoption(&mut self, snapshot: &SnapshotDigest) {
        let history = self.versions.history();
        let known = Known {
            history: &history,
            pin: None,
            is_first_report: false,
            serving_was_ready: false,
            came_back: self.versions.came_back,
        };
        let serves = self.lifecycle.fleet.serving().is_some();
        let version = versions::fall_back_at_adoption(snapshot.as_str(), serves, &known).map(str::to_owned);
        if let Some(version) = version {
            self.fall_back(&version);
        }
    }

    fn fall_back(&mut self, version: &str) {
        if let Some(content) = self.recall(version) {
            let (generation, content) = self.generations.register(content, self.now);
            self.event(Event::LastServed { generation, settings: content.settings() });
        }
    }

    /// `is_first_report`: what became of the content in an earlier scheduler holds until it is tried again.
    fn aim_at(&mut self, content: Content, is_first_report: bool) {
        let was_ready = self.versions.was_ready(&content.snapshot);
        let known = self.versions.unprepared(&content.snapshot).filter(|_| is_first_report);
        let (generation, content) = self.generations.register(content, self.now);
        self.generations.set_message(generation, known);
        self.event(Event::Content { generation, settings: content.settings(), was_ready });
    }

    /// A version of the history, as it was when it served; `None` if the node's configuration no longer allows it.
    fn recall(&self, snapshot: &str) -> Option<Content> {
        let version = self.versions.version(snapshot)?;
        let (snapshot, text) = (version.snapshot.clone(), version.manifest.clone());
        Content::parse(&self.model.name, snapshot, text, &self.services.config).ok()
    }

    /// Rolls back to the version whose digest begins with `digits`, or to the one before.
    ///
    /// # Errors
    /// A message for the operator.
    pub(super) fn roll_back(&mut self, digits: Option<&str>) -> Result<(), String> {
        let serving = self.versions.serving().map(|content| content.snapshot.as_str());
        let history = self.versions.history();
        let target = versions::rollback_target(&history, digits, serving, self.versions.directory.is_some());
        let to = target.map_err(|refusal| refusal_message(refusal, digits))?.to_owned();
        let content = self.recall(&to).ok_or("this node's configuration does not allow that version any more")?;
        let (generation, content) = self.generations.register(content, self.now);
        let from = self.versions.directory.as_ref().and_then(|directory| directory.version.as_deref());
        let from = from.and_then(|digits| SnapshotDigest::parse(digits).ok());
        let to = content.snapshot.clone();
        self.versions.persisted.pinned = from.filter(|from| *from != to).map(|from| Pin { to, from });
        tracing::info!(
            message_id = Kind::RolledBack.id(),
            model = %self.model.name,
            version = content.short_version(),
            "rolled back"
        );
        self.event(Event::RollBack { generation, settings: content.settings() });
        Ok(())
    }

    /// Records a generation that serves and was ready.
    pub(super) fn record_ready(&mut self, generation: Generation) {
        if let Some(content) = self.generations.content(generation) {
            self.versions.record(content, unix_ms());
        }
    }

    /// Stores the state that outlives the scheduler, if it has changed.
    pub(super) fn persist(&mut self) {
        let (fleet, versions) = (&self.lifecycle.fleet, &mut self.versions);
        if !versions.update(fleet.held(), fleet.deaths()) {
            return;
        }
        self.model.keep(&versions.persisted, || {
            if versions.persisted.snapshots() != versions.stored.snapshots() {
                self.services.launcher.keep(&self.model.name, versions.persisted.snapshots());
            }
            self.services.store.put(&self.model.name, Some(versions.persisted.clone()));
        });
        versions.stored = versions.persisted.clone();
    }

    /// Versions that can be served again.
    pub(super) fn history(&self) -> api::History {
        let role = |snapshot: &SnapshotDigest| self.generations.find(snapshot).map(|generation| self.role(generation));
        let version = |version: &Version| api::Version {
            version: version.snapshot.to_string(),
            first_ready_unix_ms: version.first_ready_unix_ms,
            role: role(&version.snapshot),
        };
        api::History {
            name: self.model.name.as_str().to_owned(),
            versions: self.versions.persisted.history.iter().map(version).collect(),
        }
    }
}

fn as_policy(pin: &Pin) -> versions::Pin<'_> {
    versions::Pin { to: pin.to.as_str(), from: pin.from.as_str() }
}

fn refusal_message(refusal: RollbackRefusal, digits: Option<&str>) -> String {
    match refusal {
        RollbackRefusal::UnknownVersion => {
            let digits = digits.unwrap_or_default();
            format!("no version `{digits}` of this model served: see `omnictl history`")
        }
        RollbackRefusal::NoEarlierVersion => "no earlier version of this model served".to_owned(),
        RollbackRefusal::Ambiguous => "more than one version begins like this: write more of its digits".to_owned(),
        RollbackRefusal::DirectoryUnknown => {
            "the launcher has not told yet what the model's directory has: try again in a moment".to_owned()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use omni_config::name::ModelName;
    use omni_config::node::NodeConfig;

    fn content(digit: &str) -> Arc<Content> {
        let name = ModelName::try_from("m".to_owned()).unwrap();
        let snapshot = SnapshotDigest::parse(&digit.repeat(64)).unwrap();
        Arc::new(Content::parse(&name, snapshot, None, &NodeConfig::default()).unwrap())
    }

    #[test]
    fn a_version_that_was_ready_is_remembered_as_the_newest() {
        let mut versions = Versions::new(PersistedState::default());
        let (first, second) = (content("1"), content("2"));
        assert!(!versions.was_ready(&first.snapshot) && versions.version(first.snapshot.as_str()).is_none());
        versions.record(&first, 1);
        versions.record(&second, 2);
        assert!(versions.was_ready(&first.snapshot));
        assert_eq!(versions.history(), [second.snapshot.as_str(), first.snapshot.as_str()]);
        assert_eq!(versions.version(first.snapshot.as_str()).unwrap().first_ready_unix_ms, 1);
    }

    #[test]
    fn the_state_is_stored_when_it_changes() {
        let mut versions = Versions::new(PersistedState::default());
        assert!(!versions.update(false, 0));
        assert!(versions.update(true, 0) && versions.update(false, 1));
        assert!(!versions.update(false, 0));
        versions.record(&content("1"), 1);
        assert!(versions.update(false, 0));
    }

    #[test]
    fn why_a_version_cannot_be_prepared_is_stored_until_it_is() {
        let mut versions = Versions::new(PersistedState::default());
        let (one, other) = (content("1").snapshot.clone(), content("2").snapshot.clone());
        versions.on_prepare_failed(&one, &"ü".repeat(3000));
        assert!(versions.update(false, 0));
        assert_eq!((versions.unprepared(&one).unwrap().chars().count(), versions.unprepared(&other)), (2002, None));
        versions.on_prepared(&other);
        assert!(versions.update(false, 0));
        versions.on_prepared(&one);
        assert!(!versions.update(false, 0) && versions.unprepared(&one).is_none());
    }

    #[test]
    fn a_directory_that_came_back_ends_the_time_since_its_removal() {
        let mut versions = Versions::new(PersistedState { removed_for_ms: Some(7), ..PersistedState::default() });
        assert!(versions.came_back && versions.persisted.removed_for_ms.is_none());
        assert!(versions.update(false, 0), "the model is stored as one that exists");
    }

    #[test]
    fn one_content_serves_at_a_time() {
        let mut versions = Versions::new(PersistedState::default());
        assert!(!versions.serve(Some(content("1"))), "the first");
        assert!(versions.serve(Some(content("2"))));
        assert_eq!(versions.serving().unwrap().snapshot, content("2").snapshot);
        assert!(versions.serve(None) && versions.serving_shared().is_none());
    }
}
