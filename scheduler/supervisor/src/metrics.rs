//! Metrics of models: families with the model's name as a label, and the handles that a model's task holds.
//!
//! Invariant: a model that is gone has no series left. Its directory may come back before its instances have ended: then
//! two tasks have the same series, and the last of them removes them.

use crate::engine_metrics::{EngineMetrics, EngineSeries};
use crate::latency::LatencyCounts;
use omni_control_api::State;
use omni_gpu::{GpuMetrics, SECONDS};
use omni_launcher_client::PreparationMetrics;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Units of usage with series of their own, of one model.
const UNITS: usize = 16;

/// Values of the labels `outcome` and `phase`.
const OUTCOMES: [&str; 4] = ["ok", "error", "refused", "cancelled"];
const PHASES: [&str; 2] = ["total", "model"];

/// API that a request came through: label `api`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Api {
    /// Workers AI: `POST /ai/run/<model>`.
    WorkersAi,
    /// OpenAI: `/v1/chat/completions` and its other routes.
    OpenAi,
    /// Anthropic: `/v1/messages`.
    Anthropic,
}

impl Api {
    /// All APIs, in the order of [`ModelMetrics::outcomes`].
    const ALL: [Self; 3] = [Self::WorkersAi, Self::OpenAi, Self::Anthropic];

    /// Name of the API in labels and records.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::WorkersAi => "run",
            Self::OpenAi => "openai",
            Self::Anthropic => "anthropic",
        }
    }
}

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

/// All families, and the models with series in them.
#[derive(Debug)]
struct Families {
    requests: Family<RequestLabels, Counter>,
    duration: Histograms<PhaseLabels>,
    first_byte: Histograms<ModelLabel>,
    in_flight: Family<ModelLabel, Gauge>,
    queued: Family<ModelLabel, Gauge>,
    queue_wait: Histograms<ModelLabel>,
    batches: Histograms<ModelLabel>,
    instances: Family<StateLabels, Gauge>,
    restarts: Family<ReasonLabels, Counter>,
    start: Histograms<StartLabels>,
    memory: Family<ModelLabel, Gauge>,
    oom_kills: Family<ModelLabel, Counter>,
    input_pauses: Family<ModelLabel, Counter>,
    usage: Family<UsageLabels, Counter>,
    known: Mutex<HashMap<String, Labels>>,
}

/// Label values of a model's series that not every model has.
#[derive(Debug, Default)]
struct Labels {
    /// Number of tasks that hold handles of the model.
    tasks: usize,
    units: HashSet<String>,
    reasons: HashSet<&'static str>,
}

fn seconds() -> Histogram {
    Histogram::new(SECONDS)
}

/// Histogram of numbers of requests, from 2 to 1024.
fn sizes() -> Histogram {
    Histogram::new((1..=10).map(|power| f64::from(1 << power)))
}

impl Families {
    fn register(r: &mut Registry) -> Self {
        let families = Self {
            requests: Family::default(),
            duration: Family::new_with_constructor(seconds),
            first_byte: Family::new_with_constructor(seconds),
            in_flight: Family::default(),
            queued: Family::default(),
            queue_wait: Family::new_with_constructor(seconds),
            batches: Family::new_with_constructor(sizes),
            instances: Family::default(),
            restarts: Family::default(),
            start: Family::new_with_constructor(seconds),
            memory: Family::default(),
            oom_kills: Family::default(),
            input_pauses: Family::default(),
            usage: Family::default(),
            known: Mutex::default(),
        };
        r.register("requests", "Requests answered, by outcome", families.requests.clone());
        r.register_with_unit("request_duration", "Time of a request", Unit::Seconds, families.duration.clone());
        let first = families.first_byte.clone();
        r.register_with_unit("time_to_first_byte", "Until the answer begins", Unit::Seconds, first);
        r.register("requests_in_flight", "Requests that the model has", families.in_flight.clone());
        r.register("queue_depth", "Requests that wait", families.queued.clone());
        r.register_with_unit("queue_wait", "Time in the queue", Unit::Seconds, families.queue_wait.clone());
        r.register("batch_requests", "Requests of a batch, of those with two and more", families.batches.clone());
        r.register("instances", "Instances by state", families.instances.clone());
        r.register("instance_restarts", "Deaths of instances, by reason", families.restarts.clone());
        let start = families.start.clone();
        r.register_with_unit("instance_start_duration", "Until an instance is ready", Unit::Seconds, start);
        r.register_with_unit("worker_memory", "Memory charged to an instance", Unit::Bytes, families.memory.clone());
        r.register("worker_oom_kills", "Instances ended by their memory limit", families.oom_kills.clone());
        let help = "Times that an instance was not read for a moment, as it sent more frames or bytes than its share";
        r.register("instance_input_pauses", help, families.input_pauses.clone());
        r.register("usage", "Usage that models reported", families.usage.clone());
        families
    }

    fn known(&self) -> MutexGuard<'_, HashMap<String, Labels>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn remove(&self, model: &str, labels: Labels) {
        let named = || model.to_owned();
        for api in Api::ALL {
            for outcome in OUTCOMES {
                self.requests.remove(&RequestLabels { model: named(), api: api.label(), outcome });
            }
        }
        for phase in PHASES {
            self.duration.remove(&PhaseLabels { model: named(), phase });
        }
        for state in State::ALL {
            self.instances.remove(&StateLabels { model: named(), state: StateLabel(state) });
        }
        for reason in labels.reasons {
            self.restarts.remove(&ReasonLabels { model: named(), reason });
        }
        for unit in labels.units {
            self.usage.remove(&UsageLabels { model: named(), unit });
        }
        let label = ModelLabel { model: named() };
        for family in [&self.first_byte, &self.queue_wait, &self.batches] {
            family.remove(&label);
        }
        for family in [&self.in_flight, &self.queued, &self.memory] {
            family.remove(&label);
        }
        self.oom_kills.remove(&label);
        self.input_pauses.remove(&label);
    }
}

/// Metrics of all models, and of what the launcher prepares. Clones share them.
#[derive(Debug, Clone)]
pub struct NodeMetrics {
    models: Arc<Families>,
    gpu: GpuMetrics,
    preparations: PreparationMetrics,
    engines: EngineMetrics,
}

impl NodeMetrics {
    /// Registers the metrics, without a model. `gpu`: those of the cards, which have series of models, too.
    pub fn register(r: &mut Registry, gpu: GpuMetrics) -> Self {
        let (preparations, engines) = (PreparationMetrics::register(r), EngineMetrics::default());
        r.register_collector(Box::new(engines.clone()));
        Self { models: Arc::new(Families::register(r)), gpu, preparations, engines }
    }

    /// Handles for the connection to the launcher.
    pub(crate) fn preparations(&self) -> PreparationMetrics {
        self.preparations.clone()
    }

    /// Handles for one model, looked up once. Each is to be ended with a [`ModelMetrics::gone`].
    #[must_use]
    pub fn of_model(&self, model: &str) -> ModelMetrics {
        ModelMetrics::new(&self.models, (&self.gpu, &self.engines), model)
    }
}

/// Answered requests of one model through one API.
#[derive(Debug, Clone)]
pub struct Outcomes {
    /// Status below 400.
    pub ok: Counter,
    /// Failures of the model, and its own error responses.
    pub error: Counter,
    /// Requests that were not accepted: full queue, budget, no start.
    pub refused: Counter,
    /// Ended by the client or by the deadline.
    pub cancelled: Counter,
}

/// Handles of one model.
#[derive(Debug, Clone)]
pub struct ModelMetrics {
    /// `omni_requests_total`, by API.
    outcomes: [Outcomes; Api::ALL.len()],
    /// `omni_request_duration_seconds{phase="total"}`.
    pub total_time: Histogram,
    /// Durations as `total_time` has them, for quantiles of the last minute.
    pub latency: Arc<LatencyCounts>,
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
    /// `omni_instance_input_pauses_total`.
    pub input_pauses: Counter,
    families: Arc<Families>,
    gpu: GpuMetrics,
    engines: EngineMetrics,
    usual_nanos: Arc<AtomicU64>,
    model: String,
}

impl ModelMetrics {
    fn new(families: &Arc<Families>, (gpu, engines): (&GpuMetrics, &EngineMetrics), model: &str) -> Self {
        families.known().entry(model.to_owned()).or_default().tasks += 1;
        let label = ModelLabel { model: model.to_owned() };
        let phase = |phase| families.duration.get_or_create_owned(&PhaseLabels { model: model.to_owned(), phase });
        let outcomes = |api: Api| {
            let labels = |outcome| RequestLabels { model: model.to_owned(), api: api.label(), outcome };
            let [ok, error, refused, cancelled] =
                OUTCOMES.map(|outcome| families.requests.get_or_create_owned(&labels(outcome)));
            Outcomes { ok, error, refused, cancelled }
        };
        let [total_time, model_time] = PHASES.map(phase);
        Self {
            outcomes: Api::ALL.map(outcomes),
            total_time,
            latency: Arc::default(),
            model_time,
            first_byte: families.first_byte.get_or_create_owned(&label),
            in_flight: families.in_flight.get_or_create_owned(&label),
            queued: families.queued.get_or_create_owned(&label),
            queue_wait: families.queue_wait.get_or_create_owned(&label),
            prepare: families.start.get_or_create_owned(&StartLabels { phase: "prepare" }),
            start: families.start.get_or_create_owned(&StartLabels { phase: "start" }),
            memory: families.memory.get_or_create_owned(&label),
            oom_kills: families.oom_kills.get_or_create_owned(&label),
            input_pauses: families.input_pauses.get_or_create_owned(&label),
            families: Arc::clone(families),
            gpu: gpu.clone(),
            engines: engines.clone(),
            usual_nanos: Arc::default(),
            model: model.to_owned(),
        }
    }

    /// Answered requests through this API.
    #[must_use]
    pub fn outcomes(&self, api: Api) -> &Outcomes {
        let [workers_ai, openai, anthropic] = &self.outcomes;
        match api {
            Api::WorkersAi => workers_ai,
            Api::OpenAi => openai,
            Api::Anthropic => anthropic,
        }
    }

    /// Sets the states of the model and of its instances. A model without instances counts once, in its own state.
    pub fn state(&self, model: State, instances: impl Iterator<Item = State>) {
        let mut counts = State::ALL.map(|state| (state, 0));
        let mut none = true;
        for instance in instances {
            none = false;
            counts.iter_mut().filter(|(state, _)| *state == instance).for_each(|(_, count)| *count += 1);
        }
        for (state, count) in counts {
            let labels = StateLabels { model: self.model.clone(), state: StateLabel(state) };
            self.families.instances.get_or_create(&labels).set(if none { i64::from(state == model) } else { count });
        }
    }

    /// Removes the series of a model that is gone, unless another task holds them by now.
    pub fn gone(&self) {
        let mut known = self.families.known();
        let Some(labels) = known.get_mut(&self.model) else { return };
        labels.tasks -= 1;
        if labels.tasks == 0
            && let Some(labels) = known.remove(&self.model)
        {
            self.families.remove(&self.model, labels);
            self.gpu.forget(&self.model);
        }
    }

    /// Counts a death of an instance.
    pub fn died(&self, reason: &'static str) {
        if let Some(labels) = self.families.known().get_mut(&self.model) {
            labels.reasons.insert(reason);
            let labels = ReasonLabels { model: self.model.clone(), reason };
            self.families.restarts.get_or_create(&labels).inc();
        }
    }

    /// Counts usage that the model reported. Its units are the model's choice: those beyond [`UNITS`] are counted together.
    pub fn on_usage(&self, unit: String, amount: u64) {
        let mut known = self.families.known();
        let Some(Labels { units, .. }) = known.get_mut(&self.model) else { return };
        let unit = if units.contains(&unit) || units.len() < UNITS { unit } else { "other".to_owned() };
        units.insert(unit.clone());
        self.families.usage.get_or_create(&UsageLabels { model: self.model.clone(), unit }).inc_by(amount);
    }

    /// Metrics of an engine's own, until the handle is dropped.
    pub(crate) fn of_engine(&self, instance: &str) -> EngineSeries {
        self.engines.engine(&self.model, instance)
    }

    /// Observes the duration of a request that was answered.
    pub fn observe_total(&self, time: Duration) {
        self.total_time.observe(time.as_secs_f64());
        self.latency.observe(time);
    }

    /// Number of requests that have failed by a fault of the model or of the node.
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.outcomes.iter().map(|api| api.error.get() + api.refused.get()).sum()
    }

    /// Number of requests that have ended, with any outcome.
    #[must_use]
    pub fn answered(&self) -> u64 {
        let ended = |api: &Outcomes| api.ok.get() + api.error.get() + api.refused.get() + api.cancelled.get();
        self.outcomes.iter().map(ended).sum()
    }

    /// Usual run time of the handler; `None` before it was measured.
    #[must_use]
    pub fn usual_time(&self) -> Option<Duration> {
        Some(self.usual_nanos.load(Ordering::Relaxed)).filter(|nanos| *nanos > 0).map(Duration::from_nanos)
    }

    /// Sets the usual run time of the handler.
    pub fn set_usual_time(&self, time: Duration) {
        self.usual_nanos.store(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Observes a batch of at least two requests. Models without batches have no series of them.
    pub fn on_batch(&self, requests: usize) {
        if self.families.known().contains_key(&self.model) {
            let label = ModelLabel { model: self.model.clone() };
            self.families.batches.get_or_create(&label).observe(requests as f64);
        }
    }

    /// Observes the time of a request in the queue.
    pub fn observe_wait(&self, time: Duration) {
        self.queue_wait.observe(time.as_secs_f64());
    }
}
