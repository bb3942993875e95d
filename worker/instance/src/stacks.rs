//! Stacks of a running engine: signals on which it writes those of all its threads to its log, whatever they do.
//!
//! A thread of the engine waits for the first signal and answers while it holds the interpreter, so that no thread ends
//! under the walk. Where another thread holds the interpreter and does not release it, it cannot; the second signal has
//! Python's `faulthandler` walk without the interpreter (`worker/python/omni/_engine/stacks.py`). A process that does
//! not handle a signal, such as one that has not started far enough, would end by it and is not sent it.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs::{File, read_dir};
use std::io::Read;
use std::path::Path;

/// Nothing else uses it on Linux. `worker/python/omni/_engine/stacks.py` has the same two.
const ASK: Signal = Signal::SIGSTKFLT;
const INSIST: Signal = Signal::SIGTSTP;
/// The file is some 1 KiB.
const MOST: u64 = 16 * 1024;
/// The thread that answers is the second one of the process; the kernel lists them by age.
const OLDEST_THREADS: usize = 4;

/// Asks the process for its stacks. Whether it is going to write them.
pub(super) fn ask(pid: i32) -> bool {
    let takes = status(Path::new(&format!("/proc/{pid}"))).is_some_and(|status| has(&status, "SigCgt:", ASK));
    takes && kill(Pid::from_raw(pid), ASK).is_ok()
}

/// Has the process write its stacks without the interpreter, unless it has answered since it was asked.
pub(super) fn insist(pid: i32) {
    let takes = status(Path::new(&format!("/proc/{pid}"))).is_some_and(|status| has(&status, "SigCgt:", INSIST));
    if takes && !waits(pid) {
        let _ = kill(Pid::from_raw(pid), INSIST); // it may have ended
    }
}

/// Tests that the answering thread waits for the next signal: meanwhile the kernel does not have the signal blocked for
/// it.
fn waits(pid: i32) -> bool {
    let threads = read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten().take(OLDEST_THREADS);
    threads.filter_map(|thread| status(&thread.path())).any(|status| !has(&status, "SigBlk:", ASK))
}

/// The status of a process or thread by its folder in `/proc`.
fn status(folder: &Path) -> Option<String> {
    let mut status = String::new();
    File::open(folder.join("status")).ok()?.take(MOST).read_to_string(&mut status).ok()?;
    Some(status)
}

/// Looks up a signal in a mask of a status. Pure.
fn has(status: &str, mask: &str, signal: Signal) -> bool {
    let digits = status.lines().find_map(|line| line.strip_prefix(mask));
    let bits = digits.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok());
    bits.is_some_and(|bits| bits & (1 << (signal as u32 - 1)) != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_process_that_catches_the_signal_is_sent_it() {
        for (status, expected) in [
            ("Name:\tpython\nSigCgt:\t0000000000008000\n", true),
            ("SigCgt:\t0000000100018000\n", true),
            ("SigCgt:\t0000000000004002\n", false),
            ("SigIgn:\t0000000000008000\nSigCgt:\t0000000000000000\n", false),
            ("SigCgt:\tnothing\n", false),
            ("", false),
        ] {
            assert_eq!(has(status, "SigCgt:", ASK), expected, "{status}");
        }
        assert!(has("SigCgt:\t0000000000080000\nSigBlk:\t0000000000000000\n", "SigCgt:", INSIST));
        assert!(!has("SigCgt:\t0000000000080000\nSigBlk:\t0000000000000000\n", "SigBlk:", INSIST));
        assert!(!ask(i32::MAX), "there is no such process");
        insist(i32::MAX);
    }
}
