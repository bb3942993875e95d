//! Role `build`: one command in a sandbox, its output passed through, its exit code ours.
//!
//! The launcher ends a build by ending this process: the sandbox goes with it.

use super::WorkerError;
use super::supervise::{Event, Instance};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use omni_cgroup::{Group, OomWatch};
use omni_node_protocol::exit::ExitCause;
use omni_sandbox::{Report, Sandbox, SandboxIo};
use omni_worker_spec::BuildSpec;
use std::io::{stderr, stdout};
use std::os::fd::AsFd;
use std::time::Duration;

/// Exit code when the sandbox could not be made, as container tools have it.
const NOT_STARTED: u8 = 125;

/// Runs the command; the exit code is its own, or 128 and the signal's number.
pub(super) fn run(spec: &BuildSpec) -> Result<u8, WorkerError> {
    let group = Group::open(&spec.cgroup)?;
    let oom = OomWatch::new(&spec.cgroup)?;
    let before = oom.count()?;
    let (stdout, stderr) = (stdout(), stderr());
    let io = SandboxIo {
        stdout: stdout.as_fd(),
        stderr: stderr.as_fd(),
        engine: None,
        proc_files: None,
        gpu: None,
        zygote: false,
        group: &group,
    };
    let sandbox = omni_sandbox::spawn(&spec.sandbox, &io)?;
    wait_for_end(&sandbox)?;
    let (_, status) = omni_sandbox::wait(sandbox.pid.as_raw()).map_err(WorkerError::Wait)?;
    let mut instance = Instance::new();
    let mut on = |event| drop(instance.on(event, Duration::ZERO));
    while let Ok(Some((pid, report))) = sandbox.reports.receive() {
        match report {
            Report::Executing => on(Event::Executing { pid }),
            Report::Failed(message) => on(Event::Failed(message)),
            Report::Ended(status) => on(Event::Ended(status)),
            Report::Note(note) => super::log_line(&note),
            Report::Orphan { .. } => {}
        }
    }
    if oom.count()? > before {
        on(Event::OutOfMemory);
    }
    on(Event::Gone(status));
    Ok(instance.cause().as_ref().map_or(NOT_STARTED, code))
}

fn wait_for_end(sandbox: &Sandbox) -> Result<(), WorkerError> {
    loop {
        match poll(&mut [PollFd::new(sandbox.pidfd.as_fd(), PollFlags::POLLIN)], PollTimeout::NONE) {
            Err(Errno::EINTR) => {}
            result => return result.map(drop).map_err(WorkerError::Wait),
        }
    }
}

fn code(cause: &ExitCause) -> u8 {
    let number = |code: i32| u8::try_from(code).unwrap_or(u8::MAX);
    match cause {
        ExitCause::Exited { code } => number(*code),
        ExitCause::Signaled { signal } => number(128 + signal),
        ExitCause::OomKilled => {
            super::log_line(&format!("the build was {cause}"));
            137
        }
        ExitCause::StartFailed { .. } | ExitCause::WorkerLost => {
            super::log_line(&format!("the build {cause}"));
            NOT_STARTED
        }
    }
}
