//! Probe of this machine for everything that a node needs: `omni-launcher --probe`, run by `omnictl doctor`.
//!
//! | part | module |
//! | --- | --- |
//! | kernel, user, bounds of the system | [`system`] |
//! | parts of a sandbox, each alone | [`parts`] |
//! | a control group, and a whole sandbox in it | [`group`] |
//! | folders and their disks | [`folders`] |
//! | uv, Python, the GPU's files | [`programs`] |
//!
//! Invariants: things are tried as a start of a model does them; nothing of a running node is touched, and nothing
//! stays, but that controllers of version 2 are passed down from the root as a node passes them.

mod folders;
mod group;
mod parts;
mod programs;
mod system;

use super::Settings;
use nix::unistd::geteuid;
use omni_log::chain;
use omni_machine::{Configuration, Machine, Probe};
use std::error::Error;

/// Why something was not tried.
const ONLY_ROOT: &str = "only root may try it";

/// Looks at everything. The process must have one thread.
#[must_use]
pub fn probe(settings: &Settings, configuration: Configuration) -> Machine {
    let root = geteuid().is_root();
    let (cgroups, sandbox) = group::probe(settings, root);
    Machine {
        kernel: system::kernel(),
        identity: system::identity(),
        configuration,
        cgroups,
        parts: parts::probe(settings, root),
        sandbox,
        limits: system::limits(&settings.config),
        folders: folders::probe(settings),
        uv: programs::uv(settings),
        pythons: programs::pythons(settings),
        gpu: programs::gpu(settings),
    }
}

/// A trial's end, with all its causes.
fn tried<T, E: Error + 'static>(result: Result<T, E>) -> Probe<T> {
    result.map_err(|error| chain(&error)).into()
}

/// The end of a trial that only root may make.
fn as_root<T, E: Error + 'static>(root: bool, trial: impl FnOnce() -> Result<T, E>) -> Probe<T> {
    if root { tried(trial()) } else { Probe::Untried(ONLY_ROOT.to_owned()) }
}
