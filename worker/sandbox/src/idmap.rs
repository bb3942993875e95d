//! A user namespace that is only a map from the owner on disk to an instance's user, for one id-mapped mount.
//!
//! Called by [`super::cache`]. The kernel makes such a namespace only for a process: one is cloned, held until its
//! namespace is open, and killed.

use super::kernel::{self, clone_flags};
use super::step::{Step, StepError};
use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::unistd::{getpid, getppid, pause};
use omni_process::pidfd;
use std::fs::{self, File};
use std::os::fd::OwnedFd;

/// A user namespace in which user and group `disk` of a file system appear as `uid` and `gid`.
pub(super) fn user_namespace(disk: u32, uid: u32, gid: u32) -> Result<OwnedFd, StepError> {
    let step = || "make a user namespace for the cache directory".to_owned();
    let worker = getpid();
    let hold = || {
        // Die with the worker: this process holds the lock of the image, too. A worker that was killed before this line
        // is no longer the parent, which the check below finds.
        let _ = prctl::set_pdeathsig(Signal::SIGKILL);
        if getppid() == worker {
            pause();
        }
        0
    };
    let (pid, pidfd) = kernel::clone3(clone_flags::NEWUSER, None, hold).step(step)?;
    let of = |name: &str| format!("/proc/{pid}/{name}");
    let made = fs::write(of("uid_map"), format!("{disk} {uid} 1"))
        .and_then(|()| fs::write(of("gid_map"), format!("{disk} {gid} 1")))
        .and_then(|()| File::open(of("ns/user")));
    pidfd::send_signal(&pidfd, Signal::SIGKILL).step(step)?;
    kernel::wait(pid.as_raw()).step(step)?;
    made.map(OwnedFd::from).step(step)
}
