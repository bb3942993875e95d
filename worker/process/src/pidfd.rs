//! Processes by descriptor: a number can be given to another process, a descriptor cannot, and id and start time
//! together tell a process from the next one with its number.
#![allow(unsafe_code, reason = "pidfd_open and pidfd_send_signal have no safe wrapper")]

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::time::{Duration, Instant};

/// A descriptor of the process that has this id now; readable once it has ended.
pub fn open(pid: Pid) -> Result<OwnedFd, Errno> {
    // SAFETY: plain numbers.
    let fd = Errno::result(unsafe { libc::syscall(libc::SYS_pidfd_open, pid.as_raw(), 0) })?;
    let fd = RawFd::try_from(fd).map_err(|_| Errno::EBADF)?;
    // SAFETY: the kernel has just made this descriptor, close-on-exec; no other code knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Sends a signal to the process of a pidfd; `ESRCH` when it is gone.
pub fn send_signal(pidfd: impl AsFd, signal: Signal) -> Result<(), Errno> {
    let pidfd = pidfd.as_fd().as_raw_fd();
    let info = ptr::null::<libc::siginfo_t>();
    // SAFETY: the descriptor is open for the call; a null `info` makes the kernel fill it as kill does.
    let sent = unsafe { libc::syscall(libc::SYS_pidfd_send_signal, pidfd, signal as libc::c_int, info, 0) };
    Errno::result(sent).map(drop)
}

/// When a process began, in clock ticks after boot: with its id the name of one process and no other.
pub fn started_ticks(pid: Pid) -> Option<u64> {
    started(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// Field 22 of `/proc/<pid>/stat`. The command in field 2 is the process's own choice and may hold spaces and brackets:
/// the last one ends it (proc_pid_stat(5)). Pure.
fn started(stat: &str) -> Option<u64> {
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(19)?.parse().ok()
}

/// The number of a process in the innermost of its namespaces, from its `/proc/<pid>/status`. Pure.
pub fn namespace_pid(status: &str) -> Option<i32> {
    status.lines().find_map(|line| line.strip_prefix("NSpid:"))?.split_ascii_whitespace().last()?.parse().ok()
}

/// Tests whether the process has ended, reaped or not. A process that cannot be polled counts as ended: nothing is done
/// to it then.
pub fn has_ended(pidfd: impl AsFd) -> bool {
    poll(&mut [PollFd::new(pidfd.as_fd(), PollFlags::POLLIN)], PollTimeout::ZERO) != Ok(0)
}

/// Waits until a descriptor is readable; `false` when the deadline comes first.
pub fn readable_before(fd: impl AsFd, deadline: Instant) -> Result<bool, Errno> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        // Rounded up, so that the last part of a millisecond is not spent in a busy loop.
        let timeout = PollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX);
        match poll(&mut [PollFd::new(fd.as_fd(), PollFlags::POLLIN)], timeout) {
            Ok(0) if Instant::now() >= deadline => return Ok(false),
            Ok(0) | Err(Errno::EINTR) => {}
            Ok(_) => return Ok(true),
            Err(errno) => return Err(errno),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_beginning_of_a_process() {
        assert_eq!(namespace_pid("Name:\tpython3\nNSpid:\t4711\t7\nNSpgid:\t1\n"), Some(7));
        assert_eq!(namespace_pid("Name:\tx\nNSpid:\t4711\t12\t2\nNSpgid:\t1\n"), Some(2));
        assert_eq!(namespace_pid("NSpid:\t4711\n"), Some(4711));
        assert_eq!(namespace_pid("Name:\tNSpid: 7\nNSpid:\t4711\n"), Some(4711));
        assert_eq!(namespace_pid("Name:\tx\n"), None);
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 0 0 0 0 0 0 0 0 20 0 1 0 987654 1000 0";
        assert_eq!(started(stat), Some(987_654));
        assert_eq!(started("7 (a"), None);
    }

    #[test]
    fn a_process_is_known_by_id_and_start() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = Pid::from_raw(child.id().cast_signed());
        let fd = open(pid).unwrap();
        let ticks = started_ticks(pid).unwrap();
        assert!(ticks >= started_ticks(Pid::parent()).unwrap());
        assert!(!readable_before(&fd, Instant::now()).unwrap());
        assert!(!has_ended(&fd));
        child.kill().unwrap();
        assert!(readable_before(&fd, Instant::now() + Duration::from_secs(10)).unwrap());
        assert!(has_ended(&fd));
        child.wait().unwrap();
        assert!(has_ended(&fd));
        assert_eq!(started_ticks(pid), None);
        assert_eq!(open(pid).unwrap_err(), Errno::ESRCH);
    }
}
