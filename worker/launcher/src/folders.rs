//! Folders of the launcher, made before anything is done in them.
//!
//! Invariants: root writes nothing where the scheduler's user could exchange a folder for another one.

use super::error::{LauncherError, at};
use super::runtime_dir::SOCKET_DIR_MAX;
use super::settings::Settings;
use nix::unistd::{Uid, User};
use omni_config::{Models, SingleModel};
use omni_dir::way::{self, Changeable};
use omni_dir::{Dir, runtime};
use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Folder of the scheduler below the state folder.
const SCHEDULER: &str = "scheduler";

/// Makes the folders, and makes their paths absolute and free of links: they are seen by others in other places.
pub(super) fn prepared(settings: Settings) -> Result<(Settings, Dir), LauncherError> {
    let uid = settings.scheduler_uid;
    let runtime = runtime::make(&settings.runtime_dir, uid, None).map_err(|error| match error.downcast() {
        Ok(found) => LauncherError::Changeable { what: "--runtime-dir", found },
        Err(error) => at("use", &settings.runtime_dir)(error),
    })?;
    let runtime_dir = runtime.path().to_owned();
    if runtime_dir.as_os_str().len() > SOCKET_DIR_MAX {
        return Err(LauncherError::LongPath { path: runtime_dir });
    }
    let (state_dir, cache_dir) = (made(&settings.state_dir, 0o755)?, made(&settings.cache_dir, 0o755)?);
    for (what, dir) in [("--runtime-dir", &runtime_dir), ("--state-dir", &state_dir), ("--cache-dir", &cache_dir)] {
        check(what, dir, uid)?;
    }
    made(&cache_dir.join("models"), 0o700)?;
    let path = std::path::absolute(settings.models.path()).map_err(at("find", settings.models.path()))?;
    let models = match settings.models {
        Models::Folder(_) => Models::Folder(path),
        Models::Single(single) => Models::Single(SingleModel { dir: path, ..single }),
    };
    Ok((Settings { state_dir, cache_dir, runtime_dir, models, ..settings }, runtime))
}

fn made(path: &Path, mode: u32) -> Result<PathBuf, LauncherError> {
    fs::DirBuilder::new().recursive(true).mode(mode).create(path).map_err(at("make", path))?;
    fs::canonicalize(path).map_err(at("find", path))
}

/// Refuses a folder that the scheduler's user could exchange, as a whole or one of those in it. A folder of another
/// user is accepted, with a warning: that user may have started the node.
fn check(what: &'static str, dir: &Path, uid: u32) -> Result<(), LauncherError> {
    let gid = User::from_uid(Uid::from_raw(uid)).ok().flatten().map_or(uid, |user| user.gid.as_raw());
    match way::changeable(dir, uid, gid).map_err(at("look at", dir))? {
        Some(found) if found.by_user => return Err(LauncherError::Changeable { what, found }),
        Some(found) => tracing::warn!(folder = what, "{found}"),
        None => {}
    }
    for entry in fs::read_dir(dir).map_err(at("list", dir))?.flatten() {
        let own = [SCHEDULER, runtime::CONTROL].iter().any(|own| entry.file_name() == *own);
        let owner = entry.metadata().map_or(0, |found| if found.is_dir() { found.uid() } else { 0 });
        if uid != 0 && owner == uid && !own {
            let found = Changeable { path: entry.path(), owner, by_user: true };
            return Err(LauncherError::Changeable { what, found });
        }
    }
    Ok(())
}
