//! Recorder: takes a snapshot of the node once a second, for its page and its history.
//!
//! Instances are asked for their memory only while somebody watches, as that wakes their workers.

use super::Page;
use crate::control::{Control, newest_jobs};
use crate::resource_use::resource_use;
use omni_capacity::CapacityHandle;
use omni_control_api::Job;
use omni_page::{Counters, Latency, ModelSample, NodeSample, Share, Snapshot};
use omni_supervisor::clock::unix_ms;
use omni_supervisor::latency::{LatencyWindow, Quantiles};
use omni_supervisor::model::Model;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::MissedTickBehavior;

/// Interval of the snapshots.
const INTERVAL: Duration = Duration::from_secs(1);
/// Snapshots between two queries for the memory of instances.
const MEMORY_EVERY: u64 = 5;
/// Snapshots between two queries for the batches.
const JOBS_EVERY: u64 = 2;
/// Batches that are shown, the newest.
const JOBS: usize = 20;
/// Snapshots in a period of the quantiles.
const PERIOD: u64 = 10;

/// Recorder, and its memory of the last snapshots.
pub(super) struct Recorder {
    control: Control,
    capacity: CapacityHandle,
    windows: HashMap<String, LatencyWindow>,
    memory: HashMap<String, Share>,
    jobs: Vec<Job>,
    ticks: u64,
}

impl Recorder {
    pub(super) fn new(control: Control, capacity: CapacityHandle) -> Self {
        Self { control, capacity, windows: HashMap::new(), memory: HashMap::new(), jobs: Vec::new(), ticks: 0 }
    }

    /// Records until a successor has taken over.
    pub(super) async fn run(mut self, page: Arc<Page>) {
        let node = Arc::clone(self.control.run.node());
        let mut interval = tokio::time::interval(INTERVAL);
        interval.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            tokio::select! {
                _ = interval.tick() => {}
                () = node.taken_over() => return,
            }
            if page.hub.is_watched() {
                if self.memory.is_empty() || self.ticks.is_multiple_of(MEMORY_EVERY) {
                    self.measure_memory().await;
                }
                if self.jobs.is_empty() || self.ticks.is_multiple_of(JOBS_EVERY) {
                    self.jobs = newest_jobs(&self.control, JOBS).await;
                }
            } else {
                self.memory.clear();
                self.jobs.clear();
            }
            page.hub.tick(&self.snapshot());
            self.ticks += 1;
        }
    }

    async fn measure_memory(&mut self) {
        let all = resource_use(self.control.run.node()).await;
        let measured = all.into_iter().filter_map(|(model, stats)| {
            let stats = stats?;
            Some((model.name.to_string(), Share { used: stats.memory_bytes, limit: Some(stats.memory_limit_bytes) }))
        });
        self.memory = measured.collect();
    }

    fn snapshot(&mut self) -> Snapshot {
        let models = self.control.run.node().models();
        let begins_period = self.ticks.is_multiple_of(PERIOD);
        if begins_period {
            self.windows.retain(|name, _| models.iter().any(|model| model.name.as_str() == name));
        }
        for model in &models {
            if !self.windows.contains_key(model.name.as_str()) {
                self.windows.insert(model.name.to_string(), LatencyWindow::default());
            } else if begins_period && let Some(window) = self.windows.get_mut(model.name.as_str()) {
                window.advance(&model.metrics.latency);
            }
        }
        Snapshot {
            at: self.control.clock.now().as_secs_f64(),
            unix_ms: unix_ms(),
            node: self.node(),
            gpus: self.control.gpu.view(),
            models: models.iter().map(|model| self.model(model)).collect(),
            jobs: self.jobs.clone(),
        }
    }

    fn node(&self) -> NodeSample {
        let Control { run, budget, config, .. } = &self.control;
        let view = self.capacity.view();
        let bounded = |used: u64, limit: u64| Share { used, limit: Some(limit).filter(|limit| *limit < u64::MAX) };
        NodeSample {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            draining: run.node().draining(),
            launcher_connected: run.node().launcher.connected(),
            memory: bounded(view.committed.memory, view.budget.memory),
            cpu_millis: bounded(view.committed.millicpus, view.budget.millicpus),
            processes: bounded(view.committed.processes, view.budget.processes),
            bodies: bounded(budget.reserved(), config.server.buffered_bytes.bytes()),
            waiting: view.waiting as u64,
        }
    }

    fn model(&self, model: &Model) -> ModelSample {
        let name = model.name.as_str();
        let milliseconds = |time: Duration| (time.as_secs_f64() * 10_000.0).round() / 10.0;
        let quantiles = self.windows.get(name).and_then(|window| window.quantiles(&model.metrics.latency));
        let latency = quantiles.map(|Quantiles { p50, p95, p99 }| Latency {
            p50: milliseconds(p50),
            p95: milliseconds(p95),
            p99: milliseconds(p99),
        });
        ModelSample {
            model: model.view(),
            kind: model.admission().content.map(|content| content.manifest.model.kind.name()),
            counters: Counters { ended: model.metrics.answered(), failed: model.metrics.failed() },
            latency,
            memory: self.memory.get(name).copied(),
        }
    }
}
