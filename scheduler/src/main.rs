//! `omni-scheduler`: see `ARCHITECTURE.md`.

use clap::Parser;
use omni_scheduler::args::{Args, ArgsError, Directories};
use omni_scheduler::{journal, serve, startup};
use std::process::ExitCode;

/// Cores for each thread that serves requests: models need the rest.
const CORES_PER_THREAD: usize = 4;
/// The most threads that serve requests.
const MOST_THREADS: usize = 8;

fn main() -> ExitCode {
    journal::start();
    let args = Args::parse();
    match start(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{}", journal::chain(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}

fn start(args: &Args) -> Result<(), Box<dyn std::error::Error>> {
    let config = args.node_config()?;
    let directories: Directories = args.directories(&config).map_err(|error: ArgsError| error)?;
    if args.check_config {
        return Ok(());
    }
    let listeners = startup::set_up(&config, &directories, args.config_file().as_deref())?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads((cores / CORES_PER_THREAD).clamp(1, MOST_THREADS))
        .max_blocking_threads(1)
        .enable_all()
        .build()?;
    runtime.block_on(async { tokio::spawn(serve::run(config, directories, listeners)).await })??;
    Ok(())
}
