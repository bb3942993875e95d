//! Control connection of worker and engine: a `SOCK_SEQPACKET` pair that the engine finds as descriptor 3.
//!
//! The worker sends `boot` first. An engine that was forked by a zygote (`zygote` of the node's protocol) sends
//! `forked` before, and receives `boot` once it is in its control group. The engine answers once, with `ready` or
//! `failed`. It then reads this socket only while it has no data connection: `attach` brings one, `stop` ends the
//! engine. The model is not trusted: descriptors from it are refused, and a packet that does not parse ends the
//! instance.

use serde::{Deserialize, Serialize};

/// The descriptor number at which the engine finds this socket.
pub const ENGINE_FD: i32 = 3;

/// Exit code of an engine that cannot work with this model's content: no restart until the content changes.
/// The value is `EX_CONFIG` of `sysexits.h`.
pub const PERMANENT_FAILURE: i32 = 78;

/// Worker to engine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
pub enum ToEngine {
    /// Start of the engine: the first message, exactly once.
    Boot(Boot),
    /// A new data connection: brings two descriptors, data (`SOCK_STREAM`) then cancel (`SOCK_SEQPACKET`).
    /// It comes beside or after an earlier one, whose end cancels everything that is in flight on it. An engine that
    /// serves several requests at a time serves both connections; one that does not, serves it after the earlier one.
    Attach,
    /// When no data connection is left, run `teardown` and exit with code 0. The worker kills what is left after its grace.
    Stop,
}

/// Everything the engine needs to serve a model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Boot {
    /// The model's name.
    pub model: String,
    /// The instance's id.
    pub instance: String,
    /// Program of the model, for the kind of engine that is started.
    pub engine: EngineBoot,
    /// The model's directory inside the sandbox.
    pub model_dir: String,
    /// Writable directory that outlives the instance.
    pub cache_dir: String,
    /// Directory of the weights, when the manifest names some.
    pub weights_dir: Option<String>,
    /// `"cpu"`, or `"cuda:0"` for a model with a GPU.
    pub device: String,
    /// Requests that may run at the same time.
    pub concurrency: u32,
    /// The handler has to take batches: without one that can, the model cannot be served.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub batches: bool,
}

/// Program of a model, by kind of engine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum EngineBoot {
    /// A Python function.
    Python {
        /// Module of the entry point, found in `model_dir`.
        module: String,
        /// Function of the entry point.
        function: String,
    },
    /// A server with the OpenAI API, which the engine starts and sends its requests to.
    #[serde(rename = "openai")]
    OpenAi {
        /// Command of the server. `{socket}`, `{port}`, `{model_dir}` and `{weights_dir}` are filled in by the engine.
        command: Vec<String>,
        /// The server gives up its GPU memory and takes it back when the worker commands it.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        sleeps: bool,
    },
    /// The native engine, which finds the weights in `weights_dir`, or in `model_dir` if there are none.
    Native,
}

/// Engine to worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
pub enum FromEngine {
    /// First message of a process that a zygote has forked: the kernel's credentials beside it identify the process.
    Forked,
    /// The entry point is loaded, `setup` and `healthcheck` have returned.
    Ready {
        /// How the handler runs.
        mode: HandlerMode,
    },
    /// The model cannot be served. The engine exits next: with [`PERMANENT_FAILURE`] when trying again
    /// cannot help, else with 1.
    Failed {
        /// Where it went wrong: `import`, `entrypoint`, `setup` or `healthcheck`.
        phase: String,
        /// For the model's author: exception and traceback, at most 32 KiB.
        message: String,
    },
}

/// How an engine runs its handler; decides what the scheduler may send ahead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HandlerMode {
    /// Requests one at a time, in the order of the data connection.
    Serial,
    /// Up to `concurrency` requests at once, answers in any order.
    Concurrent,
}
