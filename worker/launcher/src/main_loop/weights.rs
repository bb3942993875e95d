//! Weights that are fetched: ordered, begun, waited for; and those that contents use.

use super::fetches::{Fetches, RunEnd};
use super::{Launcher, shortened};
use crate::event::Event;
use crate::node_files::NodeFile;
use crate::start;
use crate::weights::Fetcher;
use crate::weights_look::Opening;
use omni_config::Foreign;
use omni_environment::Failure;
use omni_log::chain;
use omni_node_protocol::id::{EnvironmentKey, SnapshotDigest};
use omni_node_protocol::launcher::{FromLauncher, StartSpec, WeightsPlace, WeightsRequest};
use omni_sandbox::Weights as Mounted;
use omni_weights::{Digest, Report};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// Time for which weights stay that are ready for a content without an instance.
const STAY: Duration = Duration::from_mins(10);

/// Folders of weights whose files are opened, at a time.
const OPENINGS: usize = 16;

/// The cache of weights, and downloads into it.
pub(crate) struct Weights {
    fetcher: Arc<Fetcher>,
    pub(super) fetches: Fetches,
    /// Contents whose weights are ready, and until when they stay without an instance.
    ready: BTreeMap<SnapshotDigest, Instant>,
    /// Handles, one for each folder whose files are being opened.
    openings: Arc<()>,
}

impl Weights {
    /// Without any download.
    pub(crate) fn new(fetcher: Fetcher) -> Self {
        let (fetches, ready, openings) = (Fetches::default(), BTreeMap::new(), Arc::new(()));
        let mut weights = Self { fetcher: Arc::new(fetcher), fetches, ready, openings };
        weights.measure();
        weights
    }

    /// Reads how much the cache has.
    fn measure(&mut self) {
        self.fetches.set_cache(self.fetcher.cache.bytes(), self.fetcher.config.cache.bytes());
    }

    /// Records that a content uses a set.
    fn use_for(&mut self, snapshot: &SnapshotDigest, set: &Digest) -> Result<(), Failure> {
        let now = Instant::now();
        self.ready.retain(|_, until| *until > now);
        self.ready.insert(snapshot.clone(), now + STAY);
        let used = self.fetcher.cache.use_for(snapshot, set);
        used.map_err(|error| Failure { message: chain(&error), permanent: false })
    }
}

impl Launcher {
    /// Orders the weights of a content, unless the node has them; returns the folder of those that stay where they are.
    ///
    /// # Errors
    /// They cannot be had.
    pub(super) fn want_weights(
        &mut self,
        model: &str,
        snapshot: &SnapshotDigest,
        request: &WeightsRequest,
    ) -> Result<Option<Mounted>, Failure> {
        if let Some(path) = request.source.strip_prefix("file://").map(Path::new) {
            let refused = || Failure { message: start::not_granted(path), permanent: true };
            return start::granted(path, &self.context.settings.config).map(Some).ok_or_else(refused);
        }
        self.order_weights(model, snapshot, request)?;
        self.begin_fetches();
        Ok(None)
    }

    fn order_weights(
        &mut self,
        model: &str,
        snapshot: &SnapshotDigest,
        request: &WeightsRequest,
    ) -> Result<(), Failure> {
        let order = self.weights.fetcher.order(request).map_err(|message| Failure { message, permanent: true })?;
        let key = order.key();
        if let Some(set) = self.weights.fetcher.cache.find(&key) {
            return self.weights.use_for(snapshot, &set);
        }
        let added = self.weights.fetches.add(key, order, (model.to_owned(), snapshot.clone()));
        added.map_err(|full| Failure { message: full.to_string(), permanent: false })
    }

    /// The environment of a content is ready: so is the content, once its weights are.
    pub(super) fn environment_ready(&mut self, snapshot: SnapshotDigest, environment: EnvironmentKey) {
        if let Some(environment) = self.weights.fetches.environment_ready(&snapshot, environment) {
            self.scheduler.send(FromLauncher::Prepared { snapshot, environment });
        }
    }

    /// The set that an instance with fetched weights is to have.
    pub(super) fn set_of(&self, spec: &StartSpec) -> Result<Option<Digest>, &'static str> {
        match &spec.weights {
            None | Some(WeightsPlace::Folder { .. }) => Ok(None),
            Some(WeightsPlace::Fetched) => {
                let set = self.weights.fetcher.cache.set_of(&spec.snapshot);
                set.map(Some)
                    .ok_or("its weights are not on the node any more, and are fetched anew with the next start")
            }
        }
    }

    /// Where the weights of an instance are. `set`: as [`Launcher::set_of`] has it.
    pub(super) fn weights_of(&self, spec: &StartSpec, set: Option<&Digest>) -> Option<Mounted> {
        self.folder_of(spec.weights.as_ref()?, set)
    }

    fn folder_of(&self, place: &WeightsPlace, set: Option<&Digest>) -> Option<Mounted> {
        match place {
            WeightsPlace::Folder { path } => start::granted(path, &self.context.settings.config),
            WeightsPlace::Fetched => {
                set.map(|set| Mounted { folder: self.weights.fetcher.cache.sets(), below: set.as_str().into() })
            }
        }
    }

    /// Has the files of a content's weights opened that the node itself reads. One beyond [`OPENINGS`] at once is answered as
    /// if the weights were not there: they are asked for again.
    pub(super) fn open_weights(&mut self, snapshot: SnapshotDigest, place: &WeightsPlace) {
        let set = self.weights.fetcher.cache.set_of(&snapshot);
        let folder = self.folder_of(place, set.as_ref());
        let has_room = Arc::strong_count(&self.weights.openings) <= OPENINGS;
        let Some(folder) = folder.filter(|_| has_room) else { return self.on_weights_opened(snapshot, None) };
        let (openings, events, of) =
            (Arc::clone(&self.weights.openings), self.threads.events.clone(), snapshot.clone());
        let run = move || {
            let mut opening = Opening::begin(&folder).ok();
            let files = opening.as_mut().and_then(Opening::files);
            let _ = events.send(Event::WeightsOpened { snapshot: of, files });
            if let Some(opening) = opening {
                opening.reap();
            }
            drop(openings);
        };
        if thread::Builder::new().name("open".into()).spawn(run).is_err() {
            self.on_weights_opened(snapshot, None);
        }
    }

    /// Sends the files of a content's weights that the node itself reads.
    pub(super) fn on_weights_opened(&mut self, snapshot: SnapshotDigest, files: Option<Vec<NodeFile>>) {
        let (names, files) = match files {
            Some(files) => {
                let (names, files) = files.into_iter().unzip();
                (Some(names), files)
            }
            None => (None, Vec::new()),
        };
        self.scheduler.send_with(FromLauncher::WeightsFiles { snapshot, names }, files);
    }

    /// Begins the downloads that there are places for, and sends changed stages.
    pub(super) fn begin_fetches(&mut self) {
        while let Some((key, order, stop)) = self.weights.fetches.begin_next(Instant::now()) {
            tracing::info!(source = order.source, "fetching weights");
            let (fetcher, events, key_of) =
                (Arc::clone(&self.weights.fetcher), self.threads.events.clone(), key.clone());
            let run = move || {
                let report = |report| {
                    // Without a main loop it has no recipient.
                    let _ = events.send(Event::WeightsReport { key: key_of.clone(), report });
                };
                let result = fetcher.fetch(&key_of, &order, &stop, &report);
                let _ = events.send(Event::WeightsEnded { key: key_of, result });
            };
            if let Err(error) = thread::Builder::new().name("weights".into()).spawn(run) {
                let message = format!("the node has no thread to fetch weights in: {error}");
                self.weights_ended(&key, &Err(Failure { message, permanent: false }));
            }
        }
        self.send_fetches();
    }

    fn send_fetches(&mut self) {
        let changes = self.weights.fetches.take_changes();
        for change in changes.into_iter().chain(self.weights.fetches.take_counts()) {
            self.scheduler.send(change);
        }
    }

    /// Sends the counts to a scheduler that has said hello.
    pub(super) fn send_weights_counts(&mut self) {
        self.weights.fetches.reset_sent();
        self.send_fetches();
    }

    /// Handles a report of a downloader.
    pub(super) fn on_weights_report(&mut self, key: &Digest, report: Report) {
        match report {
            Report::Listed { total, missing } => {
                let needed = self.weights.fetches.listed(key, total, missing);
                self.make_room(key, needed);
            }
            Report::Fetched { done } => self.weights.fetches.fetched(key, done),
            Report::Note { text } => self.tell(key, &text),
            // The end of the downloader brings it.
            Report::Failed { .. } => {}
        }
        self.send_fetches();
    }

    /// Removes weights that are not in use for those that are fetched. In use is what instances and zygotes have mounted,
    /// whatever their contents would be given now, and what contents are about to be started with.
    fn make_room(&mut self, key: &Digest, needed: u64) {
        let (cache, now) = (&self.weights.fetcher.cache, Instant::now());
        let ready = self.weights.ready.iter().filter(|(_, until)| **until > now).map(|(snapshot, _)| snapshot);
        let mounted = self.instances.weights().chain(self.zygotes.weights()).cloned();
        let running = self.instances.snapshots().chain(self.zygotes.snapshots());
        let snapshots = running.chain(ready).chain(self.preparation.builds.snapshots());
        let in_use = mounted.chain(snapshots.filter_map(|snapshot| cache.set_of(snapshot))).collect();
        if let Err(error) = cache.make_room(needed, &in_use, &self.weights.fetches.running()) {
            self.weights.fetches.stop(key, chain(&error));
        }
        self.weights.measure();
    }

    /// Adds a line to the logs of the models that wait.
    fn tell(&mut self, key: &Digest, line: &str) {
        let snapshots: BTreeSet<_> =
            self.weights.fetches.waiters(key).iter().map(|(_, snapshot)| snapshot.clone()).collect();
        for snapshot in snapshots {
            self.scheduler.send(FromLauncher::Progress { snapshot, line: shortened(line.to_owned()) });
        }
    }

    /// Handles the end of a downloader.
    pub(super) fn on_weights_ended(&mut self, key: &Digest, result: &Result<Digest, Failure>) {
        match result {
            Ok(set) => tracing::info!(%set, "weights are there"),
            Err(Failure { message, permanent }) => {
                tracing::warn!(reason = Foreign(message).to_string(), permanent, "weights cannot be fetched");
            }
        }
        if let (Ok(_), count @ 1..) = (result, self.weights.fetcher.cache.unverified(key)) {
            self.tell(
                key,
                &format!("weights: {count} files are unverified, as neither omni.toml nor a hub gave their digests"),
            );
        }
        self.weights_ended(key, result);
        self.begin_fetches();
    }

    fn weights_ended(&mut self, key: &Digest, result: &Result<Digest, Failure>) {
        let end = match result {
            Ok(_) => RunEnd::Fetched,
            Err(failure) if failure.permanent => RunEnd::Refused,
            Err(_) => RunEnd::Failed,
        };
        self.weights.measure();
        let waiters = self.weights.fetches.ended(key, end);
        for waiter in waiters {
            let snapshot = waiter.1.clone();
            let environment = self.weights.fetches.take_environment(&snapshot);
            match result.clone().and_then(|set| self.weights.use_for(&snapshot, &set)) {
                Ok(()) => {
                    if let Some(environment) = environment {
                        self.scheduler.send(FromLauncher::Prepared { snapshot, environment });
                    }
                }
                Err(failure) => {
                    // A late environment is no answer to the next request.
                    self.preparation.builds.planning.remove(&waiter);
                    self.preparation.builds.leave(&waiter);
                    self.prepare_failed([snapshot], failure);
                }
            }
        }
        self.begin_builds();
    }
}
