//! Snapshot of a node's state: the input of the page.

use omni_control_api::{Gpus, Job, Model};

/// State of a node at one moment.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// Seconds since the scheduler started.
    pub at: f64,
    /// The same moment in milliseconds since the Unix epoch.
    pub unix_ms: u64,
    /// The node itself.
    pub node: NodeSample,
    /// Cards, and whose memory is on them.
    pub gpus: Gpus,
    /// Models, sorted by name.
    pub models: Vec<ModelSample>,
    /// The newest batches; empty while nobody looks.
    pub jobs: Vec<Job>,
}

/// The node itself.
#[derive(Debug, Clone, Default)]
pub struct NodeSample {
    /// Version of the scheduler.
    pub version: String,
    /// Shutting down.
    pub draining: bool,
    /// The launcher answers: instances can be started.
    pub launcher_connected: bool,
    /// Memory of all instances: sum of their limits, and its bound.
    pub memory: Share,
    /// Processor time in thousandths of a processor.
    pub cpu_millis: Share,
    /// Processes and threads.
    pub processes: Share,
    /// Memory of bodies.
    pub bodies: Share,
    /// Starts that wait for capacity.
    pub waiting: u64,
}

/// Amount of a resource beside its bound.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Share {
    /// Amount in use.
    pub used: u64,
    /// Bound; `None`: unbounded.
    pub limit: Option<u64>,
}

/// A model.
#[derive(Debug, Clone)]
pub struct ModelSample {
    /// State as its actor publishes it.
    pub model: Model,
    /// Kind of its requests, once its manifest is known.
    pub kind: Option<&'static str>,
    /// Requests since the model is known.
    pub counters: Counters,
    /// Quantiles of the durations in the last minute; `None` without a request.
    pub latency: Option<Latency>,
    /// Memory that is charged to its instances, and their limits; `None` when it was not measured.
    pub memory: Option<Share>,
}

/// Requests of a model, counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Requests that have ended, with any outcome.
    pub ended: u64,
    /// Requests that have failed or were refused.
    pub failed: u64,
}

/// Quantiles of durations, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Latency {
    /// Median.
    pub p50: f64,
    /// 95 of 100 requests took less.
    pub p95: f64,
    /// 99 of 100 requests took less.
    pub p99: f64,
}
