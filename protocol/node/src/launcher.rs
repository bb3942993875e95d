//! Scheduler and launcher: `SOCK_SEQPACKET` at `<runtime-dir>/launcher.sock`, peer checked by user id.
//!
//! The launcher is root and trusts nothing here beyond what it has checked: names, digests, sizes. It never parses a
//! manifest; it hands the text to the scheduler, which parses it without privileges and sends back plain numbers.

use crate::exit::ExitCause;
use crate::id::{EnvironmentKey, InstanceId, SnapshotDigest};
use crate::version::Versions;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

/// Versions of this protocol that this release supports.
pub const VERSIONS: Versions = Versions { oldest: 1, newest: PROTOCOL };
/// The newest of them.
pub const PROTOCOL: u32 = 2;
/// The first version with [`ToLauncher::OpenWeights`].
pub const OPEN_WEIGHTS_SINCE: u32 = 2;
/// The models folder itself, where [`FromLauncher::ModelRefused`] and [`FromLauncher::ModelGone`] name a directory in it.
pub const MODELS_FOLDER: &str = ".";
/// The largest `omni.toml` that is read, in bytes.
pub const MAX_MANIFEST: usize = 64 * 1024;

/// Scheduler to launcher.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
pub enum ToLauncher {
    /// First message. The launcher answers with every model it sees, then `Scanned`, and goes on with changes.
    Hello {
        /// The newest of the scheduler's [`VERSIONS`].
        protocol: u32,
        /// The oldest of them.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        oldest: Option<u32>,
    },
    /// Snapshots that a model may come back to, though its directory has another content: they stay, also over a
    /// reboot, until the next of this model. One for each model that has some follows `Hello`, then `KeptAll`.
    Keep {
        /// The model's name.
        model: String,
        /// All of them; empty for a model that is gone.
        snapshots: BTreeSet<SnapshotDigest>,
    },
    /// Every model's `Keep` was said since `Hello`. No snapshot is removed before that.
    KeptAll,
    /// Make the environment of a snapshot, or find it made. Answered by `Progress` any number of times, then by
    /// `Prepared` or `PrepareFailed`.
    Prepare {
        /// The model's name, for messages.
        model: String,
        /// Snapshot with `requirements.txt` and `overrides.txt`.
        snapshot: SnapshotDigest,
        /// Major and minor version, "3.11".
        python: String,
        /// An existing environment's interpreter instead of a new environment.
        interpreter: Option<String>,
        /// Install nothing but files that `requirements.txt` has a hash of. The node's configuration can ask for it, too.
        require_hashes: bool,
        /// Weights to fetch meanwhile, unless the node has them; a folder of the node has to be there.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        weights: Option<WeightsRequest>,
    },
    /// The model does not wait for the environment of a snapshot any more. Its `Prepare` is not answered from now on, and a
    /// build that no other model waits for ends.
    Unprepare {
        /// The model's name.
        model: String,
        /// The content.
        snapshot: SnapshotDigest,
    },
    /// Start an instance. Answered by `Started` or `StartFailed`.
    Start(Box<StartSpec>),
    /// SIGKILL to an instance whose worker does not answer; its worker goes too. Answered by `WorkerGone`, also when
    /// no such instance is known (`WorkerLost`).
    Kill {
        /// The instance.
        instance: InstanceId,
    },
    /// End the zygotes of a model that have no instances: their room is needed. Nothing answers; they end within moments.
    EndZygotes {
        /// The model's name.
        model: String,
    },
    /// Open the files of a snapshot that the node itself reads. Answered by `Files`.
    OpenFiles {
        /// The content.
        snapshot: SnapshotDigest,
    },
    /// Open the files of a content's weights that the node itself reads. Answered by `WeightsFiles`.
    OpenWeights {
        /// The content.
        snapshot: SnapshotDigest,
        /// Where its weights are.
        weights: WeightsPlace,
    },
    /// Make way for the next launcher, which reads the node's configuration and the program anew; instances go on.
    /// Nothing answers. A launcher that no process would start again goes on.
    Renew,
    /// The node is being shut down. Once its workers are gone, a launcher that was started by a scheduler exits with code 0,
    /// and one that was not, by systemd for example, closes the connection.
    Quit,
}

/// An instance to start. Every number is checked again by the launcher.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StartSpec {
    /// A fresh id.
    pub instance: InstanceId,
    /// The model's name.
    pub model: String,
    /// Content to run; must have been seen.
    pub snapshot: SnapshotDigest,
    /// Engine that serves the content.
    pub engine: EngineSpec,
    /// Limit of memory, in bytes; also the MemTotal that the model sees.
    pub memory_bytes: u64,
    /// Processor time, in thousandths of a core.
    pub cpu_millis: u32,
    /// Processes and threads.
    pub pids: u32,
    /// Size of `/tmp` and of `/dev/shm`, each, in bytes.
    pub tmp_bytes: u64,
    /// Quota of the model's lasting cache directory, in bytes.
    pub cache_bytes: u64,
    /// Requests that may run at the same time.
    pub concurrency: u32,
    /// The handler has to take batches.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub batches: bool,
    /// Use the host's network; only for models that the node's configuration lists.
    pub host_network: bool,
    /// The manifest's environment variables.
    pub env: BTreeMap<String, String>,
    /// Log lines per second that are kept.
    pub log_lines_per_second: u32,
    /// The GPU it may use, and how much of it; `None`: no GPU at all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<GpuSpec>,
    /// Make it from the zygote of its generation; `None`: as a process that shares nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zygote: Option<ZygoteSpec>,
    /// Where its weights are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weights: Option<WeightsPlace>,
    /// Stays with the worker and comes back in `Welcome`, unread.
    pub note: String,
}

/// Weights of a content that the node fetches, or whose folder (`file://`) it checks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WeightsRequest {
    /// Address, as the manifest has it.
    pub source: String,
    /// SHA-256 of a source that is one file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// Files to fetch, by their paths below the source, each with its SHA-256 or an empty text; empty: all.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub files: BTreeMap<String, String>,
}

/// Where the weights of an instance are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum WeightsPlace {
    /// In a folder of the node, in one that its configuration lists.
    Folder {
        /// Absolute path.
        path: PathBuf,
    },
    /// Fetched by the `Prepare` of its content.
    Fetched,
}

/// Stage of fetching a content's weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "stage", rename_all = "kebab-case")]
pub enum WeightsStage {
    /// Other weights are fetched first, or the source is asked what there is.
    Waits,
    /// Fetching.
    Fetches {
        /// Bytes that are on the disk.
        done: u64,
        /// Bytes of all files.
        total: u64,
    },
}

/// Engine of an instance, with all that it needs to serve a content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum EngineSpec {
    /// The runner of the Python package `omni`.
    Python {
        /// Environment of the interpreter; must have been prepared.
        environment: EnvironmentKey,
        /// Module of the entry point.
        module: String,
        /// Function of the entry point.
        function: String,
    },
    /// A server of the author's with the OpenAI API, and the adapter of the Python package `omni` in front of it.
    #[serde(rename = "openai")]
    OpenAi {
        /// Environment of both; must have been prepared.
        environment: EnvironmentKey,
        /// Command that starts the server, with its placeholders.
        command: Vec<String>,
    },
    /// `omni-engine`.
    Native {
        /// Environment whose directories the sandbox has, as that of every model; must have been prepared.
        environment: EnvironmentKey,
    },
}

impl EngineSpec {
    /// Environment of the engine's interpreter.
    #[must_use]
    pub fn environment(&self) -> &EnvironmentKey {
        match self {
            Self::Python { environment, .. } | Self::OpenAi { environment, .. } | Self::Native { environment } => {
                environment
            }
        }
    }
}

/// Zygote of a generation.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ZygoteSpec {
    /// Python modules that it imports, in this order.
    pub preload: Vec<String>,
    /// Memory limit in bytes, beside its instances.
    pub memory_bytes: u64,
    /// Within so many milliseconds: the model's `startup`. An instance waits half of that before it starts alone.
    pub startup_ms: u64,
}

/// A GPU as an instance gets it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuSpec {
    /// NVML's identifier, "GPU-" and a UUID: what `CUDA_VISIBLE_DEVICES` names, and what survives a restart.
    pub uuid: String,
    /// The number of its device file, `/dev/nvidia<minor>`.
    pub minor: u32,
    /// Size of the card's memory that the model sees, in bytes.
    pub limit_bytes: u64,
    /// Treatment of the model's allocations by the shim.
    pub mode: GpuMode,
}

/// Treatment of allocations by the shim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GpuMode {
    /// Allocations become managed memory, which is moved to the host while the model is idle.
    Unified,
    /// Allocations stay device memory; only the limit holds.
    Device,
    /// As `Device`; the engine has its server give up the memory and take it back.
    Sleep,
}

/// The way in which packages come into an environment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BuildKind {
    /// Wheels are fetched and unpacked.
    Wheels,
    /// Packages are built from source.
    Source,
}

/// The stage of a build.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "stage", rename_all = "kebab-case")]
pub enum BuildStage {
    /// Waiting for a place.
    Waits {
        /// Kind of the place.
        kind: BuildKind,
        /// Beginning of the wait, in seconds of the Unix epoch.
        since_unix: u64,
        /// Builds that have the places of this kind.
        holders: Vec<Holder>,
    },
    /// Running in a place.
    Runs {
        /// The kind of its place.
        kind: BuildKind,
    },
}

/// A build that has a place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// The model that it is for.
    pub model: String,
    /// When it began, in seconds of the Unix epoch.
    pub since_unix: u64,
}

/// Builds of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct BuildCounts {
    /// Builds that have a place.
    pub running: u32,
    /// Builds that wait for a place.
    pub waiting: u32,
}

/// Downloads of weights since the launcher began, and the cache that they fill.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct WeightsCounts {
    /// Bytes that downloads have written.
    pub fetched_bytes: u64,
    /// Downloads that ended with all of their files.
    pub fetched: u64,
    /// Downloads that ended without: the next attempt may succeed.
    pub failed: u64,
    /// Downloads that ended without, as every further attempt would.
    pub refused: u64,
    /// Downloads that were ended as no model waited for them any more.
    pub cancelled: u64,
    /// Bytes of all weights in the cache, equal ones once.
    pub cache_bytes: u64,
    /// Most bytes of them.
    pub cache_limit_bytes: u64,
}

/// Start settings of a launcher.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Serves {
    /// The models folder, or the only model's directory; absolute.
    pub models: String,
    /// Settings that a launcher uses from the node's configuration, by section.
    pub config: serde_json::Value,
}

/// Files of a model's directory, beside its manifest, or of the folder of its weights that the node itself reads: the chat
/// template and the names of special tokens, as models of Hugging Face have them.
pub const NODE_FILES: [&str; 2] = ["chat_template.jinja", "tokenizer_config.json"];
/// Extension of the file beside them that has both in itself. The node reads it where it holds the weights: it is the only
/// one of its folder, and there are no safetensors.
pub const GGUF: &str = "gguf";

/// Launcher to scheduler.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
pub enum FromLauncher {
    /// The first answer to `hello`.
    Welcome {
        /// Version agreed on.
        protocol: u32,
    },
    /// After `welcome`: what the launcher was started with, for the scheduler to compare with its own.
    Serves(Serves),
    /// After `welcome`, once for each instance that runs. Who asked for it may be gone, and the scheduler that is there
    /// now may not have found it: it was being started.
    Runs {
        /// The instance.
        instance: InstanceId,
    },
    /// A model directory is there, or its content changed; its snapshot is taken.
    Model {
        /// The path below the models folder.
        name: String,
        /// Digest of the content.
        snapshot: SnapshotDigest,
        /// The text of `omni.toml`, when there is one.
        manifest: Option<String>,
    },
    /// A model directory is there, and no snapshot can be taken of it.
    ModelRefused {
        /// The path below the models folder.
        name: String,
        /// Reason, for the model's author.
        message: String,
        /// The directory is no model by its place or name: there is nothing to be seen of it but this.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        no_model: bool,
    },
    /// A model directory went away.
    ModelGone {
        /// The path below the models folder.
        name: String,
    },
    /// Every directory has been reported once.
    Scanned,
    /// Line of an environment's build.
    Progress {
        /// For which snapshot.
        snapshot: SnapshotDigest,
        /// Output of the builder.
        line: String,
    },
    /// Stage of an environment's build, sent on each change.
    Build {
        /// For which snapshot.
        snapshot: SnapshotDigest,
        /// The stage.
        stage: BuildStage,
    },
    /// Numbers of environments that are built and wait to be, sent on each change.
    Builds {
        /// Builds of wheels.
        wheels: BuildCounts,
        /// From source.
        source: BuildCounts,
    },
    /// Stage of fetching weights, sent on each change, once a second at most.
    Weights {
        /// For which snapshot.
        snapshot: SnapshotDigest,
        /// The stage.
        stage: WeightsStage,
    },
    /// Counts of downloads of weights, sent on each change, and once to a new scheduler.
    WeightsCounts(WeightsCounts),
    /// The environment is there, and so are the weights.
    Prepared {
        /// For which snapshot.
        snapshot: SnapshotDigest,
        /// Key, for `Start`.
        environment: EnvironmentKey,
    },
    /// The environment cannot be made, or the weights cannot be fetched.
    PrepareFailed {
        /// For which snapshot.
        snapshot: SnapshotDigest,
        /// The builder's own message, kept as it is.
        message: String,
        /// `false` when trying again can help (a network that does not answer), `true` when not (a package that does
        /// not exist).
        permanent: bool,
        /// The next try makes sense after so many milliseconds at the earliest: it timed out.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        after_ms: Option<u64>,
    },
    /// Files of a snapshot that the node itself reads: a descriptor for each name, in the same order, read-only.
    Files {
        /// The content.
        snapshot: SnapshotDigest,
        /// Names out of [`NODE_FILES`], of the files that are there, and that of a [`GGUF`] file; none when the snapshot is
        /// gone.
        names: Vec<String>,
    },
    /// Files of a content's weights that the node itself reads: a descriptor for each name, in the same order, read-only.
    WeightsFiles {
        /// The content.
        snapshot: SnapshotDigest,
        /// As of `Files`; `None`: the weights are not on the node, or their folder cannot be read.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        names: Option<Vec<String>>,
    },
    /// The worker runs and listens at `<runtime-dir>/instances/<id>.sock`.
    Started {
        /// The instance.
        instance: InstanceId,
        /// The worker's process id.
        worker_pid: i32,
    },
    /// The instance could not be started; nothing of it is left.
    StartFailed {
        /// The instance.
        instance: InstanceId,
        /// The step that failed and the kernel's answer.
        message: String,
    },
    /// A worker ended and its traces are removed.
    WorkerGone {
        /// The instance.
        instance: InstanceId,
        /// From the worker's exit-status file, or `WorkerLost`.
        cause: ExitCause,
    },
}
