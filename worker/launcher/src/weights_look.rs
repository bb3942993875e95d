//! Look at a folder of weights before an instance has them, in a process of its own.
//!
//! A file system that does not answer holds up that process, and the kernel holds up everybody who looks for the same name
//! behind it: until the process is killed. A thread of the launcher could not be.

use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use omni_log::chain;
use omni_process::pidfd::readable_before;
use omni_sandbox::{Weights, check_weights};
use std::ffi::OsStr;
use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Time for a file system to answer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Most bytes of a reason.
const MOST: u64 = 64 << 10;

/// A look that is on its way.
pub(crate) struct Look {
    child: Child,
}

impl Look {
    /// Starts the process: this program, even if its file is another one by now.
    pub(crate) fn begin(folder: &Weights) -> io::Result<Self> {
        let mut command = Command::new("/proc/self/exe");
        command.arg("--look").args([&folder.folder, &folder.below]).stdin(Stdio::null()).stdout(Stdio::piped());
        Ok(Self { child: command.spawn()? })
    }

    /// Waits for the result: the reason for which no instance could have the folder. Without one in time the process is
    /// killed, and the folder is left to the instance's start, which has a time limit.
    pub(crate) fn result(&mut self) -> Result<(), String> {
        let Some(mut out) = self.child.stdout.take() else { return Ok(()) };
        if readable_before(&out, Instant::now() + TIMEOUT) != Ok(true) {
            let _ = self.child.kill();
            return Ok(());
        }
        let mut reason = String::new();
        // A process that ended without a word has found nothing, or could not look.
        let _ = out.by_ref().take(MOST).read_to_string(&mut reason);
        if reason.is_empty() { Ok(()) } else { Err(reason) }
    }

    /// Waits for the end of the process.
    pub(crate) fn reap(mut self) {
        let _ = self.child.wait();
    }
}

/// Looks, as the process of a [`Look`], and writes the reason for which no instance could have the folder.
///
/// # Errors
/// The reason cannot be written.
pub fn look(folder: &OsStr, below: &OsStr) -> io::Result<()> {
    set_pdeathsig(Signal::SIGKILL)?;
    match check_weights(&Weights { folder: PathBuf::from(folder), below: PathBuf::from(below) }) {
        Ok(()) => Ok(()),
        Err(error) => io::stdout().write_all(chain(&error).as_bytes()),
    }
}
