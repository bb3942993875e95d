//! Parts of a sandbox, each alone.

use super::{ONLY_ROOT, as_root, tried};
use crate::Settings;
use nix::unistd::mkdtemp;
use omni_machine::{Parts, Probe};
use omni_sandbox::trial;
use std::fs;
use std::path::Path;

pub(super) fn probe(settings: &Settings, root: bool) -> Parts {
    let namespaces = |(name, result)| {
        let untried = Probe::Untried(ONLY_ROOT.to_owned());
        (String::from(name), if root { tried(result) } else { untried })
    };
    Parts {
        child: tried(trial::clone_child()),
        namespaces: trial::namespaces().into_iter().map(namespaces).collect(),
        mounts: as_root(root, trial::mounts),
        meminfo: as_root(root, || omni_meminfo_fs::prepare().map(drop)),
        cache: if root { cache(settings).into() } else { Probe::Untried(ONLY_ROOT.to_owned()) },
        seccomp: tried(trial::seccomp()),
        landlock: match trial::landlock() {
            Ok(Some(version)) => Probe::Works(version),
            Ok(None) => Probe::Fails("this kernel has none, or it is switched off".to_owned()),
            Err(error) => Probe::Untried(error.chain()),
        },
    }
}

/// In the node's own cache folder where there is one: not every file system can hold such an image.
fn cache(settings: &Settings) -> Result<(), String> {
    let own = settings.caches();
    let place = if own.is_dir() { own } else { std::env::temp_dir() };
    let dir =
        mkdtemp(&place.join(".probe-XXXXXX")).map_err(|errno| format!("write into {}: {errno}", place.display()))?;
    let made = trial::cache(&dir, settings.source_uid()).map_err(|error| error.chain());
    let removed = remove(&dir);
    made.and(removed)
}

fn remove(dir: &Path) -> Result<(), String> {
    fs::remove_dir_all(dir).map_err(|error| format!("remove {}: {error}", dir.display()))
}
