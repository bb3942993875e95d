//! Set-up before the runtime starts: directories, listening sockets, the launcher, and the drop of privileges.
//!
//! Started as root (by hand), the scheduler makes the directories, binds the sockets, starts the launcher if none runs, and becomes the
//! node's user for good. Started unprivileged (by systemd), it finds all of that done.
//!
//! Invariant: the launcher, which outlives this process, is started last, after everything else has succeeded.

use crate::args::Directories;
use crate::control_socket;
use crate::paths::{CONTROL_SOCKET, LOCK_FILE, PathError};
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::socket::Backlog;
use nix::unistd::{
    AccessFlags, Gid, Uid, faccessat, getegid, geteuid, getgroups, setegid, seteuid, setgid, setgroups, setuid,
};
use omni_config::Models;
use omni_config::node::{NoUser, NodeConfig, NodeUser};
use omni_dir::Dir;
use running::RunningLauncher;
use std::fs::{DirBuilder, File};
use std::io;
use std::net::TcpListener;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

mod running;

/// Flag of a scheduler that is the successor of a running one.
const SUCCEED: &str = "--succeed";

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

/// Listening sockets.
#[derive(Debug)]
pub struct Listeners {
    /// Data listener.
    pub data: TcpListener,
    /// Admin listener: health, metrics, capacity.
    pub admin: TcpListener,
    /// Control socket.
    pub control: UnixListener,
    /// Lock of the runtime directory, which at most one scheduler has.
    pub lock: File,
}

/// Largest number of instances of a node, which is the number of user ids for them.
pub const MAX_INSTANCES: usize = 4096;

impl Listeners {
    /// Duplicates the descriptors of sockets and lock.
    ///
    /// # Errors
    /// There are no descriptors left.
    pub fn try_clone(&self) -> io::Result<Self> {
        let (data, admin) = (self.data.try_clone()?, self.admin.try_clone()?);
        Ok(Self { data, admin, control: self.control.try_clone()?, lock: self.lock.try_clone()? })
    }
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
    // With the rights of that user: root would follow links that the user has put into the folder.
    let own = directories.own_runtime();
    let begin = || -> Result<_, E> {
        can_enter(&own, uid)?;
        let read = read()?;
        Ok((read, lock(&own, &directories.runtime)?))
    };
    let (read, lock) = if root { as_user(uid, gid, begin)?? } else { begin()? };
    raise_descriptor_limit();
    let bind = || control_socket::bind(&own.join(CONTROL_SOCKET)).map_err(StartupError::from);
    let listeners = listeners(config, lock, || if root { as_user(uid, gid, bind)? } else { bind() })?;
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

fn listeners(
    config: &NodeConfig,
    lock: File,
    control: impl FnOnce() -> Result<UnixListener, StartupError>,
) -> Result<Listeners, StartupError> {
    let mut inherited = inherited_sockets();
    let mut tcp = |name: &str, address: std::net::SocketAddr| match inherited.remove(name) {
        Some(fd) => {
            let listener = TcpListener::from(fd);
            warn_if_ignored(name, &listener, address);
            Ok(listener)
        }
        None => listen(address),
    };
    let data = tcp("data", config.server.listen)?;
    let admin = tcp("admin", config.server.admin_listen)?;
    let control = inherited.remove("control").map_or_else(control, |fd| Ok(UnixListener::from(fd)))?;
    for (name, result) in [
        ("data", data.set_nonblocking(true)),
        ("admin", admin.set_nonblocking(true)),
        ("control", control.set_nonblocking(true)),
    ] {
        result.map_err(|source| StartupError::Inherited { name: name.to_owned(), source })?;
    }
    Ok(Listeners { data, admin, control, lock })
}

/// The listener of the predecessor, or a new one if the configured address has changed. A socket of the service manager is kept: closed
/// here, it would still queue connections, which nothing accepts.
fn inherited_or_new(
    name: &str,
    inherited: TcpListener,
    configured: std::net::SocketAddr,
) -> Result<TcpListener, StartupError> {
    // The variable was set for the first scheduler, and its successors inherit it.
    let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
    if names.split(':').any(|given| given == name) {
        warn_if_ignored(name, &inherited, configured);
        return Ok(inherited);
    }
    let is_same = configured.port() == 0 || inherited.local_addr().is_ok_and(|address| address == configured);
    if is_same { Ok(inherited) } else { listen(configured) }
}

/// Warns when a socket of the service manager has another address than the configured one.
fn warn_if_ignored(name: &str, listener: &TcpListener, address: std::net::SocketAddr) {
    if let Ok(given) = listener.local_addr()
        && given != address
    {
        tracing::warn!(%given, configured = %address, "the service manager's socket `{name}` is used, the configured address is not");
    }
}

/// Makes a folder if it does not exist, and checks that this process can write into it.
fn writable_folder(folder: &Path, mode: u32) -> Result<(), StartupError> {
    DirBuilder::new().recursive(true).mode(mode).create(folder).map_err(at("create", folder))?;
    faccessat(AT_FDCWD, folder, AccessFlags::W_OK | AccessFlags::X_OK, AtFlags::AT_EACCESS)
        .map_err(|errno| at("write into", folder)(errno.into()))
}

fn listen(address: std::net::SocketAddr) -> Result<TcpListener, StartupError> {
    let bound = tcp_listener(address).and_then(|listener| listener.set_nonblocking(true).map(|()| listener));
    bound.map_err(|source| StartupError::Listen { address, source })
}

/// Listens with the longest queue: clients arrive in bursts, and beyond the standard library's queue of 128 the kernel drops the first
/// packet of a connection, whose client then waits for seconds.
fn tcp_listener(address: std::net::SocketAddr) -> io::Result<TcpListener> {
    let listener = TcpListener::bind(address)?;
    nix::sys::socket::listen(&listener, Backlog::MAXCONN)?;
    Ok(listener)
}

/// Sockets from the service manager, by name.
#[allow(unsafe_code, reason = "descriptors of LISTEN_FDS have no owner yet")]
fn inherited_sockets() -> std::collections::HashMap<String, OwnedFd> {
    let Ok(fds) = sd_notify::listen_fds_with_names() else { return std::collections::HashMap::new() };
    fds.map(|(fd, name): (RawFd, String)| {
        // SAFETY: the service manager opened these descriptors for this process and nothing else here uses them;
        // `listen_fds_with_names` checks that LISTEN_PID is this process.
        (name, unsafe { OwnedFd::from_raw_fd(fd) })
    })
    .collect()
}

/// Starts the launcher unless one listens already: launchers outlive their scheduler. A launcher that was started by hand for other folders
/// is replaced: its instances keep running, until this scheduler ends them.
fn start_launcher(directories: &Directories, config_file: Option<&Path>, uid: Uid) -> Result<(), StartupError> {
    let own = std::env::current_exe().map_err(at("find", Path::new("/proc/self/exe")))?;
    let program = own.with_file_name("omni-launcher");
    let mut command = Command::new(&program);
    command.arg("--keep").arg("--scheduler-uid").arg(uid.to_string());
    if let Some(file) = config_file {
        command.arg("--config").arg(std::path::absolute(file).map_err(at("resolve", file))?);
    }
    let models = match &directories.models {
        Models::Folder(folder) => ("--models", folder),
        Models::Single(single) => ("--model", &single.dir),
    };
    let flags = [
        models,
        ("--state-dir", &directories.state),
        ("--cache-dir", &directories.cache),
        ("--runtime-dir", &directories.runtime),
    ];
    for (flag, path) in flags {
        command.arg(flag).arg(path);
    }
    if let Some(running) = RunningLauncher::find(&directories.runtime.join("launcher.sock")) {
        let wanted: Vec<_> = command.get_args().map(ToOwned::to_owned).collect();
        if running.was_started_with(&wanted) {
            return Ok(());
        }
        running.end(&wanted)?;
    }
    // Readiness is notified by this process, later.
    command.env_remove("NOTIFY_SOCKET");
    // The keeper detaches itself from this process's session; it logs to the same standard error.
    command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().map_err(at("start", &program))?;
    Ok(())
}

/// Starts a successor of this scheduler with the same command line, and a socket as its standard input.
///
/// # Errors
/// The program cannot be started.
pub fn start_successor(program: &Path) -> Result<(OwnedFd, Child), PathError> {
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
    let pair = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC);
    let (ours, theirs) = pair.map_err(|errno| PathError::at("make a socket for", program)(errno.into()))?;
    let mut command = Command::new(program);
    let arguments = std::env::args_os().skip(1).filter(|argument| argument != SUCCEED);
    command.args(arguments).arg(SUCCEED).stdin(Stdio::from(theirs)).stdout(Stdio::null());
    // The variable names this process. Without it, the service manager's watchdog watches the successor.
    command.env_remove("WATCHDOG_PID");
    let child = command.spawn().map_err(PathError::at("start", program))?;
    Ok((ours, child))
}

/// Runs `act` with the rights of the node's user, then becomes root again. Changes the whole process: no other thread runs yet.
fn as_user<T>(uid: Uid, gid: Gid, act: impl FnOnce() -> T) -> Result<T, StartupError> {
    let refused = |errno: Errno| StartupError::Drop { uid: uid.as_raw(), source: errno.into() };
    let (own_uid, own_gid, own_groups) = (geteuid(), getegid(), getgroups().map_err(refused)?);
    setgroups(&[]).and_then(|()| setegid(gid)).and_then(|()| seteuid(uid)).map_err(refused)?;
    let done = act();
    seteuid(own_uid).and_then(|()| setegid(own_gid)).and_then(|()| setgroups(&own_groups)).map_err(refused)?;
    Ok(done)
}

fn can_enter(runtime: &Path, uid: Uid) -> Result<(), StartupError> {
    faccessat(AT_FDCWD, runtime, AccessFlags::X_OK, AtFlags::AT_EACCESS)
        .map_err(|_| StartupError::Closed { path: runtime.to_owned(), uid: uid.as_raw() })
}

/// Drops privileges for good: real, effective and saved ids, supplementary groups; the kernel clears all capabilities with the uid.
fn drop_privileges(uid: Uid, gid: Gid) -> Result<(), StartupError> {
    let steps = setgroups(&[]).and_then(|()| setgid(gid)).and_then(|()| setuid(uid));
    steps.map_err(|errno| StartupError::Drop { uid: uid.as_raw(), source: errno.into() })
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
