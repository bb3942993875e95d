//! Identity of a slot's owner: pid, start time and executed program, and whether that process still has memory.

use std::fs;
use std::io::ErrorKind;

/// Identity of a process among all that have or had its pid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Identity {
    pub pid: u64,
    /// Field 22 of `/proc/<pid>/stat`; 0 when `/proc` cannot be read.
    pub start_time: u64,
    /// First eight of the kernel's random bytes for this exec.
    pub exec_id: u64,
}

impl Identity {
    /// Identity of this process.
    pub(super) fn own() -> Self {
        let start_time = match look("self") {
            Look::Alive { start_time } => start_time,
            Look::Gone | Look::Unknown => 0,
        };
        Self { pid: u64::from(std::process::id()), start_time, exec_id: exec_id() }
    }
}

/// A process with this pid and start time has certainly ended: one that cannot be examined counts as alive.
pub(super) fn has_ended(pid: u64, start_time: u64) -> bool {
    match look(&pid.to_string()) {
        Look::Gone => true,
        Look::Alive { start_time: now } => start_time != 0 && now != start_time,
        Look::Unknown => false,
    }
}

enum Look {
    Alive { start_time: u64 },
    Gone,
    Unknown,
}

fn look(pid: &str) -> Look {
    match fs::read(format!("/proc/{pid}/stat")) {
        Ok(stat) => parse(&stat),
        // ESRCH: the process ended between open and read.
        Err(error) if error.kind() == ErrorKind::NotFound && fs::exists("/proc/self/stat").unwrap_or(false) => {
            Look::Gone
        }
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Look::Gone,
        Err(_) => Look::Unknown,
    }
}

/// Reads the fields after the name, which may hold spaces and brackets: the first is the state (3), 20 is the number of
/// threads, 22 the start time. A zombie without threads has given its memory back; one with threads has only lost its
/// first thread.
fn parse(stat: &[u8]) -> Look {
    let fields = || {
        let name_end = stat.iter().rposition(|byte| *byte == b')')?;
        let mut fields = str::from_utf8(stat.get(name_end + 1..)?).ok()?.split_ascii_whitespace();
        let state = fields.next()?;
        let threads: u64 = fields.nth(16)?.parse().ok()?;
        let start_time = fields.nth(1)?.parse().ok()?;
        Some((matches!(state, "Z" | "X") && threads <= 1, start_time))
    };
    match fields() {
        Some((true, _)) => Look::Gone,
        Some((false, start_time)) => Look::Alive { start_time },
        None => Look::Unknown,
    }
}

#[allow(unsafe_code, reason = "the auxiliary vector")]
fn exec_id() -> u64 {
    // SAFETY: reads the auxiliary vector, which is always there.
    let random = unsafe { libc::getauxval(libc::AT_RANDOM) } as *const u64;
    if random.is_null() {
        return 0;
    }
    // SAFETY: the kernel put 16 bytes there, above the stack, for the life of the program.
    unsafe { random.read_unaligned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_identified_by_its_start_time() {
        let own = Identity::own();
        assert_eq!(own, Identity::own());
        assert!(own.start_time > 0 && own.exec_id != 0);
        assert!(!has_ended(own.pid, own.start_time));
        assert!(has_ended(own.pid, own.start_time + 1), "the pid was given again");
        assert!(!has_ended(own.pid, 0), "not known when it started: not known to have ended");
        assert!(has_ended(u64::from(u32::MAX), 1), "no such pid");
    }

    #[test]
    fn stat_is_read_behind_any_name_and_a_zombie_with_threads_is_alive() {
        let stat = |name: &str, state: &str, threads: u64| {
            format!("7 ({name}) {state} 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 {threads} 0 4242 18\n").into_bytes()
        };
        for name in ["sh", "a b", ") Z 1 (", "\u{fc}"] {
            assert!(matches!(parse(&stat(name, "S", 1)), Look::Alive { start_time: 4242 }), "{name}");
        }
        assert!(matches!(parse(&stat("sh", "Z", 1)), Look::Gone));
        assert!(matches!(parse(&stat("sh", "Z", 2)), Look::Alive { .. }));
        assert!(matches!(parse(b"7 (sh"), Look::Unknown));
        assert!(matches!(parse(b"7 (sh) S 1 2"), Look::Unknown));
    }
}
