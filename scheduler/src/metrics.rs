//! Every metric of the scheduler: names, units and labels in one place (design §8). No label is unbounded: models are
//! directories on this node, usage units are checked words.

use omni_api::{Gpus, State};
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Bounds of durations, in seconds: from a cached answer to a long generation.
const SECONDS: [f64; 14] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0, 300.0];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ModelLabel {
    model: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    model: String,
    api: &'static str,
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PhaseLabels {
    model: String,
    phase: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StateLabels {
    model: String,
    state: StateLabel,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabels {
    model: String,
    reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StartLabels {
    phase: &'static str,
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

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct UsageLabels {
    model: String,
    unit: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct StateLabel(State);

impl EncodeLabelValue for StateLabel {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), fmt::Error> {
        self.0.as_str().encode(encoder)
    }
}

type Histograms<L> = Family<L, Histogram, fn() -> Histogram>;

/// The registry and its families.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    requests: Family<RequestLabels, Counter>,
    duration: Histograms<PhaseLabels>,
    first_byte: Histograms<ModelLabel>,
    in_flight: Family<ModelLabel, Gauge>,
    queued: Family<ModelLabel, Gauge>,
    queue_wait: Histograms<ModelLabel>,
    instances: Family<StateLabels, Gauge>,
    restarts: Family<ReasonLabels, Counter>,
    start: Histograms<StartLabels>,
    memory: Family<ModelLabel, Gauge>,
    oom_kills: Family<ModelLabel, Counter>,
    usage: Family<UsageLabels, Counter>,
    gpu: GpuMetrics,
}

fn seconds() -> Histogram {
    Histogram::new(SECONDS)
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("omni");
        let metrics = Self {
            requests: Family::default(),
            duration: Family::new_with_constructor(seconds),
            first_byte: Family::new_with_constructor(seconds),
            in_flight: Family::default(),
            queued: Family::default(),
            queue_wait: Family::new_with_constructor(seconds),
            instances: Family::default(),
            restarts: Family::default(),
            start: Family::new_with_constructor(seconds),
            memory: Family::default(),
            oom_kills: Family::default(),
            usage: Family::default(),
            gpu: GpuMetrics::register(&mut registry),
            registry: Registry::default(),
        };
        registry.register("requests", "Requests answered, by outcome", metrics.requests.clone());
        let r = &mut registry;
        r.register_with_unit("request_duration", "Time of a request", Unit::Seconds, metrics.duration.clone());
        let first = metrics.first_byte.clone();
        r.register_with_unit("time_to_first_byte", "Until the answer begins", Unit::Seconds, first);
        r.register("requests_in_flight", "Requests that the model has", metrics.in_flight.clone());
        r.register("queue_depth", "Requests that wait", metrics.queued.clone());
        r.register_with_unit("queue_wait", "Time in the queue", Unit::Seconds, metrics.queue_wait.clone());
        r.register("instances", "Instances by state", metrics.instances.clone());
        r.register("instance_restarts", "Deaths of instances, by reason", metrics.restarts.clone());
        let start = metrics.start.clone();
        r.register_with_unit("instance_start_duration", "Until an instance is ready", Unit::Seconds, start);
        r.register_with_unit("worker_memory", "Memory charged to an instance", Unit::Bytes, metrics.memory.clone());
        r.register("worker_oom_kills", "Instances ended by their memory limit", metrics.oom_kills.clone());
        r.register("usage", "Usage that models reported", metrics.usage.clone());
        Self { registry, ..metrics }
    }
}

impl Metrics {
    /// The metrics in the OpenMetrics text format.
    #[must_use]
    pub fn render(&self) -> String {
        let mut text = String::new();
        // Writing to a string fails only when a metric cannot be encoded, which no metric of ours can.
        let _ = encode(&mut text, &self.registry);
        text
    }

    /// The handles of the GPU task.
    #[must_use]
    pub fn of_gpus(&self) -> GpuMetrics {
        self.gpu.clone()
    }

    /// The handles of one model, looked up once.
    #[must_use]
    pub fn of_model(&self, model: &str) -> ModelMetrics {
        let label = ModelLabel { model: model.to_owned() };
        let phase = |phase| self.duration.get_or_create_owned(&PhaseLabels { model: model.to_owned(), phase });
        let run = |outcome| {
            self.requests.get_or_create_owned(&RequestLabels { model: model.to_owned(), api: "run", outcome })
        };
        ModelMetrics {
            outcomes: Outcomes {
                ok: run("ok"),
                error: run("error"),
                refused: run("refused"),
                cancelled: run("cancelled"),
            },
            whole: phase("total"),
            model_time: phase("model"),
            first_byte: self.first_byte.get_or_create_owned(&label),
            in_flight: self.in_flight.get_or_create_owned(&label),
            queued: self.queued.get_or_create_owned(&label),
            queue_wait: self.queue_wait.get_or_create_owned(&label),
            prepare: self.start.get_or_create_owned(&StartLabels { phase: "prepare" }),
            start: self.start.get_or_create_owned(&StartLabels { phase: "start" }),
            memory: self.memory.get_or_create_owned(&label),
            oom_kills: self.oom_kills.get_or_create_owned(&label),
            instances: self.instances.clone(),
            restarts: self.restarts.clone(),
            usage: self.usage.clone(),
            usual_nanos: Arc::default(),
            model: model.to_owned(),
        }
    }
}

/// Answered requests of one model.
#[derive(Debug, Clone)]
pub struct Outcomes {
    /// Status below 400.
    pub ok: Counter,
    /// The model failed or answered with an error.
    pub error: Counter,
    /// Not taken: queue, budget, cannot start.
    pub refused: Counter,
    /// The client hung up, or the deadline passed.
    pub cancelled: Counter,
}

/// The handles of one model.
#[derive(Debug, Clone)]
pub struct ModelMetrics {
    /// `omni_requests_total`.
    pub outcomes: Outcomes,
    /// `omni_request_duration_seconds{phase="total"}`.
    pub whole: Histogram,
    /// `omni_request_duration_seconds{phase="model"}`.
    pub model_time: Histogram,
    /// `omni_time_to_first_byte_seconds`.
    pub first_byte: Histogram,
    /// `omni_requests_in_flight`.
    pub in_flight: Gauge,
    /// `omni_queue_depth`.
    pub queued: Gauge,
    /// `omni_queue_wait_seconds`.
    pub queue_wait: Histogram,
    /// `omni_instance_start_duration_seconds{phase="prepare"}`.
    pub prepare: Histogram,
    /// `omni_instance_start_duration_seconds{phase="start"}`.
    pub start: Histogram,
    /// `omni_worker_memory_bytes`.
    pub memory: Gauge,
    /// `omni_worker_oom_kills_total`.
    pub oom_kills: Counter,
    instances: Family<StateLabels, Gauge>,
    restarts: Family<ReasonLabels, Counter>,
    usage: Family<UsageLabels, Counter>,
    usual_nanos: Arc<AtomicU64>,
    model: String,
}

impl ModelMetrics {
    /// The model is in this state now; `None` when it is gone.
    pub fn state(&self, state: Option<State>) {
        for each in State::ALL {
            let labels = StateLabels { model: self.model.clone(), state: StateLabel(each) };
            match state {
                Some(state) => drop(self.instances.get_or_create(&labels).set(i64::from(state == each))),
                None => drop(self.instances.remove(&labels)),
            }
        }
    }

    /// An instance died.
    pub fn died(&self, reason: &'static str) {
        let labels = ReasonLabels { model: self.model.clone(), reason };
        self.restarts.get_or_create(&labels).inc();
    }

    /// The model reported use.
    pub fn used(&self, unit: String, amount: u64) {
        let labels = UsageLabels { model: self.model.clone(), unit };
        self.usage.get_or_create(&labels).inc_by(amount);
    }

    /// Requests answered, however.
    #[must_use]
    pub fn answered(&self) -> u64 {
        let outcomes = &self.outcomes;
        outcomes.ok.get() + outcomes.error.get() + outcomes.refused.get() + outcomes.cancelled.get()
    }

    /// Time that the handler usually takes; `None` before it was measured.
    #[must_use]
    pub fn usual_time(&self) -> Option<Duration> {
        Some(self.usual_nanos.load(Ordering::Relaxed)).filter(|nanos| *nanos > 0).map(Duration::from_nanos)
    }

    /// Says what [`ModelMetrics::usual_time`] answers.
    pub fn set_usual_time(&self, time: Duration) {
        self.usual_nanos.store(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// A request waited that long.
    pub fn waited(&self, time: Duration) {
        self.queue_wait.observe(time.as_secs_f64());
    }
}

/// The handles of the GPU task. Bytes are what instances say they have, except `used`, which the driver says.
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
    swap_in: Histograms<ModelLabel>,
    /// `omni_gpu_swap_bytes_total{direction="in"}`.
    pub moved_in: Counter,
    /// `omni_gpu_swap_bytes_total{direction="out"}`.
    pub moved_out: Counter,
    refused: Family<ReasonLabel, Counter>,
    ended: Family<ReasonLabel, Counter>,
}

impl GpuMetrics {
    fn register(r: &mut Registry) -> Self {
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
            swap_in: Family::new_with_constructor(seconds),
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

    /// What is on the cards now, and which of them are lost.
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

    /// The model's instance is gone.
    pub fn gone(&self, model: &str) {
        self.resident.remove(&ModelLabel { model: model.to_owned() });
    }

    /// The model's memory is on the card, after so long.
    pub fn swapped_in(&self, model: &str, time: Duration) {
        let label = ModelLabel { model: model.to_owned() };
        self.swap_in.get_or_create(&label).observe(time.as_secs_f64());
    }

    /// A start was refused.
    pub fn refused(&self, reason: &'static str) {
        self.refused.get_or_create(&ReasonLabel { reason }).inc();
    }

    /// An instance has to end.
    pub fn ended(&self, reason: &'static str) {
        self.ended.get_or_create(&ReasonLabel { reason }).inc();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_design() {
        let metrics = Metrics::default();
        let model = metrics.of_model("cowsay");
        model.outcomes.ok.inc();
        model.state(Some(State::Ready));
        model.died("oom");
        model.used("tokens".into(), 12);
        model.waited(Duration::from_millis(3));
        let gpus = metrics.of_gpus();
        gpus.moved_in.inc_by(7);
        gpus.swapped_in("cowsay", Duration::from_millis(156));
        gpus.refused("too-big");
        gpus.ended("silent");
        let text = metrics.render();
        let mut lines: Vec<_> = text.lines().collect();
        lines.sort_unstable(); // the order within a family is that of a hash map
        insta::assert_snapshot!(lines.join("\n"));
    }
}
