//! Which content the model is to serve: its directory's, or an earlier one by a person's word; and what lasts of that
//! beyond this scheduler.
//!
//! A version that served is remembered with its manifest, the last one first, so that it can be started again without
//! its directory: after a rollback, and by the next scheduler until the directory's new content has proven itself.

use super::ModelTask;
use crate::clock::unix_ms;
use crate::model::content::{Content, Unservable};
use omni_control_api as api;
use omni_log::Kind;
use omni_node_protocol::id::SnapshotDigest;
use omni_policy::Generation;
use omni_policy::fleet::Event;
use omni_store::{Pin, Version};

impl ModelTask {
    /// What the directory has.
    pub(super) fn directory_has(&mut self, content: Result<Content, Unservable>) {
        let version = match &content {
            Ok(content) => Some(content.snapshot.to_string()),
            Err(unservable) => unservable.snapshot.as_ref().map(ToString::to_string),
        };
        let refused = content.as_ref().err().map(|unservable| unservable.message.clone());
        let directory = api::Directory { version, refused };
        if self.directory.as_ref() == Some(&directory) {
            return; // the launcher came back and told everything again
        }
        let is_first = self.directory.is_none();
        self.directory = Some(directory);
        let seen = match &content {
            Ok(content) => Some(&content.snapshot),
            Err(unservable) => unservable.snapshot.as_ref(),
        };
        let chosen = self.chosen_instead_of(seen);
        // A directory that cannot be read says nothing of what it holds.
        if chosen.is_none() && seen.is_some() {
            self.lasting.pinned = None;
        }
        // Whether that is good enough to serve before it has proven itself again.
        let is_good = match &chosen {
            // A rollback that was carried out is what served last; one that never became ready is not.
            Some(chosen) => self.served_last() == Some(&chosen.snapshot),
            None => seen.is_some_and(|seen| self.lasting.was_ready(seen)),
        };
        let serves = self.fleet.serving().is_some_and(|serving| self.fleet.was_ready(serving));
        if is_first && !is_good && !serves {
            self.fall_back();
        }
        match chosen.map_or(content, Ok) {
            Ok(content) => self.aim_at(content),
            Err(_) => self.event(&Event::UnservableContent),
        }
    }

    /// The version that a rollback chose, while the directory has what it had then.
    fn chosen_instead_of(&self, seen: Option<&SnapshotDigest>) -> Option<Content> {
        let pin = self.lasting.pinned.as_ref().filter(|pin| Some(&pin.from) == seen)?;
        self.remembered(&pin.to)
    }

    fn served_last(&self) -> Option<&SnapshotDigest> {
        self.lasting.history.first().map(|version| &version.snapshot)
    }

    /// An instance of this is found. Before anything serves: is it what served last for an earlier scheduler, or was it
    /// only about to?
    pub(super) fn is_found(&mut self, snapshot: &SnapshotDigest) {
        if self.fleet.serving().is_none() && self.served_last() != Some(snapshot) {
            self.fall_back();
        }
    }

    /// What served last for an earlier scheduler serves until something else has proven itself. One that was removed and
    /// came back has its versions, but serves what it came with.
    fn fall_back(&mut self) {
        let last = self.served_last().filter(|_| !self.came_back);
        if let Some(content) = last.and_then(|snapshot| self.remembered(snapshot)) {
            let (generation, content) = self.generations.of(content);
            self.event(&Event::LastServed { generation, settings: content.settings() });
        }
    }

    fn aim_at(&mut self, content: Content) {
        let proven = self.lasting.was_ready(&content.snapshot);
        let (generation, content) = self.generations.of(content);
        self.generations.say(generation, None);
        self.event(&Event::Content { generation, settings: content.settings(), was_ready: proven });
    }

    /// A version as it was when it served.
    fn remembered(&self, snapshot: &SnapshotDigest) -> Option<Content> {
        let version = self.lasting.history.iter().find(|version| version.snapshot == *snapshot)?;
        let (snapshot, text) = (version.snapshot.clone(), version.manifest.clone());
        // The node's configuration may be another one since.
        Content::parse(&self.model.name, snapshot, text, &self.context.config).ok()
    }

    /// A person wants an earlier version.
    ///
    /// # Errors
    /// Why that cannot be, in words.
    pub(super) fn roll_back(&mut self, to: Option<&str>) -> Result<(), String> {
        let serving = self.serving.as_ref().map(|content| &content.snapshot);
        let is_it = |version: &&Version| match to {
            Some(digits) => version.snapshot.as_str().starts_with(digits),
            None => Some(&version.snapshot) != serving,
        };
        let mut found = self.lasting.history.iter().filter(is_it);
        let Some(version) = found.next() else {
            return Err(match to {
                Some(digits) => format!("no version `{digits}` of this model served: see `omnictl history`"),
                None => "no earlier version of this model served".to_owned(),
            });
        };
        if to.is_some() && found.next().is_some() {
            return Err("more than one version begins like this: write more of its digits".to_owned());
        }
        // Which version it is to be instead of is known by the directory alone.
        if self.directory.is_none() {
            return Err(
                "the launcher has not told yet what the model's directory has: try again in a moment".to_owned()
            );
        }
        let to = version.snapshot.clone();
        let content = self.remembered(&to).ok_or("this node's configuration does not allow that version any more")?;
        let (generation, content) = self.generations.of(content);
        let from = self.directory.as_ref().and_then(|directory| directory.version.as_deref());
        let from = from.and_then(|digits| SnapshotDigest::parse(digits).ok());
        self.lasting.pinned = from.filter(|from| *from != to).map(|from| Pin { to, from });
        tracing::info!(
            message_id = Kind::RolledBack.id(),
            model = %self.model.name,
            version = content.short_version(),
            "rolled back"
        );
        self.event(&Event::RollBack { generation, settings: content.settings() });
        Ok(())
    }

    /// A generation serves and was ready: it can be come back to.
    pub(super) fn remember(&mut self, generation: Generation) {
        let Some(content) = self.generations.content(generation) else { return };
        self.lasting.record_ready(Version {
            snapshot: content.snapshot.clone(),
            manifest: content.text.clone(),
            first_ready_unix_ms: unix_ms(),
        });
    }

    /// Has the store write what lasts, if that changed.
    pub(super) fn save(&mut self) {
        (self.lasting.held, self.lasting.deaths) = (self.fleet.held(), self.fleet.deaths());
        if self.lasting == self.saved {
            return;
        }
        self.model.keep(&self.lasting, || {
            if self.lasting.snapshots() != self.saved.snapshots() {
                self.launcher.keep(&self.model.name, self.lasting.snapshots());
            }
            self.context.state.put(&self.model.name, Some(self.lasting.clone()));
        });
        self.saved = self.lasting.clone();
    }

    /// The versions that can be served again.
    pub(super) fn history(&self) -> api::History {
        let role = |snapshot: &SnapshotDigest| self.generations.find(snapshot).map(|generation| self.role(generation));
        let version = |version: &Version| api::Version {
            version: version.snapshot.to_string(),
            first_ready_unix_ms: version.first_ready_unix_ms,
            role: role(&version.snapshot),
        };
        api::History {
            name: self.model.name.as_str().to_owned(),
            versions: self.lasting.history.iter().map(version).collect(),
        }
    }
}
