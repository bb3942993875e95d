//! Landlock: a second wall behind the mounts, and the wall around abstract sockets and signals.
//!
//! Called by [`super::child`] after the pivot. Uses what the running kernel has (5.13 to today); on a kernel without
//! Landlock the start goes on with a note: mounts, user and namespaces do not depend on it.

use super::step::{Step, StepError};
use crate::spec::SandboxSpec;
use landlock::{
    ABI, Access, AccessFs, BitFlags, LandlockStatus, PathBeneath, PathFd, Ruleset, RulesetAttr, RulesetCreated,
    RulesetCreatedAttr, Scope,
};
use omni_gpu_protocol::env::inside;
use std::path::Path;

/// The newest rules that this policy has been written for; older kernels take the part they know.
const KNOWN: ABI = ABI::V6;

/// Restricts this process and all that come from it; `gpu` when there is a `/gpu`. The kernel's version of Landlock;
/// `None` when it has none, or has it switched off.
pub(super) fn restrict(spec: &SandboxSpec, gpu: bool) -> Result<Option<i32>, StepError> {
    let step = || "restrict with Landlock".to_owned();
    let read = AccessFs::from_read(KNOWN);
    let all = AccessFs::from_all(KNOWN);
    let device = read | AccessFs::WriteFile | AccessFs::Truncate | AccessFs::IoctlDev;
    let mut rules = Ruleset::default()
        .handle_access(all)
        .and_then(|rules| rules.scope(Scope::from_all(KNOWN)))
        .and_then(Ruleset::create)
        .step(step)?;
    rules = allow(rules, Path::new("/"), read)?;
    rules = allow(rules, Path::new("/dev"), device)?;
    for path in ["/dev/shm", "/tmp"].map(Path::new) {
        rules = allow(rules, path, all)?;
    }
    if !spec.devices.is_empty() {
        // Names of threads, which the driver opens to truncate: the mounts leave a process no more than its own files there.
        rules = allow(rules, Path::new("/proc"), AccessFs::WriteFile | AccessFs::Truncate)?;
    }
    if spec.cache.is_some() {
        rules = allow(rules, Path::new("/cache"), all)?;
    }
    if gpu {
        // Not Truncate: only a hostile model would need it.
        rules = allow(rules, Path::new(inside::ACCOUNT), AccessFs::ReadFile | AccessFs::WriteFile)?;
    }
    for bind in spec.binds.iter().filter(|bind| bind.writable) {
        rules = allow(rules, &bind.target, all)?;
    }
    Ok(version_of(rules.restrict_self().step(step)?.landlock))
}

/// Restricts this process and all that come from it to nothing, and says with which version of Landlock; `None` when the
/// kernel has none, or has it switched off.
pub(super) fn version() -> Option<i32> {
    let rules = Ruleset::default().handle_access(AccessFs::from_all(KNOWN)).and_then(Ruleset::create).ok()?;
    version_of(rules.restrict_self().ok()?.landlock)
}

fn version_of(status: LandlockStatus) -> Option<i32> {
    match status {
        LandlockStatus::Available { effective_abi, kernel_abi } => Some(kernel_abi.unwrap_or(effective_abi as i32)),
        LandlockStatus::NotEnabled | LandlockStatus::NotImplemented => None,
    }
}

fn allow(rules: RulesetCreated, path: &Path, access: BitFlags<AccessFs>) -> Result<RulesetCreated, StepError> {
    let step = || format!("allow {} in Landlock", path.display());
    let fd = PathFd::new(path).step(step)?;
    rules.add_rule(PathBeneath::new(fd, access)).step(step)
}
