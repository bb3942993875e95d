//! Program `omni-scheduler`, which serves models over HTTP. See `ARCHITECTURE.md`.

use clap::Parser;
use omni_auth::{TokensFileError, read_tokens};
use omni_config::node::{MISCONFIGURED, NodeConfig};
use omni_config::tokens::Token;
use omni_ingress::tls::{self, Tls, TlsFileError};
use omni_machine::Service;
use omni_policy::single::Fault;
use omni_scheduler::args::{Args, ArgsError, Directories};
use omni_scheduler::exposure;
use omni_scheduler::serve::{self, Sinks, Start};
use omni_scheduler::startup::{self, StartupError};
use omni_scheduler::{traces, usage};
use omni_takeover::{Listeners, Predecessor};
use std::collections::BTreeMap;
use std::io::{Write, stdout};
use std::path::PathBuf;
use std::process::ExitCode;
use tokio::runtime::Builder;

/// Cores for each thread that serves requests. Models need most of the machine.
const CORES_PER_THREAD: usize = 4;
/// Largest number of threads for work that would hold requests up: renders of chat templates, of which each model has one at a time.
const MAX_BLOCKING: usize = 16;
/// Largest number of threads that serve requests.
const MAX_THREADS: usize = 8;

fn main() -> ExitCode {
    omni_log::start(None, "omni-scheduler");
    let args = Args::parse();
    match start(&args) {
        Ok(None) => ExitCode::SUCCESS,
        Ok(Some(fault)) => ExitCode::from(fault.exit_code()),
        Err(error) => {
            tracing::error!("{}", omni_log::chain(error.as_ref()));
            let is_configuration = error.is::<ArgsError>()
                || error.is::<TokensFileError>()
                || error.is::<TlsFileError>()
                || matches!(error.downcast_ref(), Some(StartupError::NoUser(_) | StartupError::Closed { .. }));
            if is_configuration { ExitCode::from(MISCONFIGURED) } else { ExitCode::FAILURE }
        }
    }
}

fn start(args: &Args) -> Result<Option<Fault>, Box<dyn std::error::Error>> {
    let program = std::env::current_exe()?; // before the file is replaced by a new one
    let (predecessor, listeners) = if args.succeed { Some(Predecessor::connect()?) } else { None }.unzip();
    let start = prepare(args, program, listeners).inspect_err(|error| {
        if let Some(predecessor) = &predecessor {
            predecessor.report_failure(error.as_ref());
        }
    })?;
    let Some(start) = start else { return Ok(None) };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    // A single thread needs no work-stealing queues.
    let mut builder = match (cores / CORES_PER_THREAD).clamp(1, MAX_THREADS) {
        1 => Builder::new_current_thread(),
        threads => {
            let mut builder = Builder::new_multi_thread();
            builder.worker_threads(threads);
            builder
        }
    };
    let runtime = builder.max_blocking_threads(MAX_BLOCKING).enable_all().build()?;
    Ok(runtime.block_on(async { tokio::spawn(serve::run(Start { predecessor, ..start })).await })??)
}

/// Set-up before the runtime starts; `None`: the command line asks for a check or a probe only.
fn prepare(
    args: &Args,
    program: PathBuf,
    handed_over: Option<Listeners>,
) -> Result<Option<Start>, Box<dyn std::error::Error>> {
    let config = args.node_config()?;
    let directories: Directories = args.directories(&config).map_err(|error: ArgsError| error)?;
    let admins = Args::admins(&config)?;
    if args.check_config {
        tokens(&config)?;
        tls(&config)?;
        usage::sink(&config)?;
        traces::collector(&config)?;
        return Ok(None);
    }
    if args.probe {
        let found = Service { cards: omni_gpu::found(&config.gpu), exposure: exposure::config_warnings(&config) };
        writeln!(stdout(), "{}", serde_json::to_string(&found)?)?;
        return Ok(None);
    }
    let config = with_machine_limits(config);
    let read = || {
        let (tokens, tls) = (tokens(&config)?, tls(&config)?);
        let sinks = Sinks { usage: usage::sink(&config)?, spans: traces::collector(&config)? };
        Ok::<_, Box<dyn std::error::Error>>((tokens, tls, sinks))
    };
    let (listeners, (tokens, tls, sinks)) =
        startup::set_up(&config, &directories, args.config_file().as_deref(), handed_over, read)?;
    let predecessor = None;
    Ok(Some(Start { config, directories, admins, tokens, tls, sinks, listeners, program, predecessor }))
}

/// Reads the tokens of the data listener, by name; `None`: the configuration has no tokens file.
fn tokens(config: &NodeConfig) -> Result<Option<BTreeMap<String, Token>>, TokensFileError> {
    config.server.tokens.as_ref().map(read_tokens).transpose()
}

/// Reads the certificate of the data listener; `None`: the configuration has none.
fn tls(config: &NodeConfig) -> Result<Option<Tls>, TlsFileError> {
    config.tls.files().map(|(certificate, key)| tls::read(certificate, key)).transpose()
}

/// Completes the configuration with limits that depend on the machine, where none are set.
fn with_machine_limits(mut config: NodeConfig) -> NodeConfig {
    match omni_machine::processes() {
        Some(processes) => config.capacity = config.capacity.on_machine(processes),
        None => {
            tracing::warn!(
                "the limit of processes of this machine is unknown: models share its processes without a limit"
            );
        }
    }
    config
}
