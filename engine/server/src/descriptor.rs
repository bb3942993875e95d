//! Descriptors that a process is started with.
#![allow(unsafe_code, reason = "a descriptor of the process's start has no owner yet")]

use nix::sys::socket::{getsockopt, sockopt};
use omni_engine_protocol::control::ENGINE_FD;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

/// The control socket of an engine.
///
/// # Errors
/// The descriptor is not open, or no socket.
pub(crate) fn control() -> io::Result<OwnedFd> {
    // SAFETY: the borrow ends with this function, in which nothing closes the descriptor; if it is not open, the calls
    // below fail.
    let borrowed = unsafe { BorrowedFd::borrow_raw(ENGINE_FD) };
    getsockopt(&borrowed, sockopt::SockType)?;
    // A copy with an owner, above the standard descriptors.
    borrowed.try_clone_to_owned()
}
