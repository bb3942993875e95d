//! Before the runtime starts: directories, the launcher, listening sockets, and dropping privileges.
//!
//! Started as root (by hand), this makes the directories, binds the sockets, starts the launcher if none runs, and
//! becomes the node's user for good. Started unprivileged (by systemd), all that was done by others. What always holds: the
//! launcher, which stays when this process ends, is started last, when nothing is found wrong.

use crate::args::Directories;
use crate::control_socket;
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

/// The flag that tells a scheduler that it succeeds another one.
const SUCCEED: &str = "--succeed";

/// The daemon could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum StartupError {
    /// A step on a path failed.
    #[error("cannot {what} {}", path.display())]
    Path {
        /// The step.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// An address cannot be bound.
    #[error("cannot listen on {address}")]
    Listen {
        /// Which.
        address: std::net::SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// Another scheduler runs.
    #[error("another omni-scheduler serves {}: stop it first, or use another --runtime-dir", .0.display())]
    AlreadyRunning(PathBuf),
    /// The node's user is not known to this machine.
    #[error(transparent)]
    NoUser(#[from] NoUser),
    /// Privileges cannot be dropped.
    #[error("cannot become user {uid}")]
    Drop {
        /// Which.
        uid: u32,
        /// Why.
        source: io::Error,
    },
    /// The runtime directory cannot be entered by the node's user.
    #[error("user {uid} cannot enter {}: a directory above it is closed to others; use another --runtime-dir", path.display())]
    Closed {
        /// Which.
        path: PathBuf,
        /// Who.
        uid: u32,
    },
    /// A launcher runs that is of no use to this scheduler.
    #[error("the launcher that runs was started for {serves}, and does not end: kill process {pid}; its models go on")]
    OtherLauncher {
        /// Its process.
        pid: i32,
        /// Its arguments.
        serves: String,
    },
    /// A listening socket handed over by the service manager is not what its name says.
    #[error("the socket `{name}` from the service manager cannot be used")]
    Inherited {
        /// Its name.
        name: String,
        /// Why.
        source: io::Error,
    },
}

/// Everything that listens.
#[derive(Debug)]
pub struct Listeners {
    /// Requests.
    pub data: TcpListener,
    /// Health, metrics, capacity.
    pub admin: TcpListener,
    /// The control API.
    pub control: UnixListener,
    /// Held while this scheduler runs: one scheduler for each runtime directory.
    pub lock: File,
}

/// The most instances that a node has: as many as user ids for them.
pub const MOST_INSTANCES: usize = 4096;

impl Listeners {
    /// The same sockets and the same lock again.
    ///
    /// # Errors
    /// There are no descriptors left.
    pub fn try_clone(&self) -> io::Result<Self> {
        let (data, admin) = (self.data.try_clone()?, self.admin.try_clone()?);
        Ok(Self { data, admin, control: self.control.try_clone()?, lock: self.lock.try_clone()? })
    }
}

/// Makes all of it, and drops privileges. `handed`: what an earlier scheduler hands over, which has done that. `read`: what
/// the node's user reads, as that user, who reads it again at the next reload.
///
/// # Errors
/// See [`StartupError`], and what `read` says.
pub fn set_up<T, E: From<StartupError>>(
    config: &NodeConfig,
    directories: &Directories,
    config_file: Option<&Path>,
    handed: Option<Listeners>,
    read: impl FnOnce() -> Result<T, E>,
) -> Result<(Listeners, T), E> {
    if let Some(Listeners { data, admin, control, lock }) = handed {
        // All the rest was done by the scheduler that hands over. What is wrong is to be found while that one still serves.
        let data = kept("data", data, config.server.listen)?;
        let admin = kept("admin", admin, config.server.admin_listen)?;
        can_write(&directories.own_state(), 0o700)?;
        can_write(&directories.own_runtime(), 0o755)?;
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
        // Made by the launcher or the service manager, but for a node without either.
        can_write(&directories.own_runtime(), 0o755)?;
    }
    // In the folder of that user root would follow what the user has put there.
    let own = directories.own_runtime();
    let begin = || -> Result<_, E> {
        can_enter(&own, uid)?;
        let read = read()?;
        Ok((read, lock(&own, &directories.runtime)?))
    };
    let (read, lock) = if root { as_user(uid, gid, begin)?? } else { begin()? };
    raise_descriptor_limit();
    let bind = || control_socket::bind(&own.join(control_socket::NAME));
    let listeners = listeners(config, lock, || if root { as_user(uid, gid, bind)? } else { bind() })?;
    if root {
        start_launcher(directories, config_file, uid)?;
        drop_privileges(uid, gid)?;
    }
    Ok((listeners, read))
}

fn at(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StartupError {
    let path = path.to_owned();
    move |source| StartupError::Path { what, path, source }
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
    let path = own.join("scheduler.lock");
    // In a folder of the scheduler's user, who may have left anything there: a FIFO would hold up the start.
    let flags = (OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW).bits();
    let options = File::options().create(true).truncate(false).write(true).custom_flags(flags).clone();
    let file = options.open(&path).map_err(at("open", &path))?;
    if !file.metadata().map_err(at("look at", &path))?.is_file() {
        return Err(at("open", &path)(io::Error::other("it is no regular file: remove it")));
    }
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(std::fs::TryLockError::WouldBlock) => Err(StartupError::AlreadyRunning(runtime.to_owned())),
        Err(std::fs::TryLockError::Error(error)) => Err(at("lock", &path)(error)),
    }
}

/// Ten thousand connections need as many descriptors; the soft limit is usually 1,024.
fn raise_descriptor_limit() {
    if let Ok((_, hard)) = getrlimit(Resource::RLIMIT_NOFILE)
        && let Err(error) = setrlimit(Resource::RLIMIT_NOFILE, hard, hard)
    {
        tracing::warn!(%error, "the limit of open files stays as it is");
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
            compare(name, &listener, address);
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

/// A listener of the scheduler before, unless another address is wanted by now. One of the service manager's stays: it
/// would go on taking connections that nobody accepts.
fn kept(name: &str, handed: TcpListener, wanted: std::net::SocketAddr) -> Result<TcpListener, StartupError> {
    // Successors have it from the first scheduler, whom the service manager meant.
    let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
    if names.split(':').any(|given| given == name) {
        compare(name, &handed, wanted);
        return Ok(handed);
    }
    let is_it = wanted.port() == 0 || handed.local_addr().is_ok_and(|address| address == wanted);
    if is_it { Ok(handed) } else { listen(wanted) }
}

fn compare(name: &str, listener: &TcpListener, address: std::net::SocketAddr) {
    if let Ok(given) = listener.local_addr()
        && given != address
    {
        tracing::warn!(%given, configured = %address, "the service manager's socket `{name}` is used, the configured address is not");
    }
}

/// A folder of this process's own, made if it is not there.
fn can_write(folder: &Path, mode: u32) -> Result<(), StartupError> {
    DirBuilder::new().recursive(true).mode(mode).create(folder).map_err(at("create", folder))?;
    faccessat(AT_FDCWD, folder, AccessFlags::W_OK | AccessFlags::X_OK, AtFlags::AT_EACCESS)
        .map_err(|errno| at("write into", folder)(errno.into()))
}

fn listen(address: std::net::SocketAddr) -> Result<TcpListener, StartupError> {
    let bound = tcp_listener(address).and_then(|listener| listener.set_nonblocking(true).map(|()| listener));
    bound.map_err(|source| StartupError::Listen { address, source })
}

/// Clients come in crowds: with the standard library's queue of 128 the kernel drops the first packets of the rest, and
/// each of those waits for seconds.
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

/// Starts the launcher unless one listens already, which outlives its scheduler. One that was started by hand for other
/// folders is replaced: what it runs goes on, and is this scheduler's to end.
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
        if running.keeps(&wanted) {
            return Ok(());
        }
        running.end(&wanted)?;
    }
    // A service manager that is told of readiness wants this process's, which comes later.
    command.env_remove("NOTIFY_SOCKET");
    // The keeper detaches itself from this process's session; it says what it has to say on our standard error.
    command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().map_err(at("start", &program))?;
    Ok(())
}

/// Starts a scheduler that succeeds this one, with the same command line; it hears of it on its standard input.
///
/// # Errors
/// [`StartupError::Path`]
pub fn start_successor(program: &Path) -> Result<(OwnedFd, Child), StartupError> {
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
    let pair = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC);
    let (ours, theirs) = pair.map_err(|errno| at("make a socket for", program)(errno.into()))?;
    let mut command = Command::new(program);
    let arguments = std::env::args_os().skip(1).filter(|argument| argument != SUCCEED);
    command.args(arguments).arg(SUCCEED).stdin(Stdio::from(theirs)).stdout(Stdio::null());
    // It names this process; without it the service manager's watchdog is for whoever reads the rest.
    command.env_remove("WATCHDOG_PID");
    let child = command.spawn().map_err(at("start", program))?;
    Ok((ours, child))
}

/// Does something with the rights of the node's user, and is root again. No other thread runs yet.
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

/// For good: real, effective and saved ids, no supplementary groups; the kernel clears all capabilities with the uid.
fn drop_privileges(uid: Uid, gid: Gid) -> Result<(), StartupError> {
    let steps = setgroups(&[]).and_then(|()| setgid(gid)).and_then(|()| setuid(uid));
    steps.map_err(|errno| StartupError::Drop { uid: uid.as_raw(), source: errno.into() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::stat::Mode;

    #[test]
    fn a_lock_that_is_no_regular_file_is_refused_and_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("scheduler.lock");
        nix::unistd::mkfifo(&path, Mode::S_IRWXU).unwrap();
        let other_end = File::options().read(true).write(true).open(&path).unwrap();
        assert!(lock(dir.path(), dir.path()).unwrap_err().to_string().contains("scheduler.lock"));
        drop(other_end);
        assert!(lock(dir.path(), dir.path()).is_err(), "nobody is at its other end");
        std::fs::remove_file(&path).unwrap();
        let held = lock(dir.path(), dir.path()).unwrap();
        assert!(matches!(lock(dir.path(), dir.path()), Err(StartupError::AlreadyRunning(_))));
        drop(held);
    }
}
