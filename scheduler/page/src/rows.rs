//! Rows of the page: the state of the node as a browser gets it. Pure.
//!
//! Invariant: a row of a node at rest is the same at each tick. Ages are therefore sent as moments of beginning, and a
//! moment that is told apart from the last one only by the jitter of two clocks is the last one.

use crate::jobs::JobRow;
use crate::snapshot::{Counters, Latency, ModelSample, Share, Snapshot};
use crate::text::ending;
use omni_control_api::{Generation, Gpu, GpuInstance, Instance, Model, Stop};
use serde::Serialize;
use std::collections::{BTreeMap, VecDeque};

/// Difference of two moments that is jitter, in milliseconds.
const JITTER_MS: u64 = 2000;
/// Ticks over which the rate of requests is averaged.
const RATE_TICKS: usize = 10;
/// Lines of a build that are sent.
const BUILD_LINES: usize = 20;

/// All rows.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Rows {
    pub(crate) node: NodeRow,
    pub(crate) cards: BTreeMap<u32, CardRow>,
    pub(crate) models: BTreeMap<String, ModelRow>,
    /// Texts of models, which only an administrator may read.
    pub(crate) details: BTreeMap<String, DetailRow>,
    pub(crate) jobs: BTreeMap<String, JobRow>,
}

/// The node itself.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct NodeRow {
    version: String,
    started_ms: u64,
    draining: bool,
    launcher_connected: bool,
    memory: Share,
    cpu_millis: Share,
    processes: Share,
    bodies: Share,
    waiting: u64,
    /// Host memory that evicted instances may need.
    gpu_host: Share,
    /// Reason why no card can be used.
    gpu_message: Option<String>,
}

/// A card.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct CardRow {
    index: u32,
    name: String,
    total: u64,
    used: u64,
    budget: u64,
    resident: u64,
    committed: u64,
    commit_limit: u64,
    instances: Vec<CardInstance>,
}

/// An instance on a card.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct CardInstance {
    model: String,
    id: String,
    limit: u64,
    allocated: u64,
    resident: u64,
    residency: &'static str,
    busy: bool,
    evictions: u64,
    restores: u64,
}

/// A model.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct ModelRow {
    name: String,
    kind: Option<&'static str>,
    state: &'static str,
    held: bool,
    version: Option<String>,
    pinned: bool,
    /// The directory has a content that is refused.
    refused: bool,
    queued: u64,
    queue_limit: u64,
    in_flight: u64,
    restarts: u64,
    retry_at_ms: Option<u64>,
    /// Requests per second, and failed ones of them.
    rate: f64,
    failing: f64,
    latency: Option<Latency>,
    memory: Option<Share>,
    instances: Vec<InstanceRow>,
    generations: Vec<GenerationRow>,
}

/// An instance.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct InstanceRow {
    id: String,
    version: String,
    state: &'static str,
    since_ms: u64,
    in_flight: u64,
}

/// A version of a model.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct GenerationRow {
    version: String,
    role: &'static str,
    state: &'static str,
}

/// Texts of a model.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct DetailRow {
    name: String,
    message: Option<String>,
    refused: Option<String>,
    last_exit: Option<String>,
    last_stop: Option<Stop>,
    /// Messages of versions, by version.
    versions: Vec<(String, String)>,
    build_log: Vec<String>,
}

/// Counts of requests at the last ticks, for rates.
#[derive(Debug, Default)]
pub(crate) struct Meters(BTreeMap<String, VecDeque<(f64, Counters)>>);

impl Rows {
    /// Rows of a snapshot that follows the one of `last`.
    pub(crate) fn new(snapshot: &Snapshot, last: &Self, meters: &mut Meters) -> Self {
        meters.observe(snapshot);
        let cards = snapshot.gpus.gpus.iter().map(|card| (card.index, CardRow::new(card)));
        let models = snapshot.models.iter().map(|sample| {
            let name = &sample.model.name;
            let row = ModelRow::new(sample, snapshot.unix_ms, last.models.get(name), meters.rates(name));
            (name.clone(), row)
        });
        let details = snapshot.models.iter().map(|sample| (sample.model.name.clone(), DetailRow::new(&sample.model)));
        Self {
            node: NodeRow::new(snapshot, &last.node),
            cards: cards.collect(),
            models: models.collect(),
            details: details.collect(),
            jobs: snapshot.jobs.iter().map(|job| (job.id.clone(), JobRow::new(job))).collect(),
        }
    }
}

impl NodeRow {
    fn new(snapshot: &Snapshot, last: &Self) -> Self {
        let node = &snapshot.node;
        let gpus = &snapshot.gpus;
        let started_ms = snapshot.unix_ms.saturating_sub((snapshot.at.max(0.0) * 1000.0) as u64);
        Self {
            version: node.version.clone(),
            started_ms: steady(started_ms, Some(last.started_ms)),
            draining: node.draining,
            launcher_connected: node.launcher_connected,
            memory: node.memory,
            cpu_millis: node.cpu_millis,
            processes: node.processes,
            bodies: node.bodies,
            waiting: node.waiting,
            gpu_host: Share { used: gpus.host_committed_bytes, limit: Some(gpus.host_budget_bytes) },
            gpu_message: gpus.message.clone(),
        }
    }
}

impl CardRow {
    fn new(card: &Gpu) -> Self {
        let instance = |at: &GpuInstance| CardInstance {
            model: at.model.clone(),
            id: at.instance.clone(),
            limit: at.limit_bytes,
            allocated: at.allocated_bytes,
            resident: at.resident_bytes,
            residency: at.residency.as_str(),
            busy: at.idle_seconds.is_none(),
            evictions: at.evictions,
            restores: at.restores,
        };
        let mut instances: Vec<CardInstance> = card.instances.iter().map(instance).collect();
        // The map keeps its order, whoever was used last.
        instances.sort_unstable_by(|a, b| (&a.model, &a.id).cmp(&(&b.model, &b.id)));
        Self {
            index: card.index,
            name: card.name.clone(),
            total: card.total_bytes,
            used: card.used_bytes,
            budget: card.budget_bytes,
            resident: card.resident_bytes,
            committed: card.committed_bytes,
            commit_limit: card.commit_limit_bytes,
            instances,
        }
    }
}

impl ModelRow {
    fn new(sample: &ModelSample, now_ms: u64, last: Option<&Self>, (rate, failing): (f64, f64)) -> Self {
        let model = &sample.model;
        let since_last = |id: &str| last?.instances.iter().find(|row| row.id == id).map(|row| row.since_ms);
        let instance = |instance: &Instance| InstanceRow {
            since_ms: steady(before(now_ms, instance.age_seconds), since_last(&instance.id)),
            id: instance.id.clone(),
            version: instance.version.clone(),
            state: instance.state.as_str(),
            in_flight: instance.in_flight,
        };
        let generation = |generation: &Generation| GenerationRow {
            version: generation.version.clone(),
            role: generation.role.as_str(),
            state: generation.state.as_str(),
        };
        let retry_at = model.retry_in_seconds.map(|seconds| now_ms.saturating_add((seconds.max(0.0) * 1000.0) as u64));
        Self {
            name: model.name.clone(),
            kind: sample.kind,
            state: model.state.as_str(),
            held: model.held,
            version: model.version.clone(),
            pinned: model.pinned.is_some(),
            refused: model.directory.refused.is_some(),
            queued: model.queued,
            queue_limit: model.queue_limit,
            in_flight: model.in_flight,
            restarts: model.restarts,
            retry_at_ms: retry_at.map(|at| steady(at, last.and_then(|last| last.retry_at_ms))),
            rate,
            failing,
            latency: sample.latency,
            memory: sample.memory,
            instances: model.instances.iter().map(instance).collect(),
            generations: model.generations.iter().map(generation).collect(),
        }
    }
}

impl DetailRow {
    fn new(model: &Model) -> Self {
        let shown = |text: &Option<String>| text.as_deref().map(ending);
        let versions = model.generations.iter();
        let versions = versions.filter_map(|at| Some((at.version.clone(), ending(at.message.as_deref()?))));
        let skip = model.build_log.len().saturating_sub(BUILD_LINES);
        let last_stop = model.last_stop.clone().map(|stop| Stop { message: ending(&stop.message), ..stop });
        Self {
            name: model.name.clone(),
            message: shown(&model.message),
            refused: shown(&model.directory.refused),
            last_exit: shown(&model.last_exit),
            last_stop,
            versions: versions.collect(),
            build_log: model.build_log.iter().skip(skip).map(|line| ending(line)).collect(),
        }
    }
}

impl Meters {
    fn observe(&mut self, snapshot: &Snapshot) {
        let is_there = |name: &str| snapshot.models.binary_search_by(|at| at.model.name.as_str().cmp(name)).is_ok();
        self.0.retain(|name, _| is_there(name));
        for sample in &snapshot.models {
            let counts = self.0.entry(sample.model.name.clone()).or_default();
            if counts.len() > RATE_TICKS {
                counts.pop_front();
            }
            counts.push_back((snapshot.at, sample.counters));
        }
    }

    /// Requests and failures of a model per second, to two digits behind the point.
    fn rates(&self, name: &str) -> (f64, f64) {
        let counts = self.0.get(name);
        let ends = counts.and_then(|counts| Some((*counts.front()?, *counts.back()?)));
        let Some(((then, before), (now, after))) = ends.filter(|((then, _), (now, _))| now > then) else {
            return (0.0, 0.0);
        };
        let rate = |before: u64, after: u64| rounded(after.saturating_sub(before) as f64 / (now - then), 100.0);
        (rate(before.ended, after.ended), rate(before.failed, after.failed))
    }

    /// Requests and failures of a model between the last two ticks.
    pub(crate) fn increments(&self, name: &str) -> Counters {
        let Some(counts) = self.0.get(name) else { return Counters::default() };
        let mut newest = counts.iter().rev().map(|(_, counts)| counts);
        let Some((after, before)) = newest.next().zip(newest.next()) else { return Counters::default() };
        Counters { ended: after.ended.saturating_sub(before.ended), failed: after.failed.saturating_sub(before.failed) }
    }
}

fn rounded(value: f64, parts: f64) -> f64 {
    (value * parts).round() / parts
}

/// Moment that was so many seconds ago.
fn before(now_ms: u64, seconds: f64) -> u64 {
    now_ms.saturating_sub((seconds.max(0.0) * 1000.0) as u64)
}

/// The last moment, where the new one differs by jitter alone.
fn steady(moment: u64, last: Option<u64>) -> u64 {
    last.filter(|last| last.abs_diff(moment) <= JITTER_MS).unwrap_or(moment)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jitter_is_no_difference() {
        assert_eq!(steady(10_000, Some(9_001)), 9_001);
        assert_eq!(steady(10_000, Some(1_000)), 10_000);
        assert_eq!(steady(10_000, None), 10_000);
    }
}
