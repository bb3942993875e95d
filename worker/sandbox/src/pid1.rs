//! Process 1 of the sandbox: starts the engine as process 2, reaps what is orphaned, reports how the engine ended.
//!
//! An engine that is a zygote forks others, twice each, so that they become this process's children: it reports how each
//! of them ended, and ends itself when the last one has.
//!
//! An engine as process 1 would lose its default signals and `abort()`. This process runs no model code; it is not
//! dumpable, so a model, which has the same user, can neither trace it nor read its memory and descriptors; and signals
//! from inside without a handler do not reach a pid 1. When it ends, the kernel ends everything of the sandbox.
#![allow(unsafe_code, reason = "fork, wait status beyond nix's signals, a signal handler")]

use super::report::{Report, send};
use super::step::{Step, StepError};
use super::{Program, kernel};
use nix::errno::Errno;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use nix::unistd::{ForkResult, execve, fork, setsid};
use omni_engine_protocol::control::ENGINE_FD;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicI32, Ordering};

/// The engine, for the signal handler; 0 before it is there.
static ENGINE: AtomicI32 = AtomicI32::new(0);

/// Starts the program, stays until it ends, and reports that. Fails only by what failed before the program was started.
pub(super) fn run(program: &Program<'_>, reports: BorrowedFd<'_>) -> Result<(), StepError> {
    // SAFETY: this process has one thread, the copy made by clone3.
    match unsafe { fork() }.step(|| "fork the engine".into())? {
        ForkResult::Child => {
            let Err(error) = execute(program, reports);
            // A report that cannot be sent has no reader: the worker is gone, and this process with it.
            let _ = send(reports, &Report::Failed(error.chain()));
            kernel::exit(127)
        }
        ForkResult::Parent { child } => {
            ENGINE.store(child.as_raw(), Ordering::Relaxed);
            kernel::close_except(&[reports.as_raw_fd()]).step(|| "close descriptors of pid 1".into())?;
            forward_sigterm().step(|| "forward SIGTERM".into())?;
            let reap = if program.zygote { reap_all } else { reap_until };
            reap(child.as_raw(), reports).step(|| "wait for the engine".into())
        }
    }
}

fn execute(program: &Program<'_>, reports: BorrowedFd<'_>) -> Result<std::convert::Infallible, StepError> {
    setsid().step(|| "start a session".into())?;
    kernel::dup2(program.null, 0).step(|| "set standard input".into())?;
    kernel::dup2(program.stdout, 1).step(|| "set standard output".into())?;
    kernel::dup2(program.stderr, 2).step(|| "set standard error".into())?;
    let mut kept: Vec<RawFd> = vec![0, 1, 2, reports.as_raw_fd()];
    if let Some(engine) = program.engine {
        kernel::dup2(engine, ENGINE_FD).step(|| "set the engine socket".into())?;
        kept.push(ENGINE_FD);
    }
    kernel::close_except(&kept).step(|| "close descriptors".into())?;
    kernel::default_signals().step(|| "reset signals".into())?;
    nix::unistd::chdir(program.cwd).step(|| format!("enter {}", program.cwd.display()))?;
    send(reports, &Report::Executing).step(|| "report the engine's process".into())?;
    let path = program.argv.first().map(std::ffi::CString::as_c_str).unwrap_or_default();
    execve(path, program.argv, program.env).step(|| format!("execute {}", path.to_string_lossy()))
}

/// Reaps until `engine` has ended; everything else that ends before is forgotten.
fn reap_until(engine: i32, reports: BorrowedFd<'_>) -> Result<(), Errno> {
    loop {
        let (pid, status) = reap()?;
        if pid == engine {
            report(reports, &Report::Ended(status));
            return Ok(());
        }
    }
}

/// Reaps until no process is left in the sandbox.
fn reap_all(engine: i32, reports: BorrowedFd<'_>) -> Result<(), Errno> {
    loop {
        match reap() {
            Ok((pid, status)) if pid == engine => {
                ENGINE.store(0, Ordering::Relaxed);
                report(reports, &Report::Ended(status));
            }
            Ok((pid, status)) => report(reports, &Report::Orphan { pid, status }),
            Err(Errno::ECHILD) => return Ok(()),
            Err(errno) => return Err(errno),
        }
    }
}

/// The next child that has ended, and its raw status. nix's own `wait` knows no real-time signals.
fn reap() -> Result<(i32, i32), Errno> {
    loop {
        match kernel::wait(-1) {
            Err(Errno::EINTR) => {}
            other => return other,
        }
    }
}

fn report(reports: BorrowedFd<'_>, report: &Report) {
    // Without a reader the worker is gone, and so is this process by its parent-death signal.
    let _ = send(reports, report);
}

extern "C" fn forward(signal: libc::c_int) {
    let engine = ENGINE.load(Ordering::Relaxed);
    if engine > 0 {
        // SAFETY: kill may be called in a signal handler. The engine is reaped where this process ends its loop, or
        // forgets the number at once, long before the kernel has gone round all others: so it is still its own.
        unsafe { libc::kill(engine, signal) };
    }
}

fn forward_sigterm() -> Result<(), Errno> {
    let action = SigAction::new(SigHandler::Handler(forward), SaFlags::empty(), SigSet::empty());
    // SAFETY: `forward` only loads an atomic and calls kill.
    unsafe { sigaction(Signal::SIGTERM, &action) }.map(drop)
}

/// Lifts a descriptor above those that [`execute`] gives to the engine.
pub(super) fn above_engine(fd: impl AsFd) -> Result<std::os::fd::OwnedFd, Errno> {
    let copy = nix::fcntl::fcntl(fd, nix::fcntl::FcntlArg::F_DUPFD_CLOEXEC(ENGINE_FD + 1))?;
    // SAFETY: the kernel has just made this descriptor; no other code knows it.
    Ok(unsafe { std::os::fd::FromRawFd::from_raw_fd(copy) })
}
