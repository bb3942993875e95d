//! The control API's values: what `omnictl` and the scheduler say to each other over `<runtime-dir>/control.sock`.
//!
//! REST over HTTP/1.1, JSON bodies, errors as RFC 9457 problem documents ([`Problem`]). Routes (a model's name is one
//! percent-encoded segment: `@cf/meta/x` is `@cf%2Fmeta%2Fx`):
//!
//! | route | answer |
//! | --- | --- |
//! | `GET /v1/node` | [`Node`] |
//! | `GET /v1/models` | [`Models`] |
//! | `GET /v1/models/{model}` | [`Model`] |
//! | `GET /v1/models/{model}/manifest` | the effective manifest, as JSON |
//! | `POST /v1/models/{model}/start`, `/stop`, `/restart` | [`Model`] after the request was taken |
//! | `POST /v1/models/{model}/run` | as `POST /ai/run/{model}` of the data listener |
//! | `GET /v1/models/{model}/logs?lines=N&follow=true` | one [`LogEntry`] a line (`application/x-ndjson`) |
//! | `GET /v1/top` | [`Top`] |
//! | `GET /v1/gpus` | [`Gpus`] |
//! | `GET /openapi.json` | the OpenAPI document of all this |

use serde::{Deserialize, Serialize};

/// State of a model on this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// Its environment is being made.
    Preparing,
    /// Its process starts: sandbox, import, `setup`.
    Starting,
    /// It takes requests.
    Ready,
    /// It finishes what it has and then stops.
    Draining,
    /// No process; the next request starts one (unless it was stopped by hand).
    Stopped,
    /// It cannot serve now; see the message.
    Failed,
}

impl State {
    /// All states, in the order of a life.
    pub const ALL: [Self; 6] =
        [Self::Preparing, Self::Starting, Self::Ready, Self::Draining, Self::Stopped, Self::Failed];

    /// The word that people and metrics see.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Preparing => "preparing",
            Self::Starting => "starting",
            Self::Ready => "ready",
            Self::Draining => "draining",
            Self::Stopped => "stopped",
            Self::Failed => "failed",
        }
    }
}

/// The node itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Node {
    /// Version of the scheduler.
    pub version: String,
    /// Process id of the scheduler.
    pub pid: u32,
    /// Seconds since the scheduler started.
    pub uptime_seconds: f64,
    /// Address of the data listener.
    pub listen: String,
    /// Address of the admin listener.
    pub admin_listen: String,
    /// Whether the launcher answers; without it nothing new can start.
    pub launcher_connected: bool,
    /// Bytes of request bodies held now.
    pub buffered_bytes: u64,
    /// The most of them.
    pub buffered_bytes_limit: u64,
}

/// All models, sorted by name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Models {
    /// One each.
    pub models: Vec<Model>,
}

/// One model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Model {
    /// The path below the models folder.
    pub name: String,
    /// Where it is in its life.
    pub state: State,
    /// Whether it was stopped by hand and waits for a `start`.
    pub held: bool,
    /// Digest of its content, 64 hexadecimal digits; `None` when no snapshot could be taken.
    pub version: Option<String>,
    /// Why it is in this state, in words, when there is more to say: a build's own message, a traceback, an exit.
    pub message: Option<String>,
    /// The running instance.
    pub instance: Option<Instance>,
    /// Requests that run.
    pub in_flight: u64,
    /// Requests that wait.
    pub queued: u64,
    /// The most that may wait.
    pub queue_limit: u64,
    /// Deaths of instances since the scheduler saw the model.
    pub restarts: u64,
    /// How the last instance ended.
    pub last_exit: Option<String>,
    /// Seconds until the next try, while it is in back-off or without a place on a GPU.
    pub retry_in_seconds: Option<f64>,
    /// The last lines of an environment being built.
    pub build_log: Vec<String>,
}

/// A running instance.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Instance {
    /// Twelve hexadecimal digits.
    pub id: String,
    /// Process id of the engine, as the host sees it.
    pub pid: Option<i32>,
    /// Seconds since it was started.
    pub age_seconds: f64,
}

/// One line of a model's log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogEntry {
    /// Milliseconds since the Unix epoch.
    pub unix_ms: u64,
    /// The instance that wrote it; empty for a line of its environment's build.
    pub instance: String,
    /// `stdout`, `stderr`, `worker` or `build`.
    pub stream: String,
    /// The line.
    pub text: String,
}

/// Use of every running instance.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Top {
    /// Sorted by model.
    pub models: Vec<TopRow>,
}

/// One row of [`Top`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TopRow {
    /// The model's name.
    pub name: String,
    /// Its state.
    pub state: State,
    /// Memory charged to the instance, in bytes.
    pub memory_bytes: u64,
    /// Its limit, in bytes.
    pub memory_limit_bytes: u64,
    /// GPU memory that it has allocated, on the card or not, in bytes; `None` for a model without a GPU.
    pub gpu_bytes: Option<u64>,
    /// Processor time since its start, in microseconds.
    pub cpu_usec: u64,
    /// Processes and threads.
    pub pids: u64,
    /// Requests that run.
    pub in_flight: u64,
    /// Requests answered since the scheduler started.
    pub requests: u64,
}

/// The node's GPUs, by index.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Gpus {
    /// One each; empty on a node without a GPU.
    pub gpus: Vec<Gpu>,
    /// Bytes that evicted instances may need of the host's memory, over all GPUs.
    pub host_committed_bytes: u64,
    /// The most of them.
    pub host_budget_bytes: u64,
    /// Why there is none, or none can be used.
    pub message: Option<String>,
}

/// One GPU and who has memory on it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Gpu {
    /// As NVML counts.
    pub index: u32,
    /// "GPU-" and a UUID.
    pub uuid: String,
    /// The product's name.
    pub name: String,
    /// Memory of the card, in bytes.
    pub total_bytes: u64,
    /// Of it in use, by anybody, as the driver says.
    pub used_bytes: u64,
    /// What instances may have on the card at a time.
    pub budget_bytes: u64,
    /// What instances have on the card now.
    pub resident_bytes: u64,
    /// The sum of the instances' `gpu-memory`.
    pub committed_bytes: u64,
    /// The most of it: the budget times `overcommit`.
    pub commit_limit_bytes: u64,
    /// Instances on this GPU, the last used first.
    pub instances: Vec<GpuInstance>,
}

/// An instance on a GPU.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GpuInstance {
    /// The model's name.
    pub model: String,
    /// Twelve hexadecimal digits.
    pub instance: String,
    /// Its `gpu-memory`, in bytes.
    pub limit_bytes: u64,
    /// What it has allocated, in bytes.
    pub allocated_bytes: u64,
    /// Of it on the card.
    pub resident_bytes: u64,
    /// Where its memory is, or goes.
    pub residency: Residency,
    /// Seconds since its last request ended; `None` while it has one.
    pub idle_seconds: Option<f64>,
}

/// Where an instance's memory is, or goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Residency {
    /// All of it on the card.
    Resident,
    /// Some or all of it in host memory.
    Evicted,
    /// A request waits for room on the card.
    Waiting,
    /// On its way to the card.
    Restoring,
    /// On its way to the host.
    Evicting,
}

impl Residency {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Resident, Self::Evicted, Self::Waiting, Self::Restoring, Self::Evicting];

    /// The word that people see.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Resident => "resident",
            Self::Evicted => "evicted",
            Self::Waiting => "waiting",
            Self::Restoring => "restoring",
            Self::Evicting => "evicting",
        }
    }
}

/// An error, RFC 9457 (`application/problem+json`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// `about:blank` or a word of ours: `no-such-model`, `not-ready`, `bad-request`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The status in words.
    pub title: String,
    /// HTTP status.
    pub status: u16,
    /// What happened and what to do.
    pub detail: String,
}
