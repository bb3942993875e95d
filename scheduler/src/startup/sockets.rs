//! Listening sockets: bound here, or inherited from the service manager or a predecessor.

use super::StartupError;
use nix::sys::socket::Backlog;
use omni_config::node::NodeConfig;
use omni_takeover::Listeners;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixListener;

/// Binds the configured addresses, and the control socket with `control`. Sockets of the service manager are used instead, if there are any.
pub(super) fn bind_or_inherit(
    config: &NodeConfig,
    lock: File,
    control: impl FnOnce() -> Result<UnixListener, StartupError>,
) -> Result<Listeners, StartupError> {
    let mut inherited = inherited_sockets();
    let mut tcp = |name: &str, address: SocketAddr| match inherited.remove(name) {
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
pub(super) fn inherited_or_new(
    name: &str,
    inherited: TcpListener,
    configured: SocketAddr,
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
fn warn_if_ignored(name: &str, listener: &TcpListener, address: SocketAddr) {
    if let Ok(given) = listener.local_addr()
        && given != address
    {
        tracing::warn!(%given, configured = %address, "the service manager's socket `{name}` is used, the configured address is not");
    }
}

fn listen(address: SocketAddr) -> Result<TcpListener, StartupError> {
    let bound = tcp_listener(address).and_then(|listener| listener.set_nonblocking(true).map(|()| listener));
    bound.map_err(|source| StartupError::Listen { address, source })
}

/// Listens with the longest queue: clients arrive in bursts, and beyond the standard library's queue of 128 the kernel drops the first
/// packet of a connection, whose client then waits for seconds.
fn tcp_listener(address: SocketAddr) -> io::Result<TcpListener> {
    let listener = TcpListener::bind(address)?;
    nix::sys::socket::listen(&listener, Backlog::MAXCONN)?;
    Ok(listener)
}

/// Sockets from the service manager, by name.
#[allow(unsafe_code, reason = "descriptors of LISTEN_FDS have no owner yet")]
fn inherited_sockets() -> HashMap<String, OwnedFd> {
    let Ok(fds) = sd_notify::listen_fds_with_names() else { return HashMap::new() };
    fds.map(|(fd, name): (RawFd, String)| {
        // SAFETY: the service manager opened these descriptors for this process and nothing else here uses them;
        // `listen_fds_with_names` checks that LISTEN_PID is this process.
        (name, unsafe { OwnedFd::from_raw_fd(fd) })
    })
    .collect()
}
