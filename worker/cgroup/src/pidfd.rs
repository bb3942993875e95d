//! Process by descriptor, which cannot come to mean another one, as a number can. Used only for killing v1 groups.
#![allow(unsafe_code, reason = "nix 0.31 has neither pidfd_open nor pidfd_send_signal")]

use nix::errno::Errno;
use nix::libc;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

pub(crate) struct PidFd(OwnedFd);

impl PidFd {
    /// Opens it with pidfd_open(2): close-on-exec by itself.
    pub(crate) fn open(pid: i32) -> Result<Self, Errno> {
        // SAFETY: the call takes two integers and touches no memory of ours.
        let result = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
        let fd = RawFd::try_from(Errno::result(result)?).map_err(|_| Errno::EBADF)?;
        // SAFETY: the kernel has just made this descriptor for us, and nobody else knows it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Sends SIGKILL by pidfd_send_signal(2).
    pub(crate) fn kill(&self) -> Result<(), Errno> {
        let no_info = std::ptr::null::<libc::siginfo_t>();
        // SAFETY: the descriptor is open as long as `self`, and a null pointer is the documented way to give no details.
        let result =
            unsafe { libc::syscall(libc::SYS_pidfd_send_signal, self.0.as_raw_fd(), libc::SIGKILL, no_info, 0) };
        Errno::result(result).map(drop)
    }
}
