//! Life of the engine under a worker, by the control socket.

use super::connection;
use super::request::{Requests, Shared, SharedRef};
use crate::descriptor;
use crate::engine::{Engine, Settings};
use crate::memory;
use crate::model::{DraftError, LoadOptions, Model, ModelError, load_draft, open_draft, plan, printed_template};
use omni_engine_protocol::control::{Boot, EngineBoot, FromEngine, HandlerMode, PERMANENT_FAILURE, ToEngine};
use omni_engine_protocol::packet::{PacketError, recv_packet, send_packet};
use omni_kernels::{Backend, BackendError};
use omni_kernels_cpu::CpuBackend;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;
use tokio::runtime::{Builder, Handle};

/// Most threads that read requests' texts.
const READERS: usize = 4;
/// Most sequences that are computed at a time; more requests wait.
const SEQUENCES: usize = 64;
/// Folder of a draft model.
const DRAFT: &str = "draft";

/// Reason why the engine ends.
#[derive(Debug, thiserror::Error)]
enum End {
    /// The worker is gone, or breaks the protocol.
    #[error("control socket: {0}")]
    Control(#[from] PacketError),
    /// The worker sent something else than was its turn.
    #[error("the worker sent another message than `{0}`")]
    Unexpected(&'static str),
    /// The runtime cannot be built.
    #[error("threads cannot be started: {0}")]
    Threads(#[from] io::Error),
    /// The model cannot be served.
    #[error("{message}")]
    Model {
        /// Cause.
        message: String,
        /// Trying again cannot help.
        permanent: bool,
    },
}

impl From<ModelError> for End {
    fn from(error: ModelError) -> Self {
        let permanent = !matches!(error, ModelError::Backend(BackendError::Memory { .. }));
        Self::Model { message: error.to_string(), permanent }
    }
}

/// Runs the engine for the worker at descriptor 3. Returns the exit code.
#[must_use]
pub fn run() -> i32 {
    match descriptor::control() {
        Ok(control) => run_on(&control),
        Err(error) => {
            say(&format!("descriptor 3 is no control socket: {error}"));
            1
        }
    }
}

/// Runs the engine for the worker at a control socket. Returns the exit code.
#[must_use]
pub fn run_on(control: &OwnedFd) -> i32 {
    run_with(control, None, |backend| backend)
}

/// Runs the engine with the backend that `dress` makes of the loaded one. `hung`: age of a step from which the engine
/// counts as hung, if not the usual one.
#[must_use]
pub fn run_with<B: Backend + 'static>(
    control: &OwnedFd,
    hung: Option<Duration>,
    dress: impl FnOnce(CpuBackend) -> B,
) -> i32 {
    match serve(control, hung, dress) {
        Ok(()) => 0,
        Err(end) => {
            say(&end.to_string());
            let End::Model { message, permanent } = end else { return 1 };
            let _ = send_packet(control, &FromEngine::Failed { phase: "setup".to_owned(), message }, &[]);
            if permanent { PERMANENT_FAILURE } else { 1 }
        }
    }
}

fn serve<B: Backend + 'static>(
    control: &OwnedFd,
    hung: Option<Duration>,
    dress: impl FnOnce(CpuBackend) -> B,
) -> Result<(), End> {
    let (first, _) = recv_packet(control)?;
    let ToEngine::Boot(boot) = first else { return Err(End::Unexpected("boot")) };
    let shared = load(&boot, hung, dress)?;
    let runtime = Builder::new_multi_thread()
        .worker_threads(1)
        .max_blocking_threads(READERS)
        .thread_name("requests")
        .enable_time()
        .build()?;
    send_packet(control, &FromEngine::Ready { mode: HandlerMode::Concurrent }, &[])?;
    let mut connections: Vec<JoinHandle<()>> = Vec::new();
    loop {
        match recv_packet(control)? {
            (ToEngine::Attach, descriptors) => {
                connections.retain(|connection| !connection.is_finished());
                connections.push(attach(&shared, runtime.handle(), descriptors)?);
            }
            (ToEngine::Stop, _) => break,
            (ToEngine::Boot(_), _) => return Err(End::Unexpected("attach or stop")),
        }
    }
    for connection in connections {
        let _ = connection.join();
    }
    Ok(())
}

fn attach(shared: &SharedRef, runtime: &Handle, descriptors: Vec<OwnedFd>) -> Result<JoinHandle<()>, End> {
    let Ok([data, cancel]) = <[OwnedFd; 2]>::try_from(descriptors) else {
        return Err(End::Unexpected("attach with two descriptors"));
    };
    let (shared, runtime) = (Arc::clone(shared), runtime.clone());
    let serve = move || connection::serve(&shared, &runtime, data, cancel);
    Ok(thread::Builder::new().name("read".to_owned()).spawn(serve)?)
}

/// Loads the model of an instance.
fn load<B: Backend + 'static>(
    boot: &Boot,
    hung: Option<Duration>,
    dress: impl FnOnce(CpuBackend) -> B,
) -> Result<SharedRef, End> {
    let permanent = |message: &str| End::Model { message: message.to_owned(), permanent: true };
    if !matches!(boot.engine, EngineBoot::Native) {
        return Err(permanent("this is the native engine, and the model has another one"));
    }
    if boot.batches {
        return Err(permanent("the native engine makes batches itself: leave [batching] out"));
    }
    let folder = boot.weights_dir.as_deref().unwrap_or(&boot.model_dir);
    let model = Model::open(Path::new(folder))?;
    let draft = draft_of(boot, &model)?;
    let options = LoadOptions::default();
    let mut said = 0;
    let backend = model.load(&options, &mut |done, total| {
        let tenths = done.saturating_mul(10).checked_div(total).unwrap_or(10);
        if tenths > said {
            said = tenths;
            say(&format!("weights: {} % of {} MiB", tenths * 10, total >> 20));
        }
    })?;
    let draft = draft.map(|draft| load_draft(&draft, &options)).transpose()?;
    let failed = |message: String| End::Model { message, permanent: false };
    let available = memory::available().map_err(|error| failed(format!("the free memory is unknown: {error}")))?;
    let sequences = SEQUENCES.min(usize::try_from(boot.concurrency).unwrap_or(SEQUENCES)).max(1);
    let plan = plan(&backend, draft.as_ref(), model.spec.context, sequences, available)
        .map_err(|error| failed(error.to_string()))?;
    say(&plan.describe(&backend, draft.as_ref(), &model.spec.architecture));
    let root = model.root(&backend, None);
    let usual = Settings::new(plan.limits, model.vocabulary.clone());
    let settings =
        Settings { embeds: model.embeds(), queued_bytes: plan.queued_bytes, hung: hung.unwrap_or(usual.hung), ..usual };
    let longest = plan.longest();
    let engine = Engine::with_draft(dress(backend), draft, settings).map_err(|error| failed(error.to_string()))?;
    let concurrency = usize::try_from(boot.concurrency).unwrap_or(1).max(1);
    // The same one that the node renders by: the model's own, else that of its weights.
    let own = printed_template(Path::new(&boot.model_dir))?;
    let template = own.or_else(|| model.printed_template().map(str::to_owned));
    let requests = Requests::new(model, longest, root, template.as_deref());
    Ok(Arc::new(Shared { requests, engine, concurrency }))
}

/// Draft model of an instance: in the folder `draft` of its weights, or else of the model.
fn draft_of(boot: &Boot, model: &Model) -> Result<Option<Model>, End> {
    let folders = [boot.weights_dir.as_deref(), Some(&boot.model_dir)];
    let mut drafts = folders.into_iter().flatten().map(|folder| Path::new(folder).join(DRAFT));
    let Some(path) = drafts.find(|path| path.is_dir()) else { return Ok(None) };
    let failed = |error: DraftError| End::Model { message: format!("draft model: {error}"), permanent: true };
    open_draft(model, &path).map(Some).map_err(failed)
}

/// A line of the model's log.
fn say(line: &str) {
    let _ = writeln!(io::stdout(), "{line}");
}
