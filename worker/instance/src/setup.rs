//! The beginning and the end that all workers which stay have in common: protection, standard streams, the exit file,
//! and the clocks of their loops.

use super::WorkerError;
use nix::errno::Errno;
use nix::poll::PollTimeout;
use nix::sys::prctl;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::socket::Backlog;
use nix::unistd::{dup2_stdin, dup2_stdout};
use omni_dir::Dir;
use omni_node_protocol::exit::ExitCause;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Forbids other processes to read this process's memory, and huge pages to make it large. SIGTERM becomes a
/// descriptor.
pub(super) fn protect() -> Result<SignalFd, WorkerError> {
    let setup = |step| move |errno: Errno| WorkerError::Setup { step, source: errno.into() };
    prctl::set_dumpable(false).map_err(setup("forbid tracing"))?;
    prctl::set_thp_disable(true).map_err(setup("forbid huge pages"))?;
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGTERM);
    signals.thread_block().map_err(setup("block SIGTERM"))?;
    SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK).map_err(setup("watch SIGTERM"))
}

/// Lets go of what the launcher gave as standard input and output.
pub(super) fn release_standard_streams() -> io::Result<()> {
    let null = File::options().read(true).write(true).open("/dev/null")?;
    dup2_stdin(&null)?;
    dup2_stdout(&null)?;
    Ok(())
}

/// A place for a socket or file of a worker: an entry of a folder that is root's alone, held open from the worker's start.
#[derive(Debug)]
pub(super) struct Place {
    dir: Dir,
    name: String,
}

impl Place {
    /// Opens the folder of `path`.
    pub(super) fn at(path: &Path) -> io::Result<Self> {
        let name = path.file_name().and_then(|name| name.to_str()).ok_or(ErrorKind::InvalidInput)?.to_owned();
        let dir = Dir::open(path.parent().ok_or(ErrorKind::InvalidInput)?)?.of_root()?;
        Ok(Self { dir, name })
    }

    /// Listens there, in place of what is left over. Only root and the socket's owner can connect.
    pub(super) fn listen(&self, owner: u32, backlog: i32) -> io::Result<UnixListener> {
        let listener = UnixListener::from(self.dir.listen(&self.name, owner, None, Backlog::new(backlog)?)?);
        listener.set_nonblocking(true)?;
        Ok(listener)
    }

    /// Writes how the worker ended, complete or not at all.
    pub(super) fn write(&self, cause: &ExitCause) -> Result<(), WorkerError> {
        let write = || self.dir.replace(&self.name, &serde_json::to_vec(cause)?, 0o644);
        write().map_err(WorkerError::ExitFile)
    }

    /// Removes what is there.
    pub(super) fn clear(&self) {
        // On failure an unused entry is left, which the launcher removes with all of the instance.
        let _ = self.dir.remove(&self.name);
    }
}

/// Rounded up, so that a deadline has passed when poll returns for it.
pub(super) fn timeout(deadline: Option<Duration>, now: Duration) -> PollTimeout {
    let Some(deadline) = deadline else { return PollTimeout::NONE };
    let left = deadline.saturating_sub(now).as_micros().div_ceil(1000);
    i32::try_from(left).ok().and_then(|ms| PollTimeout::try_from(ms).ok()).unwrap_or(PollTimeout::MAX)
}

pub(super) fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
