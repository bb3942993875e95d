//! Launcher that a scheduler starts.

use super::running::RunningLauncher;
use super::{StartupError, at};
use crate::args::Directories;
use nix::unistd::Uid;
use omni_config::Models;
use std::path::Path;
use std::process::{Command, Stdio};

/// Starts the launcher unless one listens already: launchers outlive their scheduler. A launcher that was started by hand for other folders
/// is replaced: its instances keep running, until this scheduler ends them.
pub(super) fn start_launcher(
    directories: &Directories,
    config_file: Option<&Path>,
    uid: Uid,
) -> Result<(), StartupError> {
    let own = std::env::current_exe().map_err(at("find", Path::new("/proc/self/exe")))?;
    let program = own.with_file_name("omni-launcher");
    let mut command = Command::new(&program);
    command.arg("--keep").arg("--scheduler-uid").arg(uid.to_string());
    if let Some(file) = config_file {
        command.arg("--config").arg(std::path::absolute(file).map_err(at("resolve", file))?);
    }
    let models = match &directories.models {
        Models::Folder(folder) => ("--models", folder),
        Models::Single(single) => ("--model", &single.dir),
    };
    let flags = [
        models,
        ("--state-dir", &directories.state),
        ("--cache-dir", &directories.cache),
        ("--runtime-dir", &directories.runtime),
    ];
    for (flag, path) in flags {
        command.arg(flag).arg(path);
    }
    if let Some(running) = RunningLauncher::find(&directories.runtime.join("launcher.sock")) {
        let wanted: Vec<_> = command.get_args().map(ToOwned::to_owned).collect();
        if running.was_started_with(&wanted) {
            return Ok(());
        }
        running.end(&wanted)?;
    }
    // Readiness is notified by this process, later.
    command.env_remove("NOTIFY_SOCKET");
    // The keeper detaches itself from this process's session; it logs to the same standard error.
    command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().map_err(at("start", &program))?;
    Ok(())
}
