//! `omni-launcher`: watches the models folder, takes snapshots, makes environments, starts workers. Root, no network.
//!
//! Started by `omni-scheduler` when that is started by hand, or as a service. The flags are the scheduler's.
#![forbid(unsafe_code)]

use clap::{Parser, ValueEnum};
use omni_config::node::{DEFAULT_FILE, FALLBACK_UID, MISCONFIGURED, NodeUser};
use omni_config::{Models, NoSingleModel, NodeConfig, SingleModel};
use omni_launcher::{Ended, Settings, keeper, machine};
use omni_log::chain;
use omni_machine::Configuration;
use omni_snapshot::Limits;
use std::ffi::OsString;
use std::io::{self, Write, stdout};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

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
    /// The directory of the only model, as the scheduler's flag.
    #[arg(long, value_name = "DIR", conflicts_with = "models")]
    model: Option<PathBuf>,
    /// State that lasts: snapshots, the package omni.
    #[arg(long, value_name = "DIR", env = "STATE_DIRECTORY")]
    state_dir: Option<PathBuf>,
    /// Files that can be made again: environments, packages, caches of models.
    #[arg(long, value_name = "DIR", env = "CACHE_DIRECTORY")]
    cache_dir: Option<PathBuf>,
    /// Sockets and records of instances.
    #[arg(long, value_name = "DIR", env = "RUNTIME_DIRECTORY")]
    runtime_dir: Option<PathBuf>,
    /// User that may connect, beside root [default: the one of the configuration, else `omni`]
    #[arg(long, value_name = "UID")]
    scheduler_uid: Option<u32>,
    /// Form of the log; by default text on a terminal, fields in systemd's journal, JSON lines otherwise.
    #[arg(long, value_enum, value_name = "FORM")]
    log_format: Option<omni_log::Format>,
    /// Print what this machine has of what a node needs, as JSON, and end; `omnictl doctor` explains it.
    #[arg(long, conflicts_with = "keep")]
    probe: bool,
    /// Stay as a small process that starts the launcher again when it was killed or failed.
    #[arg(long, conflicts_with = "kept")]
    keep: bool,
    /// Set by --keep for the process that it starts.
    #[arg(long, hide = true)]
    kept: bool,
    /// Set by the launcher for the process that watches the models folder: files and bytes of a snapshot.
    #[arg(long, hide = true, value_name = "FILES:BYTES")]
    watcher: Option<String>,
    /// Set by the launcher for a process that looks at a folder of weights: one that the operator lists, and the path in it.
    #[arg(long, hide = true, num_args = 2, allow_hyphen_values = true, value_names = ["FOLDER", "PATH"])]
    look: Vec<OsString>,
    /// The same for a process that opens files of such a folder, and sends them over the socket at its output.
    #[arg(long, hide = true, num_args = 2, allow_hyphen_values = true, value_names = ["FOLDER", "PATH"])]
    open: Vec<OsString>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    omni_log::start(arguments.log_format, "omni-launcher");
    if arguments.probe {
        return probe(arguments).map_or_else(
            |error| {
                tracing::error!(error = chain(&error), "cannot print what this machine has");
                ExitCode::FAILURE
            },
            |()| ExitCode::SUCCESS,
        );
    }
    if let [folder, below] = arguments.look.as_slice() {
        return omni_launcher::look(folder, below).map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS);
    }
    if let [folder, below] = arguments.open.as_slice() {
        return omni_launcher::open(folder, below).map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS);
    }
    if let Some(bounds) = arguments.watcher.clone() {
        return watcher(arguments, &bounds).map_or_else(
            |message| {
                tracing::error!("{message}");
                ExitCode::FAILURE
            },
            |()| ExitCode::SUCCESS,
        );
    }
    // Leave the terminal and the session of the caller. Fails for a session's leader, which has left them already.
    let _ = nix::unistd::setsid();
    if arguments.keep {
        let own = std::env::args_os().skip(1);
        let own: Vec<_> = own.map(|text| if text == "--keep" { OsString::from("--kept") } else { text }).collect();
        return keeper::keep(&own).unwrap_or_else(|error| {
            tracing::error!(error = chain(&error), "cannot keep a launcher running");
            ExitCode::FAILURE
        });
    }
    let settings = match prepare(arguments) {
        Ok(settings) => settings,
        Err(message) => {
            tracing::error!("{message}");
            return ExitCode::from(MISCONFIGURED);
        }
    };
    match omni_launcher::run(settings) {
        Ok(Ended::Done) => ExitCode::SUCCESS,
        Ok(Ended::MakesWay) => ExitCode::from(keeper::MAKES_WAY),
        Ok(Ended::Unkept) => keep_again(),
        Err(error) => {
            tracing::error!("{}", chain(&error));
            ExitCode::from(error.exit_code())
        }
    }
}

/// Starts what keeps a launcher running in the place of one that has ended. The locks are free by now.
fn keep_again() -> ExitCode {
    let own = std::env::args_os().skip(1).map(|text| if text == "--kept" { OsString::from("--keep") } else { text });
    let keeper = std::env::current_exe()
        .and_then(|program| Command::new(program).args(own).stdin(Stdio::null()).stdout(Stdio::null()).spawn());
    match keeper {
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(error = chain(&error), "no process can be started that keeps a launcher running");
            ExitCode::FAILURE
        }
    }
}

/// Watches for the launcher that has started this process.
fn watcher(arguments: Arguments, bounds: &str) -> Result<(), String> {
    let numbers = bounds.split_once(':').and_then(|(files, bytes)| Some((files.parse().ok()?, bytes.parse().ok()?)));
    let (files, bytes) = numbers.ok_or("--watcher is set by the launcher alone")?;
    let settings = settings(arguments, NodeConfig::default(), FALLBACK_UID).map_err(|error| chain(&error))?;
    let store = settings.state_dir.join("snapshots");
    omni_launcher::watch(&settings.models, &store, Limits { files, bytes }).map_err(|error| chain(&error))
}

fn probe(arguments: Arguments) -> io::Result<()> {
    let file = config_file(&arguments);
    let read = config(file.as_deref());
    let (config, wrong) = read.map_or_else(|problem| (NodeConfig::default(), Some(problem)), |config| (config, None));
    let user = NodeUser::ids(config.node.user.as_ref());
    let problem = wrong.or_else(|| user.as_ref().err().map(ToString::to_string));
    let settings = settings(arguments, config, user.map_or(FALLBACK_UID, |(uid, _)| uid)).map_err(io::Error::other)?;
    let found = machine::probe(&settings, Configuration { file, problem });
    writeln!(stdout(), "{}", serde_json::to_string(&found)?)
}

/// Reads all that the launcher needs to run.
fn prepare(arguments: Arguments) -> Result<Settings, String> {
    if !nix::unistd::geteuid().is_root() {
        return Err("omni-launcher must run as root: it makes sandboxes".to_owned());
    }
    let config = config(config_file(&arguments).as_deref())?;
    let uid = match arguments.scheduler_uid {
        Some(uid) => uid,
        None => NodeUser::ids(config.node.user.as_ref()).map_err(|error| error.to_string())?.0,
    };
    settings(arguments, config, uid).map_err(|error| chain(&error))
}

fn config_file(arguments: &Arguments) -> Option<PathBuf> {
    arguments.config.clone().or_else(|| Some(PathBuf::from(DEFAULT_FILE)).filter(|path| path.exists()))
}

fn config(file: Option<&Path>) -> Result<NodeConfig, String> {
    let Some(path) = file else { return Ok(NodeConfig::default()) };
    let text = std::fs::read_to_string(path)
        .map_err(|error| format!("cannot read the configuration {}: {error}", path.display()))?;
    NodeConfig::parse(&text).map_err(|error| format!("{}: {error}", path.display()))
}

/// The command line wins over the file.
fn settings(arguments: Arguments, config: NodeConfig, scheduler_uid: u32) -> Result<Settings, NoSingleModel> {
    let node = config.node.clone();
    let or = |named: Option<PathBuf>, configured: Option<PathBuf>, default: &str| {
        named.or(configured).unwrap_or_else(|| PathBuf::from(default))
    };
    let name = |form: omni_log::Format| Some(form.to_possible_value()?.get_name().to_owned());
    let log_format = arguments.log_format.and_then(name);
    let models = match arguments.model {
        // A path that cannot be made absolute is an empty one, and has no name.
        Some(dir) => Models::Single(SingleModel::new(std::path::absolute(&dir).unwrap_or(dir))?),
        None => Models::Folder(or(arguments.models, node.models, "/srv/models")),
    };
    Ok(Settings {
        models,
        state_dir: or(arguments.state_dir, node.state_dir, "/var/lib/omni"),
        cache_dir: or(arguments.cache_dir, node.cache_dir, "/var/cache/omni"),
        runtime_dir: or(arguments.runtime_dir, node.runtime_dir, "/run/omni"),
        scheduler_uid,
        program_dir: std::env::current_exe().ok().and_then(|program| Some(program.parent()?.to_owned())),
        kept: arguments.kept,
        managed: std::env::var_os("NOTIFY_SOCKET").is_some(),
        log_format,
        config,
    })
}
