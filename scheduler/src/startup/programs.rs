//! Programs that a scheduler starts: its launcher and its successor.

use super::running::RunningLauncher;
use super::{StartupError, at};
use crate::args::Directories;
use crate::paths::PathError;
use nix::unistd::Uid;
use omni_config::Models;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Flag of a scheduler that is the successor of a running one.
const SUCCEED: &str = "--succeed";

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

/// Starts a successor of this scheduler with the same command line, and a socket as its standard input.
///
/// # Errors
/// The program cannot be started.
pub fn start_successor(program: &Path) -> Result<(OwnedFd, Child), PathError> {
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
    let pair = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC);
    let (ours, theirs) = pair.map_err(|errno| PathError::at("make a socket for", program)(errno.into()))?;
    let mut command = Command::new(program);
    let arguments = std::env::args_os().skip(1).filter(|argument| argument != SUCCEED);
    command.args(arguments).arg(SUCCEED).stdin(Stdio::from(theirs)).stdout(Stdio::null());
    // The variable names this process. Without it, the service manager's watchdog watches the successor.
    command.env_remove("WATCHDOG_PID");
    let child = command.spawn().map_err(PathError::at("start", program))?;
    Ok((ours, child))
}
