//! Process that only waits: systemd makes no scope without one, and ends a scope that has none. The driver holds it
//! until the instance's worker is in the group.
//!
//! Invariants: it has nothing of the launcher but its memory, and ends with it, by the end of a pipe.
#![allow(unsafe_code, reason = "fork, and what a forked child of a process with threads may call")]

use nix::libc;
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::{ForkResult, Pid, fork, pipe2};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

/// Longest wait for its end, which takes a millisecond; afterwards it is a zombie of the launcher's.
const ENDS_WITHIN: Duration = Duration::from_secs(1);

/// Waiting process; it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Placeholder {
    pid: Pid,
    alive: Option<OwnedFd>,
}

impl Placeholder {
    pub(crate) fn start() -> io::Result<Self> {
        let (waits, alive) = pipe2(nix::fcntl::OFlag::O_CLOEXEC)?;
        let fd = waits.as_raw_fd();
        // SAFETY: the child calls only what is safe after the fork of a process with threads: it allocates nothing, takes no
        // lock and never returns.
        match unsafe { fork() }? {
            // SAFETY: as above; the descriptor is the child's copy of `waits`.
            ForkResult::Child => unsafe { wait_for_end_of(fd) },
            ForkResult::Parent { child } => Ok(Self { pid: child, alive: Some(alive) }),
        }
    }

    pub(crate) fn pid(&self) -> Pid {
        self.pid
    }

    /// Ends it and keeps its number in use for as long as this process lives: systemd may read the number of an
    /// unanswered request at any time, and must not find another process by it.
    pub(crate) fn keep_number(mut self) {
        self.alive = None;
        std::mem::forget(self);
    }
}

impl Drop for Placeholder {
    fn drop(&mut self) {
        self.alive = None;
        let mut waited = Duration::ZERO;
        while waited < ENDS_WITHIN
            && matches!(waitpid(self.pid, Some(WaitPidFlag::WNOHANG)), Ok(nix::sys::wait::WaitStatus::StillAlive))
        {
            std::thread::sleep(Duration::from_millis(1));
            waited += Duration::from_millis(1);
        }
    }
}

/// Body of the child: everything but the pipe is closed, so that no lock and no other pipe is held here.
///
/// # Safety
/// In a forked child, with a descriptor of its own.
unsafe fn wait_for_end_of(fd: i32) -> ! {
    let mut byte = 0_u8;
    // SAFETY: system calls on numbers and on a byte of this frame.
    #[allow(clippy::multiple_unsafe_ops_per_block, reason = "one list of system calls, each as safe as the others")]
    unsafe {
        libc::dup2(fd, 0);
        libc::syscall(libc::SYS_close_range, 1_u32, u32::MAX, 0_u32);
        while libc::read(0, (&raw mut byte).cast(), 1) < 0 && *libc::__errno_location() == libc::EINTR {}
        libc::_exit(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::Path;

    #[test]
    fn the_placeholder_waits_with_one_descriptor_and_ends_with_its_owner() {
        let placeholder = Placeholder::start().unwrap();
        let place = format!("/proc/{}", placeholder.pid());
        let closed = || fs::read_dir(format!("{place}/fd")).unwrap().count() == 1;
        let until = std::time::Instant::now() + Duration::from_secs(10);
        while !closed() {
            assert!(std::time::Instant::now() < until, "it closes what it has not to do with");
        }
        drop(placeholder);
        assert!(!Path::new(&place).exists());
    }
}
