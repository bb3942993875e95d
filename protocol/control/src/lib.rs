//! The control API's values: what `omnictl` and the scheduler say to each other over `<runtime-dir>/control/control.sock`,
//! which the link `<runtime-dir>/control.sock` leads to.
//!
//! REST over HTTP/1.1, JSON bodies, errors as RFC 9457 problem documents ([`Problem`]). Routes (a model's name is one
//! percent-encoded segment: `@cf/meta/x` is `@cf%2Fmeta%2Fx`):
//!
//! | route | answer |
//! | --- | --- |
//! | `GET /v1/node` | [`Node`] |
//! | `POST /v1/node/upgrade` | [`Upgrade`] once a new process of the program on disk has taken over |
//! | `GET /v1/models` | [`Models`] |
//! | `GET /v1/models/{model}` | [`Model`] |
//! | `GET /v1/models/{model}/manifest` | the effective manifest, as JSON |
//! | `GET /v1/models/{model}/history` | [`History`] |
//! | `GET /v1/models/{model}/explain` | [`Explain`] |
//! | `POST /v1/models/{model}/pull`, `/start`, `/stop`, `/restart` | [`Model`] after the request was taken |
//! | `POST /v1/models/{model}/rollback?to=VERSION` | [`Model`] after the request was taken |
//! | `POST /v1/models/{model}/run` | as `POST /ai/run/{model}` of the data listener |
//! | `POST /v1/models/{model}/stack` | one [`LogEntry`] a line: where the threads of its instances are |
//! | `GET /v1/models/{model}/logs?lines=N&follow=true` | one [`LogEntry`] a line (`application/x-ndjson`) |
//! | `GET /v1/top` | [`Top`] |
//! | `GET /v1/gpus` | [`Gpus`] |
//! | `GET /v1/usage?since=UNIX_MS` | [`UsageSummary`] |
//! | `GET /v1/jobs` | [`Jobs`] |
//! | `GET /v1/jobs/{job}` | [`Job`] |
//! | `POST /v1/jobs/{job}/cancel` | [`Job`] after the cancellation |
//! | `GET /openapi.json` | the OpenAPI document of all this |

mod explain;
mod gpu;
mod jobs;
mod model;
mod usage;
mod versions;

pub use explain::{Because, Budget, Budgets, Explain};
pub use gpu::{Gpu, GpuInstance, Gpus, Residency};
pub use jobs::{Job, Jobs};
pub use model::{Directory, Generation, Instance, Model, Preparation, Prepared, Role, State, Stop, StopReason};
pub use usage::{UsageRow, UsageSummary};
pub use versions::{History, Version};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The node itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
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
    /// Access that the listeners grant to anyone who reaches them; one line each.
    #[serde(default)]
    pub warnings: Vec<String>,
    /// The models folder, or the directory of the single model.
    pub models_dir: String,
    /// The only model that this node serves, if it serves only one; its directory is not watched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub single_model: Option<String>,
    /// The most files, directories and links that a model's directory may have.
    pub snapshot_files_limit: u32,
    /// Most bytes of a model's directory.
    pub snapshot_bytes_limit: u64,
    /// True if every model must list the hashes of the packages it installs.
    #[serde(default)]
    pub require_hashes: bool,
    /// Folders that models may have their weights in.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub weights_folders: Vec<String>,
    /// Sources that weights may be fetched from, by the beginning of their addresses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub weights_sources: Vec<String>,
    /// True while the launcher answers; without it no instance can start.
    pub launcher_connected: bool,
    /// The version of the launcher's protocol when that is older than the scheduler's: it was not replaced yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub launcher_old_protocol: Option<u32>,
    /// Bytes of bodies held now: of requests, and of large answers that are not taken yet.
    pub buffered_bytes: u64,
    /// The most of them.
    pub buffered_bytes_limit: u64,
}

/// A successor has taken over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Upgrade {
    /// Process id of the launcher.
    pub pid: u32,
    /// A line for each key of the configuration that is another one than before.
    pub changes: Vec<String>,
}

/// All models, sorted by name.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Models {
    /// Models of the node.
    pub models: Vec<Model>,
    /// Directories of the models folder with the files of a model that are no models, by their place or name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_served: Vec<NotServed>,
}

/// A directory that is not served.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NotServed {
    /// Path of the model's directory below the models folder.
    pub directory: String,
    /// Why, and what to do.
    pub reason: String,
}

/// A line of a model's log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LogEntry {
    /// Milliseconds since the Unix epoch.
    pub unix_ms: u64,
    /// The instance that wrote it; empty for a line of its environment's build, or of the node.
    pub instance: String,
    /// `stdout`, `stderr`, `worker`, `build` or `node`.
    pub stream: String,
    /// The request for which it was written, if that is known; several with commas between them for the stacks of an
    /// instance that works on several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// The line.
    pub text: String,
}

/// Use of every running instance.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Top {
    /// Sorted by model.
    pub models: Vec<TopRow>,
}

/// A row of [`Top`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TopRow {
    /// The model's name.
    pub name: String,
    /// State of the instance.
    pub state: State,
    /// Memory charged to the instance, in bytes.
    pub memory_bytes: u64,
    /// Memory limit, in bytes.
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

/// An error, RFC 9457 (`application/problem+json`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Problem {
    /// `about:blank` or a type of our own: `no-such-model`, `not-ready`, `models-unknown`, `bad-request`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Reason phrase of the status.
    pub title: String,
    /// HTTP status.
    pub status: u16,
    /// Explanation, and what to do.
    pub detail: String,
}
