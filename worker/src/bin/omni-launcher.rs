//! `omni-launcher`: watches the models folder, takes snapshots, makes environments, starts workers. Root, no network.
//!
//! Started by `omni-scheduler` when that is started by hand, or as a service. The flags are the scheduler's.

use clap::Parser;
use omni_config::NodeConfig;
use omni_config::node::{DEFAULT_FILE, MISCONFIGURED, NodeUser};
use omni_log::chain;
use omni_worker::launcher::{self, Ended, Settings, keep};
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

/// Watches the models folder, makes environments and starts workers. Started by omni-scheduler, or as a service; root.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// The node's configuration file [default: /etc/omni/omni.toml when it exists]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The models folder [default: /srv/models]
    #[arg(long, value_name = "DIR")]
    models: Option<PathBuf>,
    /// What lasts: snapshots, the package omni.
    #[arg(long, value_name = "DIR", env = "STATE_DIRECTORY")]
    state_dir: Option<PathBuf>,
    /// What can be made again: environments, packages, caches of models.
    #[arg(long, value_name = "DIR", env = "CACHE_DIRECTORY")]
    cache_dir: Option<PathBuf>,
    /// Sockets and records of instances.
    #[arg(long, value_name = "DIR", env = "RUNTIME_DIRECTORY")]
    runtime_dir: Option<PathBuf>,
    /// The user who may connect, beside root [default: the one of the configuration, else `omni`]
    #[arg(long, value_name = "UID")]
    scheduler_uid: Option<u32>,
    /// Form of the log; by default text on a terminal, fields in systemd's journal, JSON lines otherwise.
    #[arg(long, value_enum, value_name = "FORM")]
    log_format: Option<omni_log::Format>,
    /// Stay as a small process that starts the launcher again when it was killed or failed.
    #[arg(long, conflicts_with = "kept")]
    keep: bool,
    /// Set by --keep for the process that it starts.
    #[arg(long, hide = true)]
    kept: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    omni_log::start(arguments.log_format, "omni-launcher");
    // Away from the terminal and the session of whoever started it. It fails for a session's leader, who has that already.
    let _ = nix::unistd::setsid();
    if arguments.keep {
        let own = std::env::args_os().skip(1);
        let own: Vec<_> = own.map(|text| if text == "--keep" { OsString::from("--kept") } else { text }).collect();
        return keep::keep(&own).unwrap_or_else(|error| {
            tracing::error!(error = chain(&error), "cannot keep a launcher running");
            ExitCode::FAILURE
        });
    }
    let settings = match settings(arguments) {
        Ok(settings) => settings,
        Err(message) => {
            tracing::error!("{message}");
            return ExitCode::from(MISCONFIGURED);
        }
    };
    match launcher::run(settings) {
        Ok(Ended::Done) => ExitCode::SUCCESS,
        Ok(Ended::MakesWay) => ExitCode::from(keep::MAKES_WAY),
        Err(error) => {
            tracing::error!("{}", chain(&error));
            ExitCode::from(error.exit_code())
        }
    }
}

/// The command line wins over the file.
fn settings(arguments: Arguments) -> Result<Settings, String> {
    if !nix::unistd::geteuid().is_root() {
        return Err("omni-launcher must run as root: it makes sandboxes".to_owned());
    }
    let usual = PathBuf::from(DEFAULT_FILE);
    let config = match &arguments.config.or_else(|| Some(usual).filter(|path| path.exists())) {
        None => NodeConfig::default(),
        Some(path) => {
            let text = std::fs::read_to_string(path)
                .map_err(|error| format!("cannot read the configuration {}: {error}", path.display()))?;
            NodeConfig::parse(&text).map_err(|error| format!("{}: {error}", path.display()))?
        }
    };
    let node = config.node.clone();
    let or = |named: Option<PathBuf>, configured: Option<PathBuf>, default: &str| {
        named.or(configured).unwrap_or_else(|| PathBuf::from(default))
    };
    Ok(Settings {
        models: or(arguments.models, node.models, "/srv/models"),
        state_dir: or(arguments.state_dir, node.state_dir, "/var/lib/omni"),
        cache_dir: or(arguments.cache_dir, node.cache_dir, "/var/cache/omni"),
        runtime_dir: or(arguments.runtime_dir, node.runtime_dir, "/run/omni"),
        scheduler_uid: match arguments.scheduler_uid {
            Some(uid) => uid,
            None => NodeUser::ids(node.user.as_ref()).map_err(|error| error.to_string())?.0,
        },
        program_dir: std::env::current_exe().ok().and_then(|program| Some(program.parent()?.to_owned())),
        kept: arguments.kept,
        config,
    })
}
