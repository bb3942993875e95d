//! Protocols of a zygote, its worker, and the workers of the instances that it makes.
//!
//! A zygote is a Python process in the sandbox of one generation of a model, with that generation's modules imported.
//! Its worker listens at `<runtime-dir>/zygotes/<id>.sock` (`SOCK_SEQPACKET`, root only), and is connected with the
//! zygote over descriptor 3 of it, as a worker is with an engine.
//!
//! | an instance's worker | the zygote's worker | the zygote |
//! | --- | --- | --- |
//! | `fork`, with three descriptors | → `fork`, with the same | |
//! | | ← `forking` | forks twice |
//! | ← `forked` from the new process, see [`omni_engine_protocol::control`] | | |
//! | `claim` | → `claimed`: the process came from the zygote and belongs to no other instance | |
//! | moves it into its group, then `boot` | | |
//! | | → `ended`, with the status that pid 1 of the sandbox saw | |
//!
//! The connection is the instance's hold on its process: when it closes, the zygote's worker kills the process.

use crate::id::InstanceId;
use crate::instance::LogLine;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// How long a zygote waits for the next instance: long enough that one that crashed, or a model that fell idle, finds it on
/// its way back.
pub const LINGER: Duration = Duration::from_secs(60);

/// Version of this wire and of the engine's: a zygote of another version is not forked from.
pub const PROTOCOL: u32 = 1;

/// Instance's worker to zygote's worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
pub enum ToZygoteWorker {
    /// Make a process for this instance. Brings three descriptors: its control socket, its standard output and error.
    Fork {
        /// The instance, whose control groups are there already.
        instance: InstanceId,
    },
    /// Claims the process that has sent `forked` on that control socket.
    Claim {
        /// As the kernel numbers it for the workers.
        pid: i32,
    },
}

/// Zygote's worker to instance's worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
pub enum FromZygoteWorker {
    /// The zygote has received the order to fork: until now it was importing.
    Forking,
    /// The process is the instance's.
    Claimed {
        /// Output of the zygote since the last instance's claim.
        log: Vec<LogLine>,
    },
    /// There will be no process from here; the last message.
    Refused {
        /// Why, for the model's author.
        message: String,
    },
    /// The process has ended; the last message.
    Ended {
        /// Raw wait status.
        status: i32,
    },
}

/// Zygote's worker to the zygote.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
pub enum ToZygote {
    /// Modules to import. The first message, exactly once.
    Preload {
        /// The model's directory inside the sandbox, where modules are found as an instance finds them.
        model_dir: String,
        /// The modules, in this order.
        modules: Vec<String>,
    },
    /// Fork. Brings the three descriptors of the new process.
    Fork {
        /// For the answer.
        instance: InstanceId,
    },
}

/// The zygote to its worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
pub enum FromZygote {
    /// Everything is imported.
    Preloaded,
    /// The zygote cannot be used, and will not be able to with the same content. It exits next, with code 78.
    Unusable {
        /// For the model's author: which module, and its traceback; at most 32 KiB.
        message: String,
    },
    /// No process was made.
    ForkFailed {
        /// Instance of the order.
        instance: InstanceId,
        /// The kernel's answer.
        message: String,
    },
}
