//! Services of the kernel: the mapping that all processes share, locks that it releases at a holder's death, the clock.
//!
//! The locks are ranges of one byte each, held by an open file description ("OFD" locks of `fcntl`). Nothing else fits:
//! a process that is killed lets go of them at once, and they mean the same in every pid namespace, where a pid that is
//! written down (in a robust mutex, or in a slot) does not.
#![allow(unsafe_code, reason = "mmap, fcntl locks and the clock are C functions")]

use crate::layout::Layout;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// The card's file, mapped.
#[derive(Debug)]
pub(crate) struct Mapping(*mut Layout);

// SAFETY: everything in a layout is atomic.
unsafe impl Send for Mapping {}
// SAFETY: everything in a layout is atomic.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// # Errors
    /// The file is too short, or cannot be mapped.
    pub(crate) fn new(file: &File) -> io::Result<Self> {
        if file.metadata()?.len() < size_of::<Layout>() as u64 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "too short for a simulated card"));
        }
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: a fresh mapping, placed by the kernel, of an open file that is long enough.
        let at =
            unsafe { libc::mmap(std::ptr::null_mut(), size_of::<Layout>(), protection, flags, file.as_raw_fd(), 0) };
        if at == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(Self(at.cast())) }
    }

    pub(crate) fn layout(&self) -> &Layout {
        // SAFETY: mapped in `new` with this size, page-aligned, unmapped in `drop` only; any bytes are a valid layout.
        unsafe { &*self.0 }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this size; no reference outlives the owner.
        unsafe { libc::munmap(self.0.cast(), size_of::<Layout>()) };
    }
}

/// A description of its own, so that a fork can let go of it: a mapping would keep its description, and the locks with it.
#[derive(Debug)]
pub(crate) struct Locks(File);

impl Locks {
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        OpenOptions::new().read(true).write(true).custom_flags(libc::O_CLOEXEC).open(path).map(Self)
    }

    /// Waits until the byte is this description's.
    pub(crate) fn acquire(&self, byte: i64) -> io::Result<()> {
        while self.control(libc::F_OFD_SETLKW, libc::F_WRLCK, byte).is_err() {
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
        Ok(())
    }

    pub(crate) fn release(&self, byte: i64) {
        // Cannot fail on a byte that is held.
        let _ = self.control(libc::F_OFD_SETLK, libc::F_UNLCK, byte);
    }

    /// Another description holds the byte.
    pub(crate) fn held_elsewhere(&self, byte: i64) -> bool {
        self.control(libc::F_OFD_GETLK, libc::F_WRLCK, byte).is_ok_and(|kind| kind != libc::F_UNLCK)
    }

    pub(crate) fn descriptor(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    fn control(&self, command: i32, kind: i32, byte: i64) -> io::Result<i32> {
        let mut lock = libc::flock {
            l_type: i16::try_from(kind).unwrap_or(0),
            l_whence: i16::try_from(libc::SEEK_SET).unwrap_or(0),
            l_start: byte,
            l_len: 1,
            l_pid: 0,
        };
        // SAFETY: an open descriptor, and a lock that lives through the call.
        let answer = unsafe { libc::fcntl(self.0.as_raw_fd(), command, &raw mut lock) };
        if answer == -1 { Err(io::Error::last_os_error()) } else { Ok(i32::from(lock.l_type)) }
    }
}

/// Closes the descriptor of locks in the child of a fork: the parent alone keeps them. May be called where only
/// async-signal-safe functions may.
pub fn close_after_fork(descriptor: RawFd) {
    // SAFETY: the child's own copy of the number; nothing in the child uses the card again.
    unsafe { libc::close(descriptor) };
}

/// Nanoseconds of the monotonic clock, which all processes share.
#[must_use]
pub fn now() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` lives through the call.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}
