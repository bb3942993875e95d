//! Parts of a sandbox, each tried alone and with the code of a start, to find the one that a machine lacks.
//!
//! Called by the launcher's probe of the machine (`omni-launcher`), from a process with one thread.
//!
//! Invariants: a step that would change the process itself runs in a child that ends at once; nothing stays.

use super::mount::{Mount, READ_ONLY};
use super::seccomp::Filter;
use super::step::{Step, StepError, invalid};
use super::tree::Tree;
use super::{cache, kernel, landlock};
use crate::spec::Cache;
use kernel::clone_flags;
use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};
use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::sys::wait::WaitStatus;
use nix::unistd::{Pid, pause};
use omni_process::pidfd;
use std::path::Path;

/// Size of the cache image: the least that ext4 is made in.
const IMAGE_BYTES: u64 = 8 << 20;

/// A child as every sandbox begins, ended by the signal to its descriptor.
pub fn clone_child() -> Result<(), StepError> {
    let hold = || {
        let _ = prctl::set_pdeathsig(Signal::SIGKILL); // without it, it is killed below
        pause();
        0
    };
    let (pid, pidfd) = kernel::clone3(0, None, hold).step(|| "clone".into())?;
    let sent = pidfd::send_signal(&pidfd, Signal::SIGKILL);
    if sent.is_err() {
        let _ = nix::sys::signal::kill(pid, Signal::SIGKILL); // our own child, not waited for yet: nobody else's number
    }
    kernel::wait(pid.as_raw()).step(|| "wait for the child".into())?;
    sent.step(|| "send a signal to the child".into())
}

/// Each kind of namespace alone, by its name in `/proc/self/ns`.
pub fn namespaces() -> Vec<(&'static str, Result<(), StepError>)> {
    let cloned = |name: &'static str, flag: libc::c_int| (name, in_child(u64::from(flag.unsigned_abs()), || 0));
    let errno = |result: Result<(), Errno>| result.map_or_else(|errno| errno as i32, |()| 0);
    vec![
        cloned("mnt", libc::CLONE_NEWNS),
        cloned("pid", libc::CLONE_NEWPID),
        cloned("ipc", libc::CLONE_NEWIPC),
        cloned("uts", libc::CLONE_NEWUTS),
        cloned("net", libc::CLONE_NEWNET),
        // Made after the child has joined its group.
        ("cgroup", in_child(0, || errno(unshare(CloneFlags::CLONE_NEWCGROUP)))),
        ("user", in_child(clone_flags::NEWUSER, || 0)),
    ]
    .into_iter()
    .map(|(name, ended)| (name, ended.and_then(|code| as_result(code, name))))
    .collect()
}

/// A file system that is mounted nowhere, and a read-only copy of a mount: all that a root is built from.
pub fn mounts() -> Result<(), StepError> {
    Mount::new(c"tmpfs", &[(c"source", Some(c"omni")), (c"size", Some(c"64k"))], READ_ONLY)
        .step(|| "make a tmpfs that is mounted nowhere".into())?;
    let root = Tree::at("/").step(|| "open /".into())?;
    Mount::copy_of(root, c"/proc", READ_ONLY).step(|| "copy the mount at /proc".into())?;
    Ok(())
}

/// A model's cache directory, with its image in `dir`, for the user `uid`.
pub fn cache(dir: &Path, uid: u32) -> Result<(), StepError> {
    let image = Cache { image: dir.join("image"), bytes: IMAGE_BYTES };
    cache::mount(&image, uid, uid, &mut Vec::new()).map(drop)
}

/// The filter of system calls.
pub fn seccomp() -> Result<(), StepError> {
    let filter = Filter::compile()?;
    // Errno that the library's error is made of.
    let applied = || match prctl::set_no_new_privs().is_ok() && filter.apply().is_ok() {
        true => 0,
        false => Errno::last() as i32,
    };
    in_child(0, applied).and_then(|code| as_result(code, "the filter"))
}

/// The version of Landlock that a rule was enforced with; `None` without Landlock.
pub fn landlock() -> Result<Option<i32>, StepError> {
    let code = in_child(0, || landlock::version().unwrap_or(0))?;
    Ok(Some(code).filter(|version| *version > 0))
}

/// Runs `act` in a child with these namespaces of its own. What it returned, which must be an exit code.
fn in_child(flags: u64, act: impl FnOnce() -> i32) -> Result<i32, StepError> {
    let (pid, _pidfd) = kernel::clone3(flags, None, act).step(|| "clone".into())?;
    let (_, status) = kernel::wait(pid.as_raw()).step(|| "wait for the child".into())?;
    match WaitStatus::from_raw(Pid::from_raw(pid.as_raw()), status).step(|| "wait for the child".into())? {
        WaitStatus::Exited(_, code) => Ok(code),
        WaitStatus::Signaled(_, signal, _) => Err(invalid(format!("the child was ended by {signal}"))),
        _ => Err(invalid("the child did not end".into())),
    }
}

fn as_result(code: i32, what: &str) -> Result<(), StepError> {
    if code == 0 { Ok(()) } else { Err(Errno::from_raw(code)).step(|| format!("make {what}")) }
}
