//! Look at a folder of weights before an instance has them, and the opening of its files that the node reads, in a process of
//! its own.
//!
//! A file system that does not answer holds up that process, and the kernel holds up everybody who looks for the same name
//! behind it: until the process is killed. A thread of the launcher could not be.

use crate::node_files::{NodeFile, open_node_files};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use omni_engine_protocol::packet::{recv_packet, send_packet};
use omni_log::chain;
use omni_process::pidfd::readable_before;
use omni_sandbox::{Weights, check_weights, open_weights};
use std::ffi::OsStr;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
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

/// Files of a folder that are being opened.
pub(crate) struct Opening {
    child: Child,
    socket: OwnedFd,
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

impl Opening {
    /// Starts the process, which gives back open files over a socket.
    pub(crate) fn begin(folder: &Weights) -> io::Result<Self> {
        let (socket, theirs) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)?;
        let mut command = Command::new("/proc/self/exe");
        command.arg("--open").args([&folder.folder, &folder.below]).stdin(Stdio::null()).stdout(theirs);
        Ok(Self { child: command.spawn()?, socket })
    }

    /// Waits for the files; `None`: the folder cannot be opened, or its file system does not answer in time. Then the process
    /// is killed.
    pub(crate) fn files(&mut self) -> Option<Vec<NodeFile>> {
        if readable_before(&self.socket, Instant::now() + TIMEOUT) != Ok(true) {
            let _ = self.child.kill();
            return None;
        }
        let (names, files): (Vec<String>, _) = recv_packet(&self.socket).ok()?;
        (names.len() == files.len()).then(|| names.into_iter().zip(files).collect())
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

/// Opens the files of a folder that the node reads, as the process of an [`Opening`], and sends them over the socket that is its
/// output.
///
/// # Errors
/// The folder cannot be opened, or the files cannot be sent.
pub fn open(folder: &OsStr, below: &OsStr) -> io::Result<()> {
    set_pdeathsig(Signal::SIGKILL)?;
    let weights = Weights { folder: PathBuf::from(folder), below: PathBuf::from(below) };
    let opened = open_weights(&weights).map_err(|error| io::Error::other(chain(&error)))?;
    let (names, files): (Vec<String>, Vec<OwnedFd>) = open_node_files(opened).into_iter().unzip();
    let descriptors: Vec<_> = files.iter().map(AsRawFd::as_raw_fd).collect();
    send_packet(io::stdout(), &names, &descriptors).map_err(|error| io::Error::other(chain(&error)))
}
