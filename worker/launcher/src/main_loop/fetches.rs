//! Weights being fetched, as the main loop knows them: waiting models, running downloads, progress, counts. No effects:
//! [`super::weights`] carries them out.
//!
//! One download serves all models that wait for its order, whatever their number.

use super::builds::Waiter;
use super::turns::{self, Running};
use crate::weights::Stop;
use omni_node_protocol::id::{EnvironmentKey, SnapshotDigest};
use omni_node_protocol::launcher::{FromLauncher, WeightsCounts, WeightsStage};
use omni_weights::{Digest, Order};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Downloads at a time.
const RUNNING: usize = 2;
/// Orders that run or wait.
const IN_ALL: usize = 256;

/// Too many orders.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("weights of {IN_ALL} sources are being fetched or wait for it: try again later")]
pub(super) struct Full;

struct Fetch {
    order: Arc<Order>,
    waiters: Vec<Waiter>,
    /// Beginning of the run; `None` for one that waits.
    begun: Option<Instant>,
    /// Runs that made way for others.
    turns: u32,
    /// The run is being ended for others, and goes on after them.
    makes_way: bool,
    stop: Arc<Stop>,
    /// No model waits, and the run is being ended.
    is_unwanted: bool,
    /// Bytes of all files and of those that are not on the node, once the source has been asked.
    listed: Option<(u64, u64)>,
    done: u64,
    /// Bytes that are on the disk and counted, once the downloader has said with how many it began.
    counted: Option<u64>,
    told: Option<WeightsStage>,
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RunEnd {
    /// With all files.
    Fetched,
    /// The next attempt may succeed.
    Failed,
    /// Every further attempt would fail, too.
    Refused,
}

impl Fetch {
    fn is_running(&self) -> bool {
        self.begun.is_some()
    }

    fn stage(&self) -> WeightsStage {
        match self.listed {
            // Bytes that an earlier run has left are known a moment after the list.
            Some((total, _)) if self.counted.is_some() => WeightsStage::Fetches { done: self.done, total },
            Some(_) | None => WeightsStage::Waits,
        }
    }
}

/// All of them.
#[derive(Default)]
pub(super) struct Fetches {
    fetches: BTreeMap<Digest, Fetch>,
    waiting: VecDeque<Digest>,
    /// Environments that are ready, of contents whose weights are not.
    ready: BTreeMap<SnapshotDigest, EnvironmentKey>,
    counts: WeightsCounts,
    /// Counts that the scheduler was sent last.
    told: Option<WeightsCounts>,
}

impl Fetches {
    /// A model waits for the weights of an order.
    pub(super) fn add(&mut self, key: Digest, order: Order, waiter: Waiter) -> Result<(), Full> {
        if let Some(fetch) = self.fetches.get_mut(&key) {
            if !fetch.waiters.contains(&waiter) {
                fetch.waiters.push(waiter);
            }
            fetch.told = None; // the new one is told, too
            return Ok(());
        }
        if self.fetches.len() >= IN_ALL {
            return Err(Full);
        }
        self.waiting.push_back(key.clone());
        let fetch = Fetch {
            order: Arc::new(order),
            waiters: vec![waiter],
            begun: None,
            turns: 0,
            makes_way: false,
            stop: Arc::default(),
            is_unwanted: false,
            listed: None,
            done: 0,
            counted: None,
            told: None,
        };
        self.fetches.insert(key, fetch);
        Ok(())
    }

    /// Takes the next order to run, while there is a place.
    pub(super) fn begin_next(&mut self, now: Instant) -> Option<(Digest, Arc<Order>, Arc<Stop>)> {
        if self.fetches.values().filter(|fetch| fetch.is_running()).count() >= RUNNING {
            return None;
        }
        let key = self.waiting.pop_front()?;
        let fetch = self.fetches.get_mut(&key)?;
        fetch.begun = Some(now);
        Some((key, Arc::clone(&fetch.order), Arc::clone(&fetch.stop)))
    }

    /// Has runs whose turn is over make way for orders that wait. Returns when this is to be asked for again.
    pub(super) fn end_turns(&mut self, now: Instant) -> Option<Duration> {
        let running = self.fetches.iter().filter_map(|(key, fetch)| {
            let is_ending = fetch.is_unwanted || fetch.makes_way;
            Some(Running { key: key.clone(), time: now - fetch.begun?, turns: fetch.turns, is_ending })
        });
        let running: Vec<_> = running.collect();
        for key in turns::over(&running, self.waiting.len()) {
            if let Some(fetch) = self.fetches.get_mut(&key) {
                fetch.makes_way = true;
                fetch.stop.set("it makes way for other models' weights, and goes on after them".to_owned());
            }
        }
        turns::next_end(&running, self.waiting.len())
    }

    /// Orders that run.
    pub(super) fn running(&self) -> BTreeSet<Digest> {
        self.fetches.iter().filter(|(_, fetch)| fetch.is_running()).map(|(key, _)| key.clone()).collect()
    }

    /// Contents whose weights are on their way.
    pub(super) fn snapshots(&self) -> impl Iterator<Item = &SnapshotDigest> {
        self.fetches.values().flat_map(|fetch| fetch.waiters.iter().map(|(_, snapshot)| snapshot))
    }

    /// The environment of a content is ready. Returns it, unless its weights are not.
    pub(super) fn environment_ready(
        &mut self,
        snapshot: &SnapshotDigest,
        environment: EnvironmentKey,
    ) -> Option<EnvironmentKey> {
        let waits = self.snapshots().any(|other| other == snapshot);
        if !waits {
            return Some(environment);
        }
        self.ready.insert(snapshot.clone(), environment);
        None
    }

    /// The environment of a content that was ready before its weights.
    pub(super) fn take_environment(&mut self, snapshot: &SnapshotDigest) -> Option<EnvironmentKey> {
        self.ready.remove(snapshot)
    }

    /// A model does not wait any more.
    pub(super) fn leave(&mut self, waiter: &Waiter) {
        self.retain(|other| other != waiter);
    }

    /// No model waits for the weights of a content any more.
    pub(super) fn forget(&mut self, snapshot: &SnapshotDigest) {
        self.retain(|(_, other)| other != snapshot);
    }

    fn retain(&mut self, stays: impl Fn(&Waiter) -> bool) {
        let mut unwanted = BTreeSet::new();
        for (key, fetch) in &mut self.fetches {
            fetch.waiters.retain(&stays);
            if fetch.waiters.is_empty() && fetch.is_running() {
                fetch.is_unwanted = true;
                fetch.stop.set("no model waits for them any more".to_owned());
            } else if fetch.waiters.is_empty() {
                unwanted.insert(key.clone());
            }
        }
        self.fetches.retain(|key, _| !unwanted.contains(key));
        self.waiting.retain(|key| !unwanted.contains(key));
        let waiting: BTreeSet<SnapshotDigest> = self.snapshots().cloned().collect();
        self.ready.retain(|snapshot, _| waiting.contains(snapshot));
    }

    /// The source has been asked what there is. Returns the bytes that all running orders need.
    pub(super) fn listed(&mut self, key: &Digest, total: u64, missing: u64) -> u64 {
        if let Some(fetch) = self.fetches.get_mut(key) {
            (fetch.listed, fetch.done) = (Some((total, missing)), total.saturating_sub(missing));
            fetch.counted = None;
        }
        let missing = |fetch: &Fetch| fetch.listed.map_or(0, |(_, missing)| missing);
        self.fetches.values().map(missing).fold(0, u64::saturating_add)
    }

    /// Bytes of an order that are on the disk. The first after a list are those that were there before.
    pub(super) fn fetched(&mut self, key: &Digest, done: u64) {
        let Some(fetch) = self.fetches.get_mut(key) else { return };
        fetch.done = done.min(fetch.listed.map_or(0, |(total, _)| total));
        let before = fetch.counted.replace(fetch.done).unwrap_or(fetch.done);
        let written = fetch.done.saturating_sub(before);
        self.counts.fetched_bytes = self.counts.fetched_bytes.saturating_add(written);
    }

    /// The cache has so many bytes, of at most so many.
    pub(super) fn set_cache(&mut self, bytes: u64, limit: u64) {
        (self.counts.cache_bytes, self.counts.cache_limit_bytes) = (bytes, limit);
    }

    /// Ends a run, with a reason for its models.
    pub(super) fn stop(&self, key: &Digest, reason: String) {
        if let Some(fetch) = self.fetches.get(key) {
            fetch.stop.set(reason);
        }
    }

    /// Models that wait for an order.
    pub(super) fn waiters(&self, key: &Digest) -> &[Waiter] {
        self.fetches.get(key).map_or(&[], |fetch| &fetch.waiters)
    }

    /// A run has ended. Returns its models, unless it goes on: for one that came while it was being ended, or after
    /// others.
    pub(super) fn ended(&mut self, key: &Digest, end: RunEnd) -> Vec<Waiter> {
        let Some(fetch) = self.fetches.get_mut(key) else { return Vec::new() };
        if fetch.makes_way && !fetch.waiters.is_empty() && end == RunEnd::Failed {
            fetch.turns = fetch.turns.saturating_add(1);
            self.wait_again(key);
            return Vec::new();
        }
        let count = match end {
            RunEnd::Fetched => &mut self.counts.fetched,
            RunEnd::Failed | RunEnd::Refused if fetch.is_unwanted => &mut self.counts.cancelled,
            RunEnd::Failed => &mut self.counts.failed,
            RunEnd::Refused => &mut self.counts.refused,
        };
        *count += 1;
        if fetch.is_unwanted && !fetch.waiters.is_empty() {
            self.wait_again(key);
            return Vec::new();
        }
        self.fetches.remove(key).map_or_else(Vec::new, |fetch| fetch.waiters)
    }

    /// Puts an order whose run has ended behind those that wait.
    fn wait_again(&mut self, key: &Digest) {
        if let Some(fetch) = self.fetches.get_mut(key) {
            (fetch.begun, fetch.is_unwanted, fetch.makes_way) = (None, false, false);
            (fetch.stop, fetch.listed, fetch.counted) = (Arc::default(), None, None);
            self.waiting.push_back(key.clone());
        }
    }

    /// Messages for the scheduler: all that changed since the last call.
    pub(super) fn take_changes(&mut self) -> Vec<FromLauncher> {
        let mut changes = Vec::new();
        for fetch in self.fetches.values_mut() {
            let stage = fetch.stage();
            if fetch.told == Some(stage) {
                continue;
            }
            fetch.told = Some(stage);
            let snapshots: BTreeSet<_> = fetch.waiters.iter().map(|(_, snapshot)| snapshot.clone()).collect();
            changes.extend(snapshots.into_iter().map(|snapshot| FromLauncher::Weights { snapshot, stage }));
        }
        changes
    }

    /// Counts for the scheduler, if they have changed since the last call.
    pub(super) fn take_counts(&mut self) -> Option<FromLauncher> {
        let is_news = self.told.replace(self.counts) != Some(self.counts);
        is_news.then_some(FromLauncher::WeightsCounts(self.counts))
    }

    /// Resets the sent counts: a new scheduler knows none.
    pub(super) fn reset_sent(&mut self) {
        self.told = None;
    }
}

#[cfg(test)]
mod tests;
