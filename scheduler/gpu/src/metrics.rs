//! Metrics of the node's GPUs.

use omni_control_api::Gpus;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};
use std::time::Duration;

/// Bounds of durations in all histograms of models, in seconds: from a cached answer to a long generation.
pub const SECONDS: [f64; 14] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0, 300.0];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ModelLabel {
    model: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct GpuLabel {
    gpu: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DirectionLabel {
    direction: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

/// Handles of the GPU task's metrics. Bytes are what instances report, except `used`, which the driver measures.
#[derive(Debug, Clone)]
pub struct GpuMetrics {
    total: Family<GpuLabel, Gauge>,
    used: Family<GpuLabel, Gauge>,
    budget: Family<GpuLabel, Gauge>,
    committed: Family<GpuLabel, Gauge>,
    lost: Family<GpuLabel, Gauge>,
    resident: Family<ModelLabel, Gauge>,
    host_committed: Gauge,
    host_budget: Gauge,
    swap_in: Family<ModelLabel, Histogram, fn() -> Histogram>,
    /// `omni_gpu_swap_bytes_total{direction="in"}`.
    pub moved_in: Counter,
    /// `omni_gpu_swap_bytes_total{direction="out"}`.
    pub moved_out: Counter,
    refused: Family<ReasonLabel, Counter>,
    ended: Family<ReasonLabel, Counter>,
}

impl GpuMetrics {
    /// Registers the metrics, without a card.
    pub fn register(r: &mut Registry) -> Self {
        let swapped: Family<DirectionLabel, Counter> = Family::default();
        let metrics = Self {
            total: Family::default(),
            used: Family::default(),
            budget: Family::default(),
            committed: Family::default(),
            lost: Family::default(),
            resident: Family::default(),
            host_committed: Gauge::default(),
            host_budget: Gauge::default(),
            swap_in: Family::new_with_constructor(|| Histogram::new(SECONDS)),
            moved_in: swapped.get_or_create_owned(&DirectionLabel { direction: "in" }),
            moved_out: swapped.get_or_create_owned(&DirectionLabel { direction: "out" }),
            refused: Family::default(),
            ended: Family::default(),
        };
        let bytes = Unit::Bytes;
        r.register_with_unit("gpu_memory_total", "Memory of the card", bytes.clone(), metrics.total.clone());
        r.register_with_unit("gpu_memory_used", "Of it in use, by anybody", bytes.clone(), metrics.used.clone());
        r.register_with_unit("gpu_memory_budget", "What models may have on it", bytes.clone(), metrics.budget.clone());
        let committed = metrics.committed.clone();
        r.register_with_unit("gpu_memory_committed", "Sum of the models' gpu-memory", bytes.clone(), committed);
        r.register("gpu_lost", "1: the card does not answer any more", metrics.lost.clone());
        let resident = metrics.resident.clone();
        r.register_with_unit("gpu_resident", "GPU memory of a model that is on the card", bytes.clone(), resident);
        let host = metrics.host_committed.clone();
        r.register_with_unit("gpu_host_committed", "Host memory that evicted models may need", bytes.clone(), host);
        let host = metrics.host_budget.clone();
        r.register_with_unit("gpu_host_budget", "The most of it", bytes.clone(), host);
        let swap_in = metrics.swap_in.clone();
        r.register_with_unit("gpu_swap_in", "Until a model's memory is on the card", Unit::Seconds, swap_in);
        r.register_with_unit("gpu_swap", "Bytes moved to the card and from it", bytes, swapped);
        r.register("gpu_refusals", "Starts refused for want of GPU memory, by reason", metrics.refused.clone());
        r.register("gpu_ends", "Instances ended for their GPU memory, by reason", metrics.ended.clone());
        metrics
    }

    /// Sets what is on the cards, and which of them are lost.
    pub fn set(&self, gpus: &Gpus, lost: &[bool]) {
        let bytes = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
        for (gpu, lost) in gpus.gpus.iter().zip(lost) {
            let label = GpuLabel { gpu: gpu.index };
            self.total.get_or_create(&label).set(bytes(gpu.total_bytes));
            self.used.get_or_create(&label).set(bytes(gpu.used_bytes));
            self.budget.get_or_create(&label).set(bytes(gpu.budget_bytes));
            self.committed.get_or_create(&label).set(bytes(gpu.committed_bytes));
            self.lost.get_or_create(&label).set(i64::from(*lost));
            for instance in &gpu.instances {
                let label = ModelLabel { model: instance.model.clone() };
                self.resident.get_or_create(&label).set(bytes(instance.resident_bytes));
            }
        }
        self.host_committed.set(bytes(gpus.host_committed_bytes));
        self.host_budget.set(bytes(gpus.host_budget_bytes));
    }

    /// Removes the memory of a model's instance that has ended.
    pub fn gone(&self, model: &str) {
        self.resident.remove(&ModelLabel { model: model.to_owned() });
    }

    /// Removes all series of a model that is gone.
    pub fn forget(&self, model: &str) {
        self.gone(model);
        self.swap_in.remove(&ModelLabel { model: model.to_owned() });
    }

    /// Counts a move of a model's memory to the card, with its duration.
    pub fn swapped_in(&self, model: &str, time: Duration) {
        let label = ModelLabel { model: model.to_owned() };
        self.swap_in.get_or_create(&label).observe(time.as_secs_f64());
    }

    /// Counts a refused start.
    pub fn refused(&self, reason: &'static str) {
        self.refused.get_or_create(&ReasonLabel { reason }).inc();
    }

    /// Counts an instance that is ended for its GPU memory.
    pub fn ended(&self, reason: &'static str) {
        self.ended.get_or_create(&ReasonLabel { reason }).inc();
    }
}
