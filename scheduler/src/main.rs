//! `omni-scheduler`: see `ARCHITECTURE.md`.

use clap::Parser;
use omni_auth::{TokensFileError, read_tokens};
use omni_config::node::{MISCONFIGURED, NodeConfig};
use omni_config::tokens::Token;
use omni_ingress::tls::{self, Tls, TlsFileError};
use omni_machine::Service;
use omni_policy::single::Fault;
use omni_scheduler::args::{Args, ArgsError, Directories};
use omni_scheduler::exposure;
use omni_scheduler::serve::{self, Start};
use omni_scheduler::startup::{self, Listeners, StartupError};
use omni_scheduler::takeover::Predecessor;
use std::collections::BTreeMap;
use std::io::{Write, stdout};
use std::path::PathBuf;
use std::process::ExitCode;
use tokio::runtime::Builder;

/// Cores for each thread that serves requests: models need the rest.
const CORES_PER_THREAD: usize = 4;
/// The most threads that serve requests.
const MOST_THREADS: usize = 8;

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
    let (predecessor, handed) = if args.succeed { Some(Predecessor::connect()?) } else { None }.unzip();
    let start = prepare(args, program, handed).inspect_err(|error| {
        if let Some(predecessor) = &predecessor {
            predecessor.failed(error.as_ref());
        }
    })?;
    let Some(start) = start else { return Ok(None) };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    // A single thread needs no queues that others may steal from.
    let mut builder = match (cores / CORES_PER_THREAD).clamp(1, MOST_THREADS) {
        1 => Builder::new_current_thread(),
        threads => {
            let mut builder = Builder::new_multi_thread();
            builder.worker_threads(threads);
            builder
        }
    };
    let runtime = builder.max_blocking_threads(1).enable_all().build()?;
    Ok(runtime.block_on(async { tokio::spawn(serve::run(Start { predecessor, ..start })).await })??)
}

/// Everything before the runtime; `None` when only a question was to be answered.
fn prepare(
    args: &Args,
    program: PathBuf,
    handed: Option<Listeners>,
) -> Result<Option<Start>, Box<dyn std::error::Error>> {
    let config = args.node_config()?;
    let directories: Directories = args.directories(&config).map_err(|error: ArgsError| error)?;
    let admins = Args::admins(&config)?;
    if args.check_config {
        tokens(&config)?;
        tls(&config)?;
        return Ok(None);
    }
    if args.probe {
        let found = Service { cards: omni_gpu::found(&config.gpu), exposure: exposure::configured(&config) };
        writeln!(stdout(), "{}", serde_json::to_string(&found)?)?;
        return Ok(None);
    }
    let config = on_machine(config);
    let read = || Ok::<_, Box<dyn std::error::Error>>((tokens(&config)?, tls(&config)?));
    let (listeners, (tokens, tls)) =
        startup::set_up(&config, &directories, args.config_file().as_deref(), handed, read)?;
    Ok(Some(Start { config, directories, admins, tokens, tls, listeners, program, predecessor: None }))
}

/// Tokens of the data listener, by name; `None` when the configuration names no file of them.
fn tokens(config: &NodeConfig) -> Result<Option<BTreeMap<String, Token>>, TokensFileError> {
    config.server.tokens.as_ref().map(read_tokens).transpose()
}

/// Certificate of the data listener; `None` when the configuration names none.
fn tls(config: &NodeConfig) -> Result<Option<Tls>, TlsFileError> {
    config.tls.files().map(|(certificate, key)| tls::read(certificate, key)).transpose()
}

/// The configuration, with bounds that the machine decides where none are set.
fn on_machine(mut config: NodeConfig) -> NodeConfig {
    match omni_machine::processes() {
        Some(processes) => config.capacity = config.capacity.on_machine(processes),
        None => {
            tracing::warn!(
                "the machine does not say how many processes it can have: models share them without a bound"
            );
        }
    }
    config
}
