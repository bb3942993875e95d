//! Every metric of the scheduler: names, units and labels in one place (design §8). No label is unbounded: models are
//! directories on this node, usage units are checked words.

mod capacity;
mod gpu;

pub use capacity::CapacityMetrics;
pub use gpu::GpuMetrics;

use omni_api::State;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};
use std::collections::HashSet;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Units of use that a model may have metrics of.
const UNITS: usize = 16;

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
    capacity: CapacityMetrics,
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
            capacity: CapacityMetrics::register(&mut registry),
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

    /// The handles of the node's capacity.
    #[must_use]
    pub fn of_capacity(&self) -> CapacityMetrics {
        self.capacity.clone()
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
            units: Arc::default(),
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
    units: Arc<Mutex<HashSet<String>>>,
    usual_nanos: Arc<AtomicU64>,
    model: String,
}

impl ModelMetrics {
    /// The model is in this state now, and its instances in these. One without instances counts as one in its own.
    pub fn state(&self, model: State, instances: impl Iterator<Item = State>) {
        let mut counts = State::ALL.map(|state| (state, 0));
        let mut none = true;
        for instance in instances {
            none = false;
            counts.iter_mut().filter(|(state, _)| *state == instance).for_each(|(_, count)| *count += 1);
        }
        for (state, count) in counts {
            let labels = StateLabels { model: self.model.clone(), state: StateLabel(state) };
            self.instances.get_or_create(&labels).set(if none { i64::from(state == model) } else { count });
        }
    }

    /// The model is gone.
    pub fn gone(&self) {
        for state in State::ALL {
            self.instances.remove(&StateLabels { model: self.model.clone(), state: StateLabel(state) });
        }
    }

    /// An instance died.
    pub fn died(&self, reason: &'static str) {
        let labels = ReasonLabels { model: self.model.clone(), reason };
        self.restarts.get_or_create(&labels).inc();
    }

    /// The model reported use. What units it has is the model's word: those beyond [`UNITS`] are counted together.
    pub fn used(&self, unit: String, amount: u64) {
        let mut units = self.units.lock().unwrap_or_else(PoisonError::into_inner);
        let is_known = units.contains(&unit) || (units.len() < UNITS && units.insert(unit.clone()));
        drop(units);
        let unit = if is_known { unit } else { "other".to_owned() };
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

#[cfg(test)]
mod tests {
    use super::*;
    use omni_api::{Gpu, GpuInstance, Gpus, Residency};

    #[test]
    fn names_are_those_of_the_design() {
        let metrics = Metrics::default();
        let model = metrics.of_model("cowsay");
        model.outcomes.ok.inc();
        model.state(State::Ready, [State::Ready, State::Ready, State::Draining].into_iter());
        model.died("oom");
        model.used("tokens".into(), 12);
        model.waited(Duration::from_millis(3));
        let gpus = metrics.of_gpus();
        let instance = GpuInstance {
            model: "cowsay".into(),
            instance: "0123456789ab".into(),
            limit_bytes: 8,
            allocated_bytes: 7,
            resident_bytes: 6,
            residency: Residency::Evicted,
            idle_seconds: None,
        };
        let card = Gpu {
            index: 0,
            uuid: String::new(),
            name: String::new(),
            total_bytes: 1,
            used_bytes: 2,
            budget_bytes: 3,
            resident_bytes: 4,
            committed_bytes: 5,
            commit_limit_bytes: 6,
            instances: vec![instance],
        };
        let view = Gpus { gpus: vec![card], host_committed_bytes: 9, host_budget_bytes: 10, message: None };
        gpus.set(&view, &[true]);
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
