//! `--keep`: restarts the launcher where no service manager does. A tiny process that runs the same program without the
//! flag, waits, and runs it again when it was killed or failed. It reads the heartbeat of the launcher's main loop from
//! a pipe, and kills a launcher that is silent: instances stay, as with any launcher that ends.

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use omni_config::node::MISCONFIGURED;
use std::ffi::OsString;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::process::{Child, ChildStdout, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

/// Exit code of a launcher that must not be started again: another one runs.
pub const ALREADY_RUNNING: u8 = 75;
/// Exit code of a launcher that makes way for the next one, which is started at once.
pub const MAKES_WAY: u8 = 76;
/// Exit code for a wrong command line, as clap has it.
const USAGE: u8 = 2;

/// A launcher whose loop has not turned for so long is killed. It turns every few seconds.
const SILENT: Duration = Duration::from_secs(20);
/// Longest time before a launcher's first turn: it may have many instances to take over.
const BEGIN: Duration = Duration::from_secs(300);
/// Delay of this process beyond which the launcher may have been held up as well.
const LATE: Duration = Duration::from_secs(1);

const PAUSE_FIRST: Duration = Duration::from_millis(50);
const PAUSE_MOST: Duration = Duration::from_secs(5);

/// How long to wait before the next start. A launcher that ran for a while starts a new count. Pure.
fn pause(before: Duration, ran: Duration) -> Duration {
    if ran > PAUSE_MOST * 2 { PAUSE_FIRST } else { (before * 2).clamp(PAUSE_FIRST, PAUSE_MOST) }
}

/// Final exit code, after which starting again cannot help. Pure.
fn is_final(status: WaitStatus) -> Option<u8> {
    match status {
        WaitStatus::Exited(_, code) => {
            u8::try_from(code).ok().filter(|code| [0, USAGE, ALREADY_RUNNING, MISCONFIGURED].contains(code))
        }
        _ => None,
    }
}

/// Keeps the program running with `arguments` until it is done. SIGTERM and SIGINT go to it, and it is not started again.
///
/// # Errors
/// When it cannot be waited for. One that cannot be started is tried again: its file may be on its way to another version,
/// or the machine short of processes or memory for a moment.
pub fn keep(arguments: &[OsString]) -> io::Result<ExitCode> {
    let mut watched = SigSet::empty();
    for signal in [Signal::SIGCHLD, Signal::SIGTERM, Signal::SIGINT] {
        watched.add(signal);
    }
    watched.thread_block()?;
    let signals = SignalFd::with_flags(&watched, SfdFlags::SFD_CLOEXEC)?;
    let own = std::env::current_exe()?;
    let mut ending = false;
    let mut wait = Duration::ZERO;
    loop {
        let begun = Instant::now();
        // The child inherits that these signals are blocked, and sets its own mask first of all.
        match Command::new(&own).args(arguments).stdout(Stdio::piped()).spawn() {
            Ok(child) => {
                let status = watch(child, &signals, &mut ending)?;
                if let Some(code) = is_final(status) {
                    return Ok(ExitCode::from(code));
                }
                if ending {
                    return Ok(ExitCode::SUCCESS);
                }
                if matches!(status, WaitStatus::Exited(_, code) if code == i32::from(MAKES_WAY)) {
                    wait = Duration::ZERO;
                    continue;
                }
                wait = pause(wait, begun.elapsed());
                tracing::warn!(?status, ?wait, "the launcher ended; it is started again");
            }
            Err(error) => {
                wait = pause(wait, begun.elapsed());
                tracing::error!(%error, ?wait, "the launcher cannot be started; it is tried again");
            }
        }
        if omni_process::pidfd::readable_before(&signals, Instant::now() + wait)? {
            let signal = signals.read_signal()?.and_then(|info| Signal::try_from(info.ssi_signo.cast_signed()).ok());
            if signal.is_some_and(|signal| signal != Signal::SIGCHLD) {
                return Ok(ExitCode::SUCCESS);
            }
        }
    }
}

/// Runs the launcher once; its exit status. `ending` is set when it is asked to end.
fn watch(mut child: Child, signals: &SignalFd, ending: &mut bool) -> io::Result<WaitStatus> {
    let mut heartbeats = child.stdout.take();
    let child = Pid::from_raw(child.id().cast_signed());
    let mut deadline = Instant::now() + BEGIN;
    loop {
        match waitpid(child, Some(WaitPidFlag::WNOHANG))? {
            WaitStatus::StillAlive => {}
            status => return Ok(status),
        }
        match wait_for_input(signals, &mut heartbeats, deadline)? {
            Input::Signal(Signal::SIGCHLD) => {}
            Input::Signal(signal) => {
                *ending = true;
                kill(child, signal)?;
            }
            Input::Heartbeat => deadline = Instant::now() + SILENT,
            Input::Nothing if Instant::now() > deadline + LATE => deadline = Instant::now() + SILENT,
            Input::Nothing => {
                tracing::error!("the launcher's main loop does not turn: it is killed");
                kill(child, Signal::SIGKILL)?;
                deadline = Instant::now() + SILENT;
            }
        }
    }
}

#[derive(Debug)]
enum Input {
    Signal(Signal),
    Heartbeat,
    /// Until the deadline.
    Nothing,
}

/// Waits for a signal or a heartbeat. A pipe that has ended is not waited for any more: the end of the process follows.
fn wait_for_input(signals: &SignalFd, heartbeats: &mut Option<ChildStdout>, deadline: Instant) -> io::Result<Input> {
    let mut fds = vec![PollFd::new(signals.as_fd(), PollFlags::POLLIN)];
    fds.extend(heartbeats.iter().map(|heartbeats| PollFd::new(heartbeats.as_fd(), PollFlags::POLLIN)));
    let left = deadline.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
    let ready = match poll(&mut fds, PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)) {
        Ok(0) => return Ok(Input::Nothing),
        Ok(_) => fds.iter().map(|fd| fd.any() == Some(true)).collect::<Vec<_>>(),
        // As one more look at the child, which has not ended.
        Err(Errno::EINTR) => return Ok(Input::Signal(Signal::SIGCHLD)),
        Err(errno) => return Err(errno.into()),
    };
    if ready.first() == Some(&true) {
        let signal = signals.read_signal()?.and_then(|info| Signal::try_from(info.ssi_signo.cast_signed()).ok());
        return Ok(Input::Signal(signal.unwrap_or(Signal::SIGCHLD)));
    }
    match heartbeats.as_mut().map(|heartbeats| heartbeats.read(&mut [0; 64])) {
        Some(Ok(1..)) => Ok(Input::Heartbeat),
        Some(Ok(0) | Err(_)) | None => {
            *heartbeats = None;
            Ok(Input::Signal(Signal::SIGCHLD))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_bound_and_begin_anew() {
        let crash = Duration::from_millis(3);
        let mut waits = vec![Duration::ZERO];
        for _ in 0..9 {
            waits.push(pause(waits[waits.len() - 1], crash));
        }
        let millis: Vec<_> = waits.iter().map(Duration::as_millis).collect();
        assert_eq!(millis, [0, 50, 100, 200, 400, 800, 1600, 3200, 5000, 5000]);
        assert_eq!(pause(PAUSE_MOST, Duration::from_secs(60)), PAUSE_FIRST);
    }

    #[test]
    fn only_what_would_happen_again_is_final() {
        let pid = Pid::from_raw(1);
        for (code, is_the_end) in [(0, true), (1, false), (2, true), (75, true), (78, true), (101, false)] {
            assert_eq!(is_final(WaitStatus::Exited(pid, code)).is_some(), is_the_end, "{code}");
        }
        assert_eq!(is_final(WaitStatus::Signaled(pid, Signal::SIGKILL, false)), None);
    }
}
