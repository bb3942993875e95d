//! Process of the successor.

use crate::TakeoverError;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Flag of a scheduler that is the successor of a running one.
const SUCCEED: &str = "--succeed";

/// Starts a successor of this scheduler with the same command line, and a socket as its standard input.
///
/// # Errors
/// The program cannot be started.
pub(crate) fn start(program: &Path) -> Result<(OwnedFd, Child), TakeoverError> {
    let failed = |step, source| TakeoverError::Start { step, program: program.to_owned(), source };
    let pair = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC);
    let (ours, theirs) = pair.map_err(|errno| failed("make a socket for", errno.into()))?;
    let mut command = Command::new(program);
    let arguments = std::env::args_os().skip(1).filter(|argument| argument != SUCCEED);
    command.args(arguments).arg(SUCCEED).stdin(Stdio::from(theirs)).stdout(Stdio::null());
    // The variable names this process. Without it, the service manager's watchdog watches the successor.
    command.env_remove("WATCHDOG_PID");
    let child = command.spawn().map_err(|error| failed("start", error))?;
    Ok((ours, child))
}
