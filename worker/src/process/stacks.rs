//! Where an engine is: a signal on which it writes the stacks of all its threads to its log, whatever they do.
//!
//! The engine takes the signal with Python's `faulthandler`, which needs no lock of the interpreter. A process that does not
//! take it, such as one of an earlier release or one that has not got so far, would end by it and is not sent it.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs::File;
use std::io::Read;

/// Nothing else uses it on Linux. `worker/python/omni/_engine/output.py` has the same number.
const SIGNAL: Signal = Signal::SIGSTKFLT;
/// The file is some 1 KiB.
const MOST: u64 = 16 * 1024;

/// Asks the process for its stacks. Whether it is going to write them.
pub(super) fn ask(pid: i32) -> bool {
    let mut status = String::new();
    let read = File::open(format!("/proc/{pid}/status")).and_then(|file| file.take(MOST).read_to_string(&mut status));
    read.is_ok() && takes(&status) && kill(Pid::from_raw(pid), SIGNAL).is_ok()
}

/// Whether a process catches the signal, by its `/proc/PID/status`. Pure.
fn takes(status: &str) -> bool {
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let caught = caught.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok());
    caught.is_some_and(|caught| caught & (1 << (SIGNAL as u32 - 1)) != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_catches_the_signal_is_sent_it() {
        for (status, expected) in [
            ("Name:\tpython\nSigCgt:\t0000000000008000\n", true),
            ("SigCgt:\t0000000100018000\n", true),
            ("SigCgt:\t0000000000004002\n", false),
            ("SigIgn:\t0000000000008000\nSigCgt:\t0000000000000000\n", false),
            ("SigCgt:\tnothing\n", false),
            ("", false),
        ] {
            assert_eq!(takes(status), expected, "{status}");
        }
        assert!(!ask(i32::MAX), "there is no such process");
    }
}
