//! A directory takes its place in the models folder: copied beside it under a hidden name, put there by one rename.
//!
//! What always holds: the node sees the old content or the new one, never a part; nothing that is no model's content is
//! written over; what an interrupted deploy left is removed by the next one of the same model, and only one runs at a
//! time.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, Flock, FlockArg, RenameFlags, renameat2};
use nix::libc;
use omni_config::ModelName;
use omni_config::node::Snapshots;
use omni_snapshot::{Limits, SnapshotError, copy_directory, flush};

use crate::failure::Failure;
use crate::output::note;

/// Where a model is in a node's models folder.
pub(super) struct Place {
    models: PathBuf,
    model: ModelName,
    target: PathBuf,
}

impl Place {
    pub(super) fn new(models: PathBuf, model: &ModelName) -> Self {
        Self { target: models.join(model.as_str()), model: model.clone(), models }
    }

    /// Drafts of this model begin like this; the node does not look at hidden names.
    fn prefix(&self) -> String {
        format!(".{}.", self.model.as_file_name())
    }

    fn refuse(&self, reason: String) -> Failure {
        Failure::NotPublished { model: self.model.clone(), reason }
    }

    /// Refuses to write where something else is.
    fn check(&self, dir: &Path) -> Result<(), Failure> {
        let models = fs::canonicalize(&self.models).map_err(at("find", &self.models))?;
        let target = models.join(self.model.as_str());
        if dir.starts_with(&target) || models.starts_with(dir) {
            let (dir, target) = (dir.display(), target.display());
            return Err(
                self.refuse(format!("{dir} and {target} are within one another: the node serves what is there"))
            );
        }
        let above = self.target.ancestors().skip(1).take_while(|above| *above != self.models);
        if let Some(outer) = above.into_iter().find(|above| above.join("model.py").exists()) {
            return Err(self.refuse(format!("it would be within {}, which is a model itself", outer.display())));
        }
        let found = match fs::symlink_metadata(&self.target) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            found => found.map_err(at("look at", &self.target))?,
        };
        let place = self.target.display();
        if !found.is_dir() {
            return Err(self.refuse(format!("{place} is no directory: remove it")));
        }
        if !self.target.join("model.py").exists()
            && fs::read_dir(&self.target).map_err(at("read", &self.target))?.next().is_some()
        {
            return Err(self.refuse(format!("{place} is there and no model: move it away")));
        }
        if let Some(hidden) = hidden(&self.target).map_err(at("read", &self.target))? {
            let hidden = hidden.display();
            let reason = format!("{hidden} is no part of a model: {place} is somebody's working copy, move it away");
            return Err(self.refuse(reason));
        }
        Ok(())
    }

    /// Removes what interrupted deploys left.
    fn clean(&self) -> Result<(), Failure> {
        let prefix = self.prefix();
        for entry in fs::read_dir(&self.models).map_err(at("read", &self.models))? {
            let entry = entry.map_err(at("read", &self.models))?;
            if !entry.file_name().to_string_lossy().starts_with(&prefix) {
                continue;
            }
            let path = entry.path();
            match lock(&path) {
                Ok(_lock) => fs::remove_dir_all(&path).or_else(gone).map_err(at("remove", &path))?,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Err(self.refuse("another `omnictl deploy` of it is under way".to_owned()));
                }
                Err(error) => return Err(at("lock", &path)(error)),
            }
        }
        Ok(())
    }
}

/// A copy in the making; what is at its path goes with it.
struct Draft {
    path: PathBuf,
    _lock: Flock<File>,
}

impl Draft {
    fn make(place: &Place) -> Result<Self, Failure> {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let unique = format!("{:x}-{:x}", std::process::id(), since_epoch.as_nanos());
        let path = place.models.join(format!("{}{unique}", place.prefix()));
        fs::create_dir(&path).map_err(at("create", &path))?;
        // Whatever the caller's umask is, the node's models can read it.
        fs::set_permissions(&path, Permissions::from_mode(0o755)).map_err(at("create", &path))?;
        let lock = lock(&path).map_err(at("lock", &path))?;
        Ok(Self { path, _lock: lock })
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.path).or_else(gone) {
            note(format_args!("{} is left: {error}", self.path.display()));
        }
    }
}

/// Copies the directory and puts the copy in its place; the version that it is.
pub(super) fn publish(dir: &Path, place: &Place, bounds: &Snapshots) -> Result<String, Failure> {
    place.check(dir)?;
    place.clean()?;
    let draft = Draft::make(place)?;
    let from = open_dir(dir).map_err(at("read", dir))?;
    let limits = Limits { files: bounds.files, bytes: bounds.bytes.bytes() };
    let version = copy_directory(&from, &draft.path, limits).map_err(|error| not_copied(place, error))?;
    flush(&draft.path).map_err(at("write", &draft.path))?;
    let target = &place.target;
    let parent = target.parent().unwrap_or(&place.models);
    DirBuilder::new().recursive(true).mode(0o755).create(parent).map_err(at("create", parent))?;
    put(&draft.path, target).map_err(|errno| match errno {
        Errno::EINVAL => place.refuse(format!("the file system of {} cannot exchange directories", parent.display())),
        errno => at("publish", target)(errno.into()),
    })?;
    File::open(parent).and_then(|parent| parent.sync_all()).map_err(at("write", parent))?;
    Ok(version.to_string())
}

/// One step for whoever looks: the draft is there, and what was there is the draft.
fn put(draft: &Path, target: &Path) -> Result<(), Errno> {
    let rename = |flags| renameat2(AT_FDCWD, draft, AT_FDCWD, target, flags);
    match rename(RenameFlags::RENAME_EXCHANGE) {
        Err(Errno::ENOENT) => rename(RenameFlags::RENAME_NOREPLACE),
        result => result,
    }
}

/// A hidden file below a model's directory: nothing that `deploy` wrote.
fn hidden(dir: &Path) -> io::Result<Option<PathBuf>> {
    let mut waiting = vec![dir.to_owned()];
    while let Some(dir) = waiting.pop() {
        for entry in fs::read_dir(&dir)? {
            let entry = entry?;
            if entry.file_name().as_encoded_bytes().starts_with(b".") {
                return Ok(Some(entry.path()));
            }
            if entry.file_type()?.is_dir() {
                waiting.push(entry.path());
            }
        }
    }
    Ok(None)
}

fn open_dir(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_DIRECTORY).open(path)
}

/// Locks a directory; `WouldBlock` when somebody has it.
fn lock(path: &Path) -> io::Result<Flock<File>> {
    Flock::lock(open_dir(path)?, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| errno.into())
}

fn gone(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) }
}

fn at(verb: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Failure {
    let path = path.to_owned();
    move |source| Failure::File { verb, path, source }
}

fn not_copied(place: &Place, error: SnapshotError) -> Failure {
    match error {
        // The store of these words is the models folder here.
        SnapshotError::Store { action, path, source } => Failure::File { verb: action, path, source },
        error => place.refuse(match std::error::Error::source(&error) {
            Some(source) => format!("{error}: {source}"),
            None => error.to_string(),
        }),
    }
}
