//! Weights being fetched, as the main loop knows them: waiting models, running downloads, progress. No effects:
//! [`super::weights`] carries them out.
//!
//! One download serves all models that wait for its order, whatever their number.

use super::builds::Waiter;
use crate::weights::Stop;
use omni_node_protocol::id::{EnvironmentKey, SnapshotDigest};
use omni_node_protocol::launcher::{FromLauncher, WeightsStage};
use omni_weights::{Digest, Order};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

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
    is_running: bool,
    stop: Arc<Stop>,
    /// No model waits, and the run is being ended.
    is_unwanted: bool,
    /// Bytes of all files and of those that are not on the node, once the source has been asked.
    listed: Option<(u64, u64)>,
    done: u64,
    told: Option<WeightsStage>,
}

impl Fetch {
    fn stage(&self) -> WeightsStage {
        match self.listed {
            Some((total, _)) => WeightsStage::Fetches { done: self.done.min(total), total },
            None => WeightsStage::Waits,
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
            is_running: false,
            stop: Arc::default(),
            is_unwanted: false,
            listed: None,
            done: 0,
            told: None,
        };
        self.fetches.insert(key, fetch);
        Ok(())
    }

    /// Takes the next order to run, while there is a place.
    pub(super) fn begin_next(&mut self) -> Option<(Digest, Arc<Order>, Arc<Stop>)> {
        if self.fetches.values().filter(|fetch| fetch.is_running).count() >= RUNNING {
            return None;
        }
        let key = self.waiting.pop_front()?;
        let fetch = self.fetches.get_mut(&key)?;
        fetch.is_running = true;
        Some((key, Arc::clone(&fetch.order), Arc::clone(&fetch.stop)))
    }

    /// Orders that run.
    pub(super) fn running(&self) -> BTreeSet<Digest> {
        self.fetches.iter().filter(|(_, fetch)| fetch.is_running).map(|(key, _)| key.clone()).collect()
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
            if fetch.waiters.is_empty() && fetch.is_running {
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
        }
        let missing = |fetch: &Fetch| fetch.listed.map_or(0, |(_, missing)| missing);
        self.fetches.values().map(missing).fold(0, u64::saturating_add)
    }

    /// Bytes of an order that are on the disk.
    pub(super) fn fetched(&mut self, key: &Digest, done: u64) {
        if let Some(fetch) = self.fetches.get_mut(key) {
            fetch.done = done;
        }
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

    /// A run has ended. Returns its models, unless it goes on: for one that came while it was being ended.
    pub(super) fn ended(&mut self, key: &Digest) -> Vec<Waiter> {
        let Some(fetch) = self.fetches.get_mut(key) else { return Vec::new() };
        if fetch.is_unwanted && !fetch.waiters.is_empty() {
            (fetch.is_running, fetch.is_unwanted, fetch.stop, fetch.listed) = (false, false, Arc::default(), None);
            self.waiting.push_back(key.clone());
            return Vec::new();
        }
        self.fetches.remove(key).map_or_else(Vec::new, |fetch| fetch.waiters)
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use omni_config::NodeConfig;
    use omni_node_protocol::launcher::WeightsRequest;

    fn snapshot(number: u32) -> SnapshotDigest {
        SnapshotDigest::parse(&format!("{number:064x}")).unwrap()
    }

    fn environment() -> EnvironmentKey {
        EnvironmentKey::parse(&"e".repeat(64)).unwrap()
    }

    fn order(name: &str) -> Order {
        let config = NodeConfig::parse("[weights.sources.\"https://host\"]\n").unwrap().weights;
        let request = WeightsRequest { source: format!("https://host/{name}"), sha256: None, files: BTreeMap::new() };
        Order::new(&request, &config, 0, "boot").unwrap()
    }

    fn waiter(number: u32) -> Waiter {
        (format!("model-{number}"), snapshot(number))
    }

    fn add(fetches: &mut Fetches, name: &str, number: u32) -> Digest {
        let key = order(name).key();
        fetches.add(key.clone(), order(name), waiter(number)).unwrap();
        key
    }

    #[test]
    fn one_run_serves_all_models_of_its_order() {
        let mut fetches = Fetches::default();
        let key = add(&mut fetches, "w", 1);
        assert_eq!(fetches.begin_next().map(|(key, ..)| key), Some(key.clone()));
        for number in [1, 2, 3] {
            add(&mut fetches, "w", number);
        }
        assert!(fetches.begin_next().is_none());
        assert_eq!(fetches.environment_ready(&snapshot(2), environment()), None);
        assert_eq!(fetches.environment_ready(&snapshot(9), environment()), Some(environment()));
        assert_eq!(fetches.take_changes().len(), 3);
        assert_eq!(fetches.listed(&key, 100, 60), 60);
        let fetching = WeightsStage::Fetches { done: 40, total: 100 };
        let told = |change: &FromLauncher| matches!(change, FromLauncher::Weights { stage, .. } if *stage == fetching);
        assert!(fetches.take_changes().iter().all(told) && fetches.take_changes().is_empty());
        assert_eq!(fetches.ended(&key), [waiter(1), waiter(2), waiter(3)]);
        assert_eq!(fetches.take_environment(&snapshot(2)), Some(environment()));
        assert_eq!(fetches.take_environment(&snapshot(1)), None);
    }

    #[test]
    fn as_many_run_as_there_are_places_in_the_order_of_their_coming() {
        let mut fetches = Fetches::default();
        let keys: Vec<_> = (1..=4).map(|number| add(&mut fetches, &format!("w{number}"), number)).collect();
        let begun: Vec<_> = std::iter::from_fn(|| fetches.begin_next()).map(|(key, ..)| key).collect();
        assert_eq!(begun, keys[..2]);
        fetches.leave(&waiter(3));
        fetches.ended(&keys[0]);
        assert_eq!(fetches.begin_next().map(|(key, ..)| key), Some(keys[3].clone()));
    }

    #[test]
    fn a_run_without_models_ends_and_begins_anew_for_one_that_comes_meanwhile() {
        let mut fetches = Fetches::default();
        let key = add(&mut fetches, "w", 1);
        fetches.begin_next().unwrap();
        fetches.environment_ready(&snapshot(1), environment());
        fetches.forget(&snapshot(1));
        assert_eq!(fetches.take_environment(&snapshot(1)), None);
        add(&mut fetches, "w", 2);
        assert_eq!(fetches.ended(&key), []);
        assert_eq!(fetches.begin_next().map(|(key, ..)| key), Some(key.clone()));
        assert_eq!(fetches.ended(&key), [waiter(2)]);
    }
}
