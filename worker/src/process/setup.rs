//! The beginning and the end that all workers which stay have in common: protection, standard streams, the exit file,
//! and the clocks of their loops.

use super::WorkerError;
use nix::errno::Errno;
use nix::poll::PollTimeout;
use nix::sys::prctl;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::{dup2_stdin, dup2_stdout};
use omni_ipc::exit::ExitCause;
use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Nobody reads this process's memory, and huge pages do not make it big. SIGTERM becomes a descriptor.
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

/// Complete or not at all.
pub(super) fn write_exit_file(path: &Path, cause: &ExitCause) -> Result<(), WorkerError> {
    let write = || -> io::Result<()> {
        let unfinished = path.with_extension("tmp");
        fs::write(&unfinished, serde_json::to_vec(cause)?)?;
        fs::rename(&unfinished, path)
    };
    write().map_err(WorkerError::ExitFile)
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
