//! `omni-worker`: one process per sandbox, started by the launcher with a [`WorkerSpec`] on its standard input.
//!
//! The process is small, has one thread beside those of the FUSE server, and stays when launcher and scheduler go: it
//! holds all that an instance needs to live. [`supervise`] decides; [`journal`] keeps the model's output; [`connection`] is
//! the connection to the scheduler, [`gpu`] those to the shims of a GPU model; [`running`] holds the descriptors and
//! [`instance`] is the loop. A process that several instances come from has a worker of its own, [`zygote`].
#![forbid(unsafe_code)]

mod build;
mod connection;
mod forked;
mod gpu;
mod instance;
mod journal;
mod process_source;
mod pss;
mod running;
mod setup;
mod sockets;
mod stacks;
mod supervise;
mod zygote;

use nix::errno::Errno;
use omni_sandbox::StepError;
use omni_worker_spec::WorkerSpec;
use std::io::{self, Read, Write};

/// The most that a specification takes, in bytes.
const SPEC_MAX: u64 = 1024 * 1024;
/// Bytes of foreign words in one line of a log of ours.
const SHOWN: usize = 1024;

/// Failure of the worker before it listens. Later the end of the instance is reported to the scheduler instead.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// The specification on standard input cannot be read.
    #[error("cannot read the specification on standard input")]
    Read(#[source] io::Error),
    /// Standard input holds something else.
    #[error("standard input is not a worker's specification; omni-worker is started by omni-launcher only")]
    Spec(#[source] serde_json::Error),
    /// The worker's own protection or signals could not be set up.
    #[error("cannot set up the worker: {step}")]
    Setup {
        /// Failed step.
        step: &'static str,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
    /// The socket could not be made.
    #[error(transparent)]
    Listen(#[from] connection::ListenError),
    /// The control group is not there or lacks what is needed.
    #[error("cannot use the control group")]
    Cgroup(#[from] omni_cgroup::Error),
    /// The sandbox could not be made.
    #[error("cannot start the sandbox")]
    Sandbox(#[from] StepError),
    /// The files over those of `/proc` could not be made.
    #[error("cannot make the files of /proc")]
    Meminfo(#[from] omni_meminfo_fs::PrepareError),
    /// A file could not be filled.
    #[error("cannot fill the files of /proc")]
    MeminfoSource(#[from] omni_meminfo_fs::SampleError),
    /// A file could not be served.
    #[error("cannot serve the files of /proc")]
    MeminfoServe(#[from] omni_meminfo_fs::ServeError),
    /// The engine's first message could not be sent.
    #[error("cannot send the engine its first message")]
    Boot(#[from] omni_engine_protocol::packet::PacketError),
    /// The kernel does not let the worker wait.
    #[error("cannot wait for events")]
    Wait(#[source] Errno),
    /// The exit cause could not be written.
    #[error("cannot write the exit file")]
    ExitFile(#[source] io::Error),
}

/// Does the job on standard input. The exit code of the process.
///
/// # Errors
/// When the job could not be begun.
pub fn run() -> Result<u8, WorkerError> {
    let mut text = String::new();
    io::stdin().take(SPEC_MAX).read_to_string(&mut text).map_err(WorkerError::Read)?;
    match serde_json::from_str(&text).map_err(WorkerError::Spec)? {
        WorkerSpec::Build(spec) => build::run(&spec),
        WorkerSpec::Instance(spec) => instance::run(&spec).map(|()| 0),
        WorkerSpec::Zygote(spec) => zygote::run(&spec).map(|()| 0),
    }
}

/// Foreign words as a part of a line of ours: control characters escaped, cut at 1 KiB.
fn shown(text: &str) -> String {
    let mut line = String::new();
    for char in text.chars() {
        if char.is_control() {
            line.extend(char.escape_default());
        } else {
            line.push(char);
        }
        if line.len() > SHOWN {
            line.push('…');
            break;
        }
    }
    line
}

/// Writes a line to standard error, whose reader may be gone.
pub fn log_line(text: &str) {
    let _ = writeln!(io::stderr(), "omni-worker: {text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_text_stays_in_its_line() {
        assert_eq!(shown("no numpy\n\u{1b}[2J"), r"no numpy\n\u{1b}[2J");
        assert!(shown(&"ü".repeat(5000)).len() < SHOWN + 16);
    }
}
