//! Launcher that runs already when a scheduler is started by hand: found, compared, and ended when it serves other folders.

use super::StartupError;
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, getsockopt, socket};
use nix::unistd::Pid;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

/// Flag of the keeper, which restarts its launcher.
const KEEP: &str = "--keep";
/// Flag of a launcher that has a keeper.
const KEPT: &str = "--kept";
/// Time for a launcher to finish its starts in progress and to end.
const END_TIMEOUT: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(10);

/// Running launcher.
#[derive(Debug)]
pub(super) struct RunningLauncher {
    pid: Pid,
    arguments: Vec<OsString>,
}

impl RunningLauncher {
    /// Finds the launcher behind a socket, which only root can have bound.
    pub(super) fn find(path: &Path) -> Option<Self> {
        let socket = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None).ok()?;
        connect(socket.as_raw_fd(), &UnixAddr::new(path).ok()?).ok()?;
        let pid = Pid::from_raw(getsockopt(&socket, PeerCredentials).ok()?.pid());
        Some(Self { pid, arguments: arguments(pid)? })
    }

    /// Returns true if the launcher's keeper was started with these arguments.
    pub(super) fn was_started_with(&self, wanted: &[OsString]) -> bool {
        let keepers = |own: &OsString| OsString::from(if own == KEPT { OsStr::new(KEEP) } else { own });
        // A launcher of a service manager has the arguments of its unit: its folders are checked over the connection to it.
        !self.is_kept() || self.arguments.iter().map(keepers).eq(wanted.iter().cloned())
    }

    /// Ends the launcher and its keeper, and waits for both. The instances keep running.
    pub(super) fn end(&self, wanted: &[OsString]) -> Result<(), StartupError> {
        let (serves, now) = (shown(&self.arguments), shown(wanted));
        let pid = self.pid.as_raw();
        tracing::warn!(pid, serves, now, "the running launcher was started for other folders and is replaced");
        let keeper = parent(self.pid).filter(|keeper| {
            arguments(*keeper).is_some_and(|arguments| arguments.iter().any(|argument| argument == KEEP))
        });
        let _ = kill(keeper.unwrap_or(self.pid), Signal::SIGTERM); // fails only when it has ended
        let deadline = Instant::now() + END_TIMEOUT;
        while [Some(self.pid), keeper].into_iter().flatten().any(is_running) {
            if Instant::now() > deadline {
                return Err(StartupError::OtherLauncher { pid, serves });
            }
            thread::sleep(POLL);
        }
        Ok(())
    }

    fn is_kept(&self) -> bool {
        self.arguments.iter().any(|argument| argument == KEPT)
    }
}

fn shown(arguments: &[OsString]) -> String {
    arguments.join(OsStr::new(" ")).to_string_lossy().into_owned()
}

/// Arguments of a process, without its name.
fn arguments(pid: Pid) -> Option<Vec<OsString>> {
    let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let line = line.strip_suffix(b"\0").unwrap_or(&line);
    Some(line.split(|byte| *byte == 0).skip(1).map(|part| OsString::from_vec(part.to_vec())).collect())
}

fn stat(pid: Pid) -> Option<(char, i32)> {
    let text = fs::read(format!("/proc/{pid}/stat")).ok()?;
    let end = text.iter().rposition(|byte| *byte == b')')?;
    let mut fields = OsStr::from_bytes(text.get(end + 2..)?).to_str()?.split(' ');
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}

fn parent(pid: Pid) -> Option<Pid> {
    stat(pid).map(|(_, parent)| Pid::from_raw(parent))
}

/// Returns true if a process runs. A zombie does not.
fn is_running(pid: Pid) -> bool {
    stat(pid).is_some_and(|(state, _)| state != 'Z' && state != 'X')
}
