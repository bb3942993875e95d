//! Trial of instructions in a process of their own, whose death by an illegal instruction is an answer.
#![allow(unsafe_code, reason = "fork, waitpid, kill and _exit have no safe wrapper")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

/// Longest time of a trial.
const LIMIT: Duration = Duration::from_secs(5);

/// Returns whether `works` returns true in a child process, `None` if no process can be made or its end is not told:
/// to those who ignore the ends of children.
pub(super) fn passes(works: impl Fn() -> bool) -> Option<bool> {
    // SAFETY: the child calls `works` and ends. The C library makes its allocator usable in a child of a process with
    // threads; `works` takes no lock beside.
    match unsafe { libc::fork() } {
        -1 => None,
        0 => {
            let passed = catch_unwind(AssertUnwindSafe(works)).unwrap_or(false);
            // SAFETY: ends the process without the parent's handlers.
            unsafe { libc::_exit(i32::from(!passed)) }
        }
        child => wait(child),
    }
}

/// Waits for the child, and returns whether it ended well.
fn wait(child: libc::pid_t) -> Option<bool> {
    let started = Instant::now();
    let mut killed = false;
    loop {
        let mut status = 0;
        // SAFETY: `status` is a place for the status.
        let ended = unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) };
        if ended == child {
            return Some(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0);
        }
        if ended == -1 && std::io::Error::last_os_error().kind() != std::io::ErrorKind::Interrupted {
            return None;
        }
        if started.elapsed() > LIMIT && !killed {
            // SAFETY: the child has not been awaited, so its number is still its own.
            unsafe { libc::kill(child, libc::SIGKILL) };
            killed = true;
        }
        std::thread::sleep(Duration::from_micros(200));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trial_survives_whatever_the_trial_does() {
        assert_eq!(passes(|| true), Some(true));
        assert_eq!(passes(|| false), Some(false));
        assert_eq!(passes(|| panic!("no")), Some(false));
        // SAFETY: a signal to the calling process, which is the child.
        assert_eq!(passes(|| unsafe { libc::raise(libc::SIGILL) } == 0), Some(false));
    }
}
