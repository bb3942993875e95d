//! Process of a running worker: of an instance or of a zygote.

use nix::unistd::Pid;
use std::os::fd::OwnedFd;

/// A running worker.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) pid: Pid,
    pub(super) pidfd: OwnedFd,
}
