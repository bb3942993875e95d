//! Protocol of scheduler and worker: `SOCK_SEQPACKET` at `<runtime-dir>/instances/<id>.sock`, peer checked.
//!
//! A scheduler connects, sends `hello`, and receives [`FromWorker::Welcome`] with the whole state: that is adoption.
//! The worker serves one scheduler at a time; a newer connection replaces the older. While no scheduler is connected,
//! log lines wait in the worker's bounded ring and are sent on the next `hello`.

use crate::exit::ExitCause;
use crate::id::{InstanceId, SnapshotDigest};
use crate::launcher::GpuSpec;
use crate::version::Versions;
use omni_engine_protocol::control::HandlerMode;
use serde::{Deserialize, Serialize};

/// Versions of this protocol that this release supports. A worker outlives its scheduler, so both sides send theirs.
pub const VERSIONS: Versions = Versions { oldest: 1, newest: PROTOCOL };
/// The newest of them.
pub const PROTOCOL: u32 = 2;
/// The first version whose engines repeat the tokens of a prompt, where the body of a request asks for that: an earlier one
/// would leave them out.
pub const PROMPT_TOKENS_SINCE: u32 = 2;

/// Scheduler to worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
pub enum ToWorker {
    /// First message of a connection.
    Hello {
        /// The newest of the scheduler's [`VERSIONS`].
        protocol: u32,
        /// The oldest of them.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        oldest: Option<u32>,
        /// Log lines up to this number are known already; 0 for none.
        log_seen: u64,
    },
    /// Brings two descriptors for the model: data, then cancel. The worker passes them on and keeps no copy.
    Attach,
    /// Stop the model: `teardown`, then SIGKILL to everything after the grace.
    Stop {
        /// Milliseconds.
        grace_ms: u64,
    },
    /// SIGKILL to everything of the instance, now.
    Kill,
    /// Asks for [`FromWorker::Pong`]: whether the worker lives.
    Ping,
    /// Asks for [`FromWorker::Stats`].
    Stats,
    /// Has the engine write the stacks of its threads to its log.
    Stacks,
    /// Move GPU memory of the instance, or say what there is. Answered by [`FromWorker::Gpu`] with the same number;
    /// commands are carried out one after the other.
    Gpu {
        /// Chosen by the scheduler.
        number: u64,
        /// Command to carry out.
        command: ResidencyCommand,
    },
}

/// Command of the scheduler to the shims of an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "verb", rename_all = "kebab-case")]
pub enum ResidencyCommand {
    /// Move managed memory to the host until at least this much is moved, or all of it is.
    Evict {
        /// Over all processes of the instance.
        bytes: u64,
    },
    /// Move everything back to the device.
    Restore,
    /// Move nothing.
    Report,
}

/// Worker to scheduler.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
pub enum FromWorker {
    /// Answer to `hello`; sent again when the engine's process id becomes known.
    Welcome(Welcome),
    /// The engine is ready.
    Ready {
        /// How the handler runs.
        mode: HandlerMode,
    },
    /// The engine said why it cannot serve; `Exited` follows.
    EngineFailed {
        /// `import`, `entrypoint`, `setup` or `healthcheck`.
        phase: String,
        /// The model's own words.
        message: String,
    },
    /// A line that the model wrote.
    Log(LogLine),
    /// Answer to `ping`.
    Pong,
    /// Answer to `stats`.
    Stats(Stats),
    /// Answer to a command about GPU memory. What the shims say is not to be believed, only what it costs to be lied to.
    Gpu(ResidencyReport),
    /// Everything of the instance is gone. The last message; the worker then ends.
    Exited(ExitCause),
}

/// All that a scheduler must know to take over an instance.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Welcome {
    /// Version agreed on.
    pub protocol: u32,
    /// The instance.
    pub instance: InstanceId,
    /// The model's name.
    pub model: String,
    /// Content that it runs.
    pub snapshot: SnapshotDigest,
    /// The scheduler's own words from the start request, given back unread.
    pub note: String,
    /// Process id of the model's engine, as the host sees it; `None` before it runs.
    pub engine_pid: Option<i32>,
    /// When the worker began, in milliseconds since the Unix epoch.
    pub started_unix_ms: u64,
    /// `None` until the engine is ready.
    pub ready: Option<HandlerMode>,
    /// Set when the engine is gone already.
    pub exited: Option<ExitCause>,
    /// A scheduler has stopped or killed it: it ends, and takes nothing more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ending: bool,
    /// The GPU it was started on; `None` for a model without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<GpuSpec>,
}

/// Line of the model's standard output or error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogLine {
    /// Counts up from 1 for each instance.
    pub seq: u64,
    /// When the worker read it, in milliseconds since the Unix epoch.
    pub unix_ms: u64,
    /// Where it was written.
    pub stream: LogStream,
    /// Without the line end; invalid UTF-8 replaced; at most 8 KiB, longer lines are cut into several.
    pub text: String,
}

/// Where a log line comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LogStream {
    /// File descriptor 1 of the model.
    Stdout,
    /// File descriptor 2 of the model.
    Stderr,
    /// The worker itself, for example when it dropped lines over the rate.
    Worker,
}

/// Resources that an instance uses, read from its control group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Stats {
    /// Memory charged now, in bytes.
    pub memory_bytes: u64,
    /// The limit, in bytes.
    pub memory_limit_bytes: u64,
    /// Processor time, in microseconds.
    pub cpu_usec: u64,
    /// Processes and threads now.
    pub pids: u64,
    /// Memory of the engine of an instance from a zygote, with its part of what it shares (the kernel's PSS), in bytes.
    /// `None` for an instance that shares nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pss_bytes: Option<u64>,
    /// GPU memory; `None` for a model without a GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<GpuUsage>,
}

/// GPU memory of an instance, from its accounting file. All in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct GpuUsage {
    /// Managed memory: it can be moved.
    pub managed_bytes: u64,
    /// Part of the managed memory that is meant to be on the device.
    pub resident_bytes: u64,
    /// Device memory that cannot be moved.
    pub device_bytes: u64,
    /// Pinned host memory.
    pub host_bytes: u64,
}

/// Result of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ResidencyReport {
    /// Number of the command.
    pub number: u64,
    /// Bytes moved, over all processes.
    pub moved_bytes: u64,
    /// How long it took, from the command to the last process's answer, in microseconds.
    pub micros: u64,
    /// GPU memory after the command.
    pub usage: GpuUsage,
    /// The first `CUresult` other than success that a process met; 0 for none.
    pub error: u32,
    /// Processes that did not answer within the worker's bound.
    pub unanswered: u32,
}
