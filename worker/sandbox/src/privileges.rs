//! Giving up every privilege: limits, capabilities, users. Called by [`super::child`]: limits first, the
//! rest after the root is made.

use super::kernel;
use super::step::{Step, StepError};
use crate::spec::SandboxSpec;
use nix::errno::Errno;
use nix::sys::prctl;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::unistd::{Gid, Uid, setgroups, setresgid, setresuid};
use std::fs;
use std::io::ErrorKind;

/// Open files of one process: far more than a model needs, far less than would hurt the kernel's memory.
const OPEN_FILES: u64 = 16_384;

/// Bytes of a core dump. Less than any file of one has; and where the host gives core dumps to a program, which 0 does not
/// keep from being run, the kernel takes exactly this number for "none" (`fs/coredump.c`).
const CORE: u64 = 1;

/// No core dumps (they would hold other people's prompts), bounded descriptors. Limits cannot be raised again.
pub(super) fn limit() -> Result<(), StepError> {
    setrlimit(Resource::RLIMIT_CORE, CORE, CORE).step(|| "forbid core dumps".into())?;
    // A model can lower the limit to 0: a core dump that the host's program gets then has no memory in it.
    match fs::write("/proc/self/coredump_filter", b"0") {
        Err(error) if error.kind() == ErrorKind::NotFound => {} // a kernel without core dumps
        written => written.step(|| "leave memory out of core dumps".into())?,
    }
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).step(|| "read the limit of open files".into())?;
    let files = hard.min(OPEN_FILES);
    setrlimit(Resource::RLIMIT_NOFILE, files, files).step(|| "limit open files".into())
}

/// Becomes the sandbox's user without any capability, now or by a later exec.
pub(super) fn drop_all(spec: &SandboxSpec) -> Result<(), StepError> {
    prctl::set_no_new_privs().step(|| "set no_new_privs".into())?;
    kernel::clear_ambient().step(|| "clear the ambient capabilities".into())?;
    drop_bounding().step(|| "clear the capability bounding set".into())?;
    let (uid, gid) = (Uid::from_raw(spec.uid), Gid::from_raw(spec.gid));
    setgroups(&[]).step(|| "leave all groups".into())?;
    setresgid(gid, gid, gid).step(|| format!("become group {gid}"))?;
    setresuid(uid, uid, uid).step(|| format!("become user {uid}"))?;
    kernel::clear_capabilities().step(|| "clear the capabilities".into())
}

fn drop_bounding() -> Result<(), Errno> {
    for capability in 0.. {
        match kernel::drop_bounding(capability) {
            Ok(()) => {}
            Err(Errno::EINVAL) => break, // past the kernel's last one
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}
