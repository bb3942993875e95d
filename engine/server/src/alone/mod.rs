//! Program of its own: a model behind the OpenAI API, without a node.
//!
//! ```text
//!  client ──▶ ingress ──▶ routes ──▶ codec ──▶ submission ──▶ engine
//!                            │                  prompts, grammars on other threads
//!  client ◀── encoder ◀── generation ◀── choice: guard, parser ◀── events
//! ```
//!
//! Invariants: a request is refused before the first byte of its answer wherever that can be known; an answer whose client
//! has gone is cancelled; the time of the runtime's only thread is never spent on a client's text or schema.
//!
//! | module | contents |
//! | --- | --- |
//! | [`service`] | the model that is served |
//! | `routes` | routes, bodies, responses |
//! | `prompt`, `submission` | requests for text, in tokens, to the engine |
//! | `choice`, `generation`, `answer` | from its events to the answer |
//! | `embeddings` | vectors of texts |
//! | `failure` | failures of the engine as those of a request |
//! | `metrics` | metrics as text |
//! | [`memory`] | sizes on the command line, limits of the control group |

mod answer;
mod choice;
mod embeddings;
mod failure;
mod generation;
pub mod memory;
mod metrics;
mod prompt;
mod routes;
pub mod service;
mod submission;

pub use service::{Service, ServiceFacts, TextModel};

use crate::engine::{Draft, Engine, Settings, StartError};
use crate::model::{CapacityError, DraftError, LoadOptions, Model, ModelError, load_draft, open_draft, plan};
use omni_chat_template::LoadError;
use omni_ingress::{
    ConnectionConfig, ConnectionLimits, HostNames, InheritedConnections, ListenerPhase, RequestCheck, serve as accept,
};
use omni_kernels::Backend;
use omni_openai::error_response;
use std::collections::BTreeSet;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};

/// Bounds of the connections.
const CONNECTIONS: ConnectionLimits =
    ConnectionLimits { connections: 1024, connections_per_address: None, header_timeout: Duration::from_secs(30) };
/// Time that open requests have after a signal to end.
const GRACE: Duration = Duration::from_secs(10);
/// Threads for prompts and grammars; more work waits.
const BLOCKING_THREADS: usize = 4;

/// Options of the program.
#[derive(Debug, Clone)]
pub struct Options {
    /// Directory with safetensors, or GGUF file.
    pub path: PathBuf,
    /// The same of a draft model.
    pub draft: Option<PathBuf>,
    /// Address of the listener.
    pub listen: SocketAddr,
    /// Memory for weights, steps and cache, in bytes; `None`: by the control group, or half of what the machine has.
    pub memory: Option<u64>,
    /// Most sequences that are computed at a time.
    pub sequences: usize,
    /// Name of the model for clients; `None`: that of the file or directory.
    pub name: Option<String>,
    /// Form of the weights.
    pub load: LoadOptions,
}

/// Reason why a model is not served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Files that cannot be used.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// Draft model that cannot be used.
    #[error("draft model: {0}")]
    Draft(#[from] DraftError),
    /// Chat template that cannot be used.
    #[error(transparent)]
    Template(#[from] LoadError),
    /// Too little memory.
    #[error(transparent)]
    Capacity(#[from] CapacityError),
    /// Engine that cannot start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// Listener that cannot be had.
    #[error("cannot listen on {address}: {error}")]
    Listen {
        /// Address.
        address: SocketAddr,
        /// Cause.
        error: io::Error,
    },
    /// Failed call of the system.
    #[error(transparent)]
    System(#[from] io::Error),
}

/// Loads a model and serves it until the process is told to end.
///
/// # Errors
/// It cannot be served.
pub fn serve(options: &Options) -> Result<(), ServeError> {
    omni_log::start(None, "omni-engine");
    let memory = options.memory.map_or_else(memory::default_size, Ok)?;
    let (service, description) = load(options, memory)?;
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(BLOCKING_THREADS).build()?;
    runtime.block_on(async {
        let address = options.listen;
        let listen = |error| ServeError::Listen { address, error };
        let listener = TcpListener::bind(address).await.map_err(listen)?;
        let address = listener.local_addr().map_err(listen)?;
        let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        writeln!(io::stdout(), "{} at http://{address}/v1: {description}", service.facts.name)?;
        let stop = async move {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
        };
        listen_until(listener, service, stop).await?;
        Ok(())
    })
}

/// Loads the model of the options into memory of so many bytes. Returns a line about it beside the service.
fn load(options: &Options, memory: u64) -> Result<(Service, String), ServeError> {
    let model = Model::open(&options.path)?;
    let text = TextModel::of(&model)?;
    // A draft model that does not fit is refused before the weights are read.
    let draft = options.draft.as_deref().map(|path| open_draft(&model, path)).transpose()?;
    let backend = model.load(&options.load, &mut |_, _| {})?;
    let draft = draft.map(|draft| load_draft(&draft, &options.load)).transpose()?;
    let weights = backend.facts().weight_bytes + draft.as_ref().map_or(0, Draft::weight_bytes);
    let available = memory.saturating_sub(weights);
    let plan = plan(&backend, draft.as_ref(), model.spec.context, options.sequences, available)?;
    let description = plan.describe(&backend, draft.as_ref(), &model.spec.architecture);
    // A vector is computed in one step.
    let step = plan.limits.tokens.saturating_sub(plan.limits.sequences);
    let longest = if model.embeds() { plan.longest().min(step) } else { plan.longest() };
    let facts = ServiceFacts {
        name: options.name.clone().unwrap_or_else(|| name_of(&options.path)),
        longest,
        embeds: model.embeds().then_some(backend.facts().row_width),
        root: model.root(&backend, None),
    };
    let settings = Settings {
        embeds: model.embeds(),
        queued_bytes: plan.queued_bytes,
        ..Settings::new(plan.limits, model.vocabulary.clone())
    };
    Ok((Service::new(Engine::with_draft(backend, draft, settings)?, facts, text), description))
}

/// Name of a model by its path: that of the directory, or of the file without `.gguf`.
fn name_of(path: &Path) -> String {
    let whole = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let name = if whole.is_dir() { whole.file_name() } else { whole.file_stem() };
    name.map_or_else(|| "model".to_owned(), |name| name.to_string_lossy().into_owned())
}

/// Serves a model on a listener until `stop`; open requests have some seconds then.
///
/// # Errors
/// The listener has no address.
pub async fn listen_until(listener: TcpListener, service: Service, stop: impl Future<Output = ()>) -> io::Result<()> {
    let check = RequestCheck {
        names: HostNames::new(listener.local_addr()?.ip(), BTreeSet::new(), false, false),
        heads_budget: Arc::clone(&service.heads),
        metrics: service.front.http.clone(),
        render: |_, _, failure| error_response(failure),
    };
    check.metrics.limit.set(i64::try_from(CONNECTIONS.connections).unwrap_or(i64::MAX));
    let (phase, phases) = watch::channel(ListenerPhase::Accepting);
    // No other process hands connections over.
    let inherited = InheritedConnections { clients: mpsc::channel(1).1, forwarded: mpsc::channel(1).1 };
    let service = Arc::new(service);
    let handler = move |request| routes::respond(Arc::clone(&service), request);
    let config = ConnectionConfig::new(CONNECTIONS, check);
    let serving = tokio::spawn(accept(listener, None, config, phases, inherited, handler));
    stop.await;
    phase.send_replace(ListenerPhase::Closing);
    let _ = tokio::time::timeout(GRACE, serving).await; // what is open then is cut
    Ok(())
}
