//! Connection to the worker, in a process whose descriptors the program may close.
//!
//! A program may close every descriptor above 2, put others in their places, and fork. So this one has a high number,
//! is identified by its inode too, and is checked before each use: a number that means something else by now is left
//! alone, and the connection counts as lost. A forked child closes its copy at once: the connection ends with the
//! process that made it.
#![allow(unsafe_code, reason = "a socket without an owner type, because it may stop being ours")]

use crate::loader::libc_own::in_forks;
use omni_gpu_protocol::control::{COMMAND_BYTES, CommandPacket, Report};
use std::ffi::{OsStr, c_int};
use std::mem::{MaybeUninit, offset_of};
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};

/// Lowest number of the descriptor: programs count on low numbers being free, and move descriptors to numbers they
/// choose.
const LOWEST: c_int = 700;
/// Longest wait for the worker to accept, or to make room for a report.
static PATIENCE: libc::timeval = libc::timeval { tv_sec: 1, tv_usec: 0 };

/// Descriptor of this process, for its forks; -1 for none.
static DESCRIPTOR: AtomicI32 = AtomicI32::new(-1);
static INODE: AtomicU64 = AtomicU64::new(0);

/// Connection. Dropping it closes the descriptor, if it is still this one.
pub(super) struct Socket {
    descriptor: c_int,
    inode: u64,
}

impl Socket {
    /// Connects; `None` when nothing accepts there within a second.
    pub(super) fn connect(path: &OsStr) -> Option<Self> {
        let (address, length) = address(path)?;
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
        // SAFETY: takes no memory.
        let low = unsafe { libc::socket(libc::AF_UNIX, kind, 0) };
        if low < 0 {
            return None;
        }
        // SAFETY: as above; `low` is ours.
        let high = unsafe { libc::fcntl(low, libc::F_DUPFD_CLOEXEC, LOWEST) };
        let descriptor = if high < 0 { low } else { high };
        if high >= 0 {
            // SAFETY: ours, and its copy stays.
            unsafe { libc::close(low) };
        }
        let socket = Self { descriptor, inode: inode(descriptor)? };
        let (patience, bytes) = ((&raw const PATIENCE).cast(), libc::socklen_t::try_from(size_of_val(&PATIENCE)).ok()?);
        // SAFETY: reads `bytes` bytes of a constant.
        unsafe { libc::setsockopt(descriptor, libc::SOL_SOCKET, libc::SO_SNDTIMEO, patience, bytes) };
        // SAFETY: reads `length` bytes of the address, which lives.
        let connected = unsafe { libc::connect(descriptor, (&raw const address).cast(), length) };
        if connected != 0 {
            return None;
        }
        socket.close_in_forks();
        Some(socket)
    }

    /// Waits for the next command; `None` when the connection is lost, or a packet is malformed.
    pub(super) fn receive(&self) -> Option<CommandPacket> {
        let mut packet = [0_u8; COMMAND_BYTES + 1];
        let length = loop {
            if !self.is_ours() {
                return None;
            }
            // SAFETY: writes at most the packet's bytes.
            let length = unsafe { libc::recv(self.descriptor, packet.as_mut_ptr().cast(), packet.len(), 0) };
            if length >= 0 || !was_interrupted() {
                break usize::try_from(length).ok()?;
            }
        };
        CommandPacket::from_bytes(packet.get(..length)?)
    }

    /// Sends a report; `None` when the connection is lost or the worker makes no room.
    pub(super) fn send(&self, report: Report) -> Option<()> {
        let packet = report.to_bytes();
        loop {
            if !self.is_ours() {
                return None;
            }
            let (bytes, length) = (packet.as_ptr().cast(), packet.len());
            // SAFETY: reads the packet's bytes.
            let sent = unsafe { libc::send(self.descriptor, bytes, length, libc::MSG_NOSIGNAL) };
            if sent >= 0 || !was_interrupted() {
                return (usize::try_from(sent) == Ok(packet.len())).then_some(());
            }
        }
    }

    fn is_ours(&self) -> bool {
        inode(self.descriptor) == Some(self.inode)
    }

    fn close_in_forks(&self) {
        static IS_WATCHED: AtomicBool = AtomicBool::new(false);
        INODE.store(self.inode, Ordering::Relaxed);
        DESCRIPTOR.store(self.descriptor, Ordering::Relaxed);
        if !IS_WATCHED.swap(true, Ordering::Relaxed) {
            in_forks(in_child); // it does what may be done in a child of many threads
        }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if self.is_ours() {
            // SAFETY: ours by its inode.
            unsafe { libc::close(self.descriptor) };
        }
    }
}

extern "C" fn in_child() {
    let copy = Socket { descriptor: DESCRIPTOR.swap(-1, Ordering::Relaxed), inode: INODE.load(Ordering::Relaxed) };
    drop(copy);
}

/// Inode of the socket behind a descriptor; `None` when it is no socket.
fn inode(descriptor: c_int) -> Option<u64> {
    let mut status = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the kernel fills the structure, or says that it did not.
    if unsafe { libc::fstat(descriptor, status.as_mut_ptr()) } != 0 {
        return None;
    }
    // SAFETY: filled.
    let status = unsafe { status.assume_init() };
    (status.st_mode & libc::S_IFMT == libc::S_IFSOCK).then_some(status.st_ino)
}

fn address(path: &OsStr) -> Option<(libc::sockaddr_un, libc::socklen_t)> {
    let family = libc::sa_family_t::try_from(libc::AF_UNIX).ok()?;
    let mut address = libc::sockaddr_un { sun_family: family, sun_path: [0; 108] };
    let path = path.as_bytes();
    if path.len() >= address.sun_path.len() {
        return None;
    }
    for (place, byte) in address.sun_path.iter_mut().zip(path) {
        *place = byte.cast_signed();
    }
    let length = offset_of!(libc::sockaddr_un, sun_path) + path.len() + 1;
    Some((address, libc::socklen_t::try_from(length).ok()?))
}

fn was_interrupted() -> bool {
    std::io::Error::last_os_error().kind() == std::io::ErrorKind::Interrupted
}
