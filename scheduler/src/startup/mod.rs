//! Set-up before the runtime starts: directories, listening sockets, the launcher, and the drop of privileges.
//!
//! Started as root (by hand), the scheduler makes the directories, binds the sockets, starts the launcher if none runs, and becomes the
//! node's user for good. Started unprivileged (by systemd), it finds all of that done.
//!
//! Invariant: the launcher, which outlives this process, is started last, after everything else has succeeded.

mod privileges;
mod programs;
mod running;
mod sockets;

use crate::args::Directories;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::unistd::{AccessFlags, Gid, Uid, faccessat};
use omni_admin::control_socket;
use omni_config::node::{NoUser, NodeConfig, NodeUser};
use omni_dir::Dir;
use omni_dir::PathError;
use omni_dir::runtime::{CONTROL_SOCKET, LOCK_FILE};
use omni_takeover::Listeners;
use privileges::{as_user, drop_privileges};
use programs::start_launcher;
use sockets::{bind_or_inherit, inherited_or_new};
use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Failure of the set-up.
#[derive(Debug, thiserror::Error)]
pub enum StartupError {
    /// Failed step on a path.
    #[error(transparent)]
    Path(#[from] PathError),
    /// Address that cannot be bound.
    #[error("cannot listen on {address}")]
    Listen {
        /// The address.
        address: std::net::SocketAddr,
        /// Cause.
        source: io::Error,
    },
    /// Another scheduler is running.
    #[error("another omni-scheduler serves {}: stop it first, or use another --runtime-dir", .0.display())]
    AlreadyRunning(PathBuf),
    /// Unknown user of the node.
    #[error(transparent)]
    NoUser(#[from] NoUser),
    /// Failed drop of privileges.
    #[error("cannot become user {uid}")]
    Drop {
        /// The user.
        uid: u32,
        /// Cause.
        source: io::Error,
    },
    /// Runtime directory that the node's user cannot enter.
    #[error("user {uid} cannot enter {}: a directory above it is closed to others; use another --runtime-dir", path.display())]
    Closed {
        /// The directory.
        path: PathBuf,
        /// The user.
        uid: u32,
    },
    /// Running launcher that serves other folders and does not end.
    #[error(
        "the running launcher was started for {serves} and does not end: kill process {pid}; its models keep running"
    )]
    OtherLauncher {
        /// Process of the launcher.
        pid: i32,
        /// Arguments of the launcher.
        serves: String,
    },
    /// Socket of the service manager that cannot be used.
    #[error("the socket `{name}` from the service manager cannot be used")]
    Inherited {
        /// Name of the socket.
        name: String,
        /// Cause.
        source: io::Error,
    },
}

/// Sets up directories, sockets and launcher, and drops privileges. `handed_over`: sockets of a predecessor, which has done the rest.
/// `read`: reads files with the rights of the node's user, which a reload has, too.
///
/// # Errors
/// A step failed, or `read`.
pub fn set_up<T, E: From<StartupError>>(
    config: &NodeConfig,
    directories: &Directories,
    config_file: Option<&Path>,
    handed_over: Option<Listeners>,
    read: impl FnOnce() -> Result<T, E>,
) -> Result<(Listeners, T), E> {
    if let Some(Listeners { data, admin, control, lock }) = handed_over {
        // Errors have to be found while the predecessor still serves.
        let data = inherited_or_new("data", data, config.server.listen)?;
        let admin = inherited_or_new("admin", admin, config.server.admin_listen)?;
        writable_folder(&directories.own_state(), 0o700)?;
        writable_folder(&directories.own_runtime(), 0o755)?;
        return Ok((Listeners { data, admin, control, lock }, read()?));
    }
    let root = Uid::effective().is_root();
    let (uid, gid) = if root {
        let (uid, gid) = NodeUser::ids(config.node.user.as_ref()).map_err(StartupError::from)?;
        (Uid::from_raw(uid), Gid::from_raw(gid))
    } else {
        (Uid::current(), Gid::current())
    };
    if root {
        make_directories(directories, uid, gid)?;
    } else {
        // Made by the launcher or the service manager, except on a node with neither.
        writable_folder(&directories.own_runtime(), 0o755)?;
    }
    // With the rights of the node's user: root would follow links that the user has put into the folder.
    let own = directories.own_runtime();
    let begin = || -> Result<_, E> {
        can_enter(&own, uid)?;
        let read = read()?;
        Ok((read, lock(&own, &directories.runtime)?))
    };
    let (read, lock) = if root { as_user(uid, gid, begin)?? } else { begin()? };
    raise_descriptor_limit();
    let bind = || control_socket::bind(&own.join(CONTROL_SOCKET)).map_err(StartupError::from);
    let listeners = bind_or_inherit(config, lock, || if root { as_user(uid, gid, bind)? } else { bind() })?;
    if root {
        start_launcher(directories, config_file, uid)?;
        drop_privileges(uid, gid)?;
    }
    Ok((listeners, read))
}

fn at(step: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StartupError {
    let wrap = PathError::at(step, path);
    move |source| wrap(source).into()
}

fn make_directories(directories: &Directories, uid: Uid, gid: Gid) -> Result<(), StartupError> {
    for path in [&directories.state, &directories.cache] {
        DirBuilder::new().recursive(true).mode(0o755).create(path).map_err(at("create", path))?;
    }
    let state = std::fs::canonicalize(&directories.state).map_err(at("find", &directories.state))?;
    let own_state = Dir::open(&state).and_then(|state| state.subdirectory("scheduler", 0o700));
    own_state
        .and_then(|own| own.belong_to(uid.as_raw(), Some(gid.as_raw()), 0o700))
        .map_err(at("create", &directories.own_state()))?;
    let made = omni_dir::runtime::make(&directories.runtime, uid.as_raw(), Some(gid.as_raw()));
    made.map(drop).map_err(at("use", &directories.runtime))
}

fn lock(own: &Path, runtime: &Path) -> Result<File, StartupError> {
    let path = own.join(LOCK_FILE);
    // The folder belongs to the scheduler's user, and may contain anything: a FIFO would block the start.
    let flags = (OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW).bits();
    let options = File::options().create(true).truncate(false).write(true).custom_flags(flags).clone();
    let file = options.open(&path).map_err(at("open", &path))?;
    if !file.metadata().map_err(at("inspect", &path))?.is_file() {
        return Err(at("open", &path)(io::Error::other("not a regular file: remove it")));
    }
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(std::fs::TryLockError::WouldBlock) => Err(StartupError::AlreadyRunning(runtime.to_owned())),
        Err(std::fs::TryLockError::Error(error)) => Err(at("lock", &path)(error)),
    }
}

/// Raises the soft limit of open files, which is usually 1,024: ten thousand connections need as many descriptors.
fn raise_descriptor_limit() {
    if let Ok((_, hard)) = getrlimit(Resource::RLIMIT_NOFILE)
        && let Err(error) = setrlimit(Resource::RLIMIT_NOFILE, hard, hard)
    {
        tracing::warn!(%error, "cannot raise the limit of open files");
    }
}

/// Makes a folder if it does not exist, and checks that this process can write into it.
fn writable_folder(folder: &Path, mode: u32) -> Result<(), StartupError> {
    DirBuilder::new().recursive(true).mode(mode).create(folder).map_err(at("create", folder))?;
    faccessat(AT_FDCWD, folder, AccessFlags::W_OK | AccessFlags::X_OK, AtFlags::AT_EACCESS)
        .map_err(|errno| at("write into", folder)(errno.into()))
}

fn can_enter(runtime: &Path, uid: Uid) -> Result<(), StartupError> {
    faccessat(AT_FDCWD, runtime, AccessFlags::X_OK, AtFlags::AT_EACCESS)
        .map_err(|_| StartupError::Closed { path: runtime.to_owned(), uid: uid.as_raw() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::stat::Mode;

    #[test]
    fn a_lock_that_is_not_a_regular_file_is_refused_without_blocking() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("scheduler.lock");
        nix::unistd::mkfifo(&path, Mode::S_IRWXU).unwrap();
        let other_end = File::options().read(true).write(true).open(&path).unwrap();
        assert!(lock(dir.path(), dir.path()).unwrap_err().to_string().contains("scheduler.lock"));
        drop(other_end);
        assert!(lock(dir.path(), dir.path()).is_err(), "a FIFO without a reader");
        std::fs::remove_file(&path).unwrap();
        let locked = lock(dir.path(), dir.path()).unwrap();
        assert!(matches!(lock(dir.path(), dir.path()), Err(StartupError::AlreadyRunning(_))));
        drop(locked);
    }
}
