//! Control socket, `<runtime-dir>/control/control.sock`: bound, served, and bound again when its file was removed.
//!
//! Operators reach the node only by this file, and any cleaner of `/run` can remove it while the socket still listens.
//!
//! Invariants: only the scheduler that serves the node touches the file; open connections are not affected.

use crate::control::{self, Caller, Control};
use hyper_util::rt::TokioIo;
use hyper_util::server::conn::auto;
use interprocess::os::unix::uds_local_socket::tokio::Listener as LocalListener;
use omni_auth::{Role, peer_credentials};
use omni_dir::PathError;
use std::convert::Infallible;
use std::fs::Permissions;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, watch};

/// Interval of the checks that the file is still there.
pub const CHECK_INTERVAL: Duration = Duration::from_secs(2);
/// Time for the first request of a connection when all are closed: it may be on its way already.
const FIRST_REQUEST: Duration = Duration::from_secs(1);
/// Pause after the kernel has refused a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Binds the socket in place of an existing file, for its owner and group. Their permissions are checked at each connection.
///
/// # Errors
/// A step on the path failed.
pub fn bind(path: &Path) -> Result<UnixListener, PathError> {
    match std::fs::remove_file(path) {
        Ok(()) => {} // left by an earlier scheduler, which has ended: this one has the lock
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(PathError::at("remove", path)(error)),
    }
    let listener = UnixListener::bind(path).map_err(PathError::at("listen on", path))?;
    std::fs::set_permissions(path, Permissions::from_mode(0o660)).map_err(PathError::at("chmod", path))?;
    listener.set_nonblocking(true).map_err(PathError::at("listen on", path))?;
    Ok(listener)
}

/// Identity of a file: device, inode and, since inodes are reused, time of modification.
type FileIdentity = (u64, u64, i64, i64);

/// File of the socket that is served.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    identity: Option<FileIdentity>,
    /// Last error that was logged.
    logged: Option<String>,
}

impl SocketFile {
    /// Watches the file of a socket that listens already.
    #[must_use]
    pub fn new(path: PathBuf) -> Self {
        let identity = identity(&path);
        Self { path, identity, logged: None }
    }

    /// Binds a new socket when the file was removed or replaced, and returns two descriptors of it: to serve, and to hand over. Logs that,
    /// and the same error only once.
    pub fn rebind_if_removed(&mut self) -> Option<[UnixListener; 2]> {
        if self.identity.is_some() && identity(&self.path) == self.identity {
            return None;
        }
        let bound = bind(&self.path).and_then(|listener| {
            let second = listener.try_clone().map_err(PathError::at("listen twice on", &self.path))?;
            Ok([listener, second])
        });
        match bound {
            Ok(listeners) => {
                tracing::warn!(path = %self.path.display(), "the control socket was removed and is bound again");
                *self = Self::new(std::mem::take(&mut self.path));
                Some(listeners)
            }
            Err(error) => {
                let error = omni_log::chain(&error);
                if self.logged.as_ref() != Some(&error) {
                    tracing::error!(error, "the control socket was removed and cannot be bound again");
                    self.logged = Some(error);
                }
                None
            }
        }
    }
}

fn identity(path: &Path) -> Option<FileIdentity> {
    let file = std::fs::symlink_metadata(path).ok()?;
    Some((file.dev(), file.ino(), file.mtime(), file.mtime_nsec()))
}

/// Limit of connections. Readers and writers have separate limits, so that readers cannot lock out those who may change the node.
#[derive(Debug, Clone)]
pub struct ControlConnections {
    limit: u32,
    readers: Arc<Semaphore>,
    writers: Arc<Semaphore>,
    /// Set when connections accept no further requests.
    closing: watch::Sender<bool>,
}

impl ControlConnections {
    /// Makes a limit for readers, and the same for writers.
    #[must_use]
    pub fn new(limit: u32) -> Self {
        let permits = || Arc::new(Semaphore::new(limit as usize));
        Self { limit, readers: permits(), writers: permits(), closing: watch::Sender::new(false) }
    }

    fn permits(&self, role: Option<Role>) -> Arc<Semaphore> {
        match role {
            Some(Role::Write) => Arc::clone(&self.writers),
            Some(Role::Read) | None => Arc::clone(&self.readers),
        }
    }

    /// Closes every connection after the response to its open request. Returns when all are closed.
    pub async fn close(&self) {
        if tokio::time::timeout(FIRST_REQUEST, self.all_closed()).await.is_err() {
            self.closing.send_replace(true);
            self.all_closed().await;
        }
    }

    async fn all_closed(&self) {
        let _ = self.readers.acquire_many(self.limit).await; // returned when the last connection is closed
        let _ = self.writers.acquire_many(self.limit).await;
    }

    async fn is_closing(&self) {
        let _ = self.closing.subscribe().wait_for(|closing| *closing).await;
    }
}

/// Serves the control API until the task is aborted. Connections beyond the limit are closed.
pub async fn serve(listener: UnixListener, connections: ControlConnections, control: Control) {
    use interprocess::local_socket::traits::tokio::Listener as _;
    let listener = match LocalListener::try_from(OwnedFd::from(listener)) {
        Ok(listener) => listener,
        Err(error) => return tracing::error!(%error, "the control socket cannot be served"),
    };
    loop {
        let Ok(stream) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_PAUSE).await; // most likely no descriptors are left
            continue;
        };
        let peer = match peer_credentials(&stream) {
            Ok(peer) => peer,
            Err(error) => {
                tracing::warn!(%error, "the peer of a control connection is unknown: not served");
                continue;
            }
        };
        let caller = Arc::new(Caller { role: control.owners.role(&peer), peer });
        let Ok(permit) = connections.permits(caller.role).try_acquire_owned() else { continue };
        let (control, connections) = (control.clone(), connections.clone());
        tokio::spawn(async move {
            let service = hyper::service::service_fn(move |request| {
                let (control, caller) = (control.clone(), Arc::clone(&caller));
                async move { Ok::<_, Infallible>(control::serve(&control, &caller, request).await) }
            });
            let builder = auto::Builder::new(hyper_util::rt::TokioExecutor::new());
            let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
            tokio::select! {
                _ = connection.as_mut() => return drop(permit),
                () = connections.is_closing() => connection.as_mut().graceful_shutdown(),
            }
            let _ = connection.await;
            drop(permit);
        });
    }
}
