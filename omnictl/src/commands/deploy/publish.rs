//! Publishes a directory in the models folder: copies it beside its place under a hidden name, and puts it there by one
//! rename.
//!
//! Invariants: the node sees the old content or the new one, never a part; only content of a model is overwritten; the
//! rest of an interrupted deploy is removed by the next one of the same model, and only one runs at a time. Other users
//! with write access to the folder can exchange any name in it for a link at any moment: everything is read, written
//! and removed beneath descriptors and through no link, and nothing outside is reached.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use nix::errno::Errno;
use nix::fcntl::{AtFlags, Flock, FlockArg, OFlag, RenameFlags, renameat2};
use nix::libc;
use nix::sys::stat::{FileStat, Mode, fchmod, fstat, fstatat, mkdirat};
use nix::unistd::{Uid, fsync};
use omni_config::node::Snapshots;
use omni_config::{MODEL_FILES, ModelName};
use omni_snapshot::beneath::{names, open_beneath, remove};
use omni_snapshot::{Limits, SnapshotError, copy_directory, flush};

use crate::failure::Failure;
use crate::output::note;

const DIRECTORY: OFlag = OFlag::O_RDONLY.union(OFlag::O_DIRECTORY);
const MODE: Mode = Mode::from_bits_truncate(0o755);

/// Where a model is in a node's models folder.
pub(super) struct Place {
    models: PathBuf,
    model: ModelName,
}

impl Place {
    pub(super) fn new(models: PathBuf, model: &ModelName) -> Self {
        Self { model: model.clone(), models }
    }

    /// Drafts of this model begin like this; the node does not look at hidden names.
    fn prefix(&self) -> String {
        format!(".{}.", self.model.as_file_name())
    }

    fn target(&self) -> PathBuf {
        self.models.join(self.model.as_str())
    }

    fn refuse(&self, reason: String) -> Failure {
        Failure::NotPublished { model: self.model.clone(), reason }
    }

    /// Refuses to write where something else is.
    fn check(&self, models: &File, dir: &Path) -> Result<(), Failure> {
        let path = fs::canonicalize(&self.models).map_err(at("find", &self.models))?;
        let target = path.join(self.model.as_str());
        if dir.starts_with(&target) || path.starts_with(dir) {
            let (dir, target) = (dir.display(), target.display());
            return Err(
                self.refuse(format!("{dir} and {target} are within one another: the node serves what is there"))
            );
        }
        let below = Path::new(self.model.as_str());
        let mut above = below.ancestors().skip(1).filter(|above| !above.as_os_str().is_empty());
        if let Some(outer) = above.find(|above| is_model(models, above)) {
            let outer = self.models.join(outer);
            return Err(self.refuse(format!("it would be within {}, which is a model itself", outer.display())));
        }
        let (target, place) = (self.target(), self.target());
        let place = place.display();
        let found = match open_beneath(models, below, DIRECTORY) {
            Err(Errno::ENOENT) => return Ok(()),
            Err(Errno::ENOTDIR | Errno::ELOOP) => {
                return Err(self.refuse(format!("{place} is no directory: remove it")));
            }
            found => found.map_err(at_errno("look at", &target))?,
        };
        let names = names(&found).map_err(at_errno("read", &target))?;
        let known = |name: &OsStr| MODEL_FILES.iter().any(|file| name == *file);
        if !names.is_empty() && !names.iter().any(|(name, _)| known(name)) {
            return Err(self.refuse(format!("{place} is there and no model: move it away")));
        }
        if let Some(hidden) = hidden(&found).map_err(at_errno("read", &target))? {
            let hidden = target.join(hidden);
            let hidden = hidden.display();
            let reason = format!("{hidden} is no part of a model: {place} is somebody's working copy, move it away");
            return Err(self.refuse(reason));
        }
        Ok(())
    }

    /// Removes what interrupted deploys left.
    fn clean(&self, models: &File) -> Result<(), Failure> {
        let prefix = self.prefix();
        for (name, _) in names(models).map_err(at_errno("read", &self.models))? {
            if !name.to_string_lossy().starts_with(&prefix) {
                continue;
            }
            let path = self.models.join(&name);
            let draft = open_beneath(models, Path::new(&name), DIRECTORY);
            let draft = match draft {
                Ok(draft) => draft,
                Err(Errno::ENOENT) => continue,
                // A link or a file: nothing that a deploy left, and nothing that is followed.
                Err(Errno::ENOTDIR | Errno::ELOOP) => {
                    return Err(self.refuse(format!("{} is no directory: remove it", path.display())));
                }
                Err(errno) => return Err(at_errno("open", &path)(errno)),
            };
            match lock(draft) {
                Ok(_lock) => remove(models, &name).or_else(gone).map_err(at_errno("remove", &path))?,
                Err(Errno::EWOULDBLOCK) => {
                    return Err(self.refuse("another `omnictl deploy` of it is under way".to_owned()));
                }
                Err(errno) => return Err(at_errno("lock", &path)(errno)),
            }
        }
        Ok(())
    }

    /// The directory that the model's is in, made where it is missing.
    fn parent(&self, models: &File) -> Result<OwnedFd, Failure> {
        let mut path = PathBuf::new();
        let mut dir = models.try_clone().map(OwnedFd::from).map_err(at("open", &self.models))?;
        for part in Path::new(self.model.as_str()).parent().unwrap_or(Path::new("")) {
            path.push(part);
            let shown = self.models.join(&path);
            match mkdirat(&dir, part, MODE) {
                Ok(()) | Err(Errno::EEXIST) => {}
                Err(errno) => return Err(at_errno("create", &shown)(errno)),
            }
            dir = open_beneath(&dir, Path::new(part), DIRECTORY).map_err(at_errno("open", &shown))?;
        }
        Ok(dir)
    }
}

/// A copy in the making; what is at its name goes with it.
struct Draft<'a> {
    models: &'a File,
    name: OsString,
    dir: Flock<File>,
}

impl<'a> Draft<'a> {
    fn make(place: &Place, models: &'a File) -> Result<Self, Failure> {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let unique = format!("{:x}-{:x}", std::process::id(), since_epoch.as_nanos());
        let name = OsString::from(format!("{}{unique}", place.prefix()));
        let path = place.models.join(&name);
        mkdirat(models, name.as_os_str(), MODE).map_err(at_errno("create", &path))?;
        let dir = open_beneath(models, Path::new(&name), DIRECTORY).map_err(at_errno("open", &path))?;
        let found = fstat(&dir).map_err(at_errno("look at", &path))?;
        if found.st_uid != Uid::effective().as_raw() || !names(&dir).map_err(at_errno("read", &path))?.is_empty() {
            let models = place.models.display();
            return Err(place.refuse(format!("somebody else exchanged the directory that was just made in {models}")));
        }
        // Readable by the node's models, whatever the caller's umask is.
        fchmod(&dir, MODE).map_err(at_errno("create", &path))?;
        let dir = lock(dir).map_err(at_errno("lock", &path))?;
        Ok(Self { models, name, dir })
    }
}

impl Drop for Draft<'_> {
    fn drop(&mut self) {
        if let Err(error) = remove(self.models, &self.name).or_else(gone) {
            note(format_args!("{} is left in the models folder: {error}", self.name.display()));
        }
    }
}

/// Copies the directory and puts the copy in its place; the version that it is.
pub(super) fn publish(dir: &Path, place: &Place, bounds: &Snapshots) -> Result<String, Failure> {
    let models = open_dir(&place.models).map_err(at("find", &place.models))?;
    place.check(&models, dir)?;
    place.clean(&models)?;
    let draft = Draft::make(place, &models)?;
    let from = open_dir(dir).map_err(at("read", dir))?;
    let limits = Limits { files: bounds.files, bytes: bounds.bytes.bytes() };
    let version = copy_directory(&from, draft.dir.as_fd(), limits).map_err(|error| not_copied(place, error))?;
    flush(draft.dir.as_fd()).map_err(at("write", &place.models.join(&draft.name)))?;
    let target = place.target();
    let name = target.file_name().unwrap_or_default();
    let parent = place.parent(&models)?;
    put(&draft, &parent, name).map_err(|errno| match errno {
        Errno::EINVAL => {
            let models = place.models.display();
            place.refuse(format!("the file system of {models} cannot exchange directories"))
        }
        errno => at_errno("publish", &target)(errno),
    })?;
    let put = fstat(draft.dir.as_fd()).and_then(|draft| Ok(same(&draft, &look(&parent, name)?)));
    if !put.map_err(at_errno("look at", &target))? {
        let models = place.models.display();
        return Err(place.refuse(format!("somebody else exchanged its copy in {models}: who may write there?")));
    }
    fsync(&parent).map_err(at_errno("write", &target))?;
    Ok(version.to_string())
}

/// Exchanges the draft with the published directory in one step.
fn put(draft: &Draft<'_>, parent: &OwnedFd, name: &OsStr) -> Result<(), Errno> {
    let rename = |flags| renameat2(draft.models, draft.name.as_os_str(), parent, name, flags);
    match rename(RenameFlags::RENAME_EXCHANGE) {
        Err(Errno::ENOENT) => rename(RenameFlags::RENAME_NOREPLACE),
        result => result,
    }
}

fn same(a: &FileStat, b: &FileStat) -> bool {
    (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino)
}

fn look(dir: impl AsFd, name: &OsStr) -> Result<FileStat, Errno> {
    fstatat(dir, name, AtFlags::AT_SYMLINK_NOFOLLOW)
}

fn is_model(models: &File, dir: &Path) -> bool {
    let found = open_beneath(models, dir, DIRECTORY);
    found.is_ok_and(|dir| MODEL_FILES.iter().any(|name| look(&dir, OsStr::new(name)).is_ok()))
}

/// A hidden file below a model's directory: nothing that `deploy` wrote.
fn hidden(dir: &OwnedFd) -> Result<Option<PathBuf>, Errno> {
    let mut waiting = vec![PathBuf::new()];
    while let Some(below) = waiting.pop() {
        for (name, is_dir) in names(open_beneath(dir, &below, DIRECTORY)?)? {
            let path = below.join(&name);
            if name.as_encoded_bytes().starts_with(b".") {
                return Ok(Some(path));
            }
            if is_dir {
                waiting.push(path);
            }
        }
    }
    Ok(None)
}

fn open_dir(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_DIRECTORY).open(path)
}

/// Locks a directory; `EWOULDBLOCK` when another process holds the lock.
fn lock(dir: OwnedFd) -> Result<Flock<File>, Errno> {
    Flock::lock(File::from(dir), FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| errno)
}

fn gone(errno: Errno) -> Result<(), Errno> {
    if errno == Errno::ENOENT { Ok(()) } else { Err(errno) }
}

fn at(verb: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Failure {
    let path = path.to_owned();
    move |source| Failure::File { verb, path, source }
}

fn at_errno(verb: &'static str, path: &Path) -> impl FnOnce(Errno) -> Failure {
    let at = at(verb, path);
    move |errno| at(errno.into())
}

fn not_copied(place: &Place, error: SnapshotError) -> Failure {
    match error {
        // The store of these errors is the models folder here.
        SnapshotError::Store { action, path, source } => Failure::File { verb: action, path, source },
        error => place.refuse(match std::error::Error::source(&error) {
            Some(source) => format!("{error}: {source}"),
            None => error.to_string(),
        }),
    }
}
