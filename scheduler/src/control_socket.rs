//! `<runtime-dir>/control.sock`: made, served, and made again when somebody has removed it.
//!
//! [`crate::startup`] makes it, [`crate::serve`] serves it and looks after it. The file is the only way to a node for
//! people, and any cleaner of `/run` can take it away while the socket itself goes on listening to nobody. What always
//! holds: only who serves the node touches the file; a connection that is there is not affected.

use crate::http::control::{self, Caller, Control};
use crate::startup::StartupError;
use hyper_util::rt::TokioIo;
use hyper_util::server::conn::auto;
use interprocess::os::unix::uds_local_socket::tokio::Listener as LocalListener;
use omni_auth::{Role, peer_credentials};
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

/// Its name in the runtime directory.
pub const NAME: &str = "control.sock";
/// Between two looks whether the file is there still.
pub const LOOK: Duration = Duration::from_secs(2);
/// For the first request of a connection to come when all are to end: it may be on its way already.
const FIRST_REQUEST: Duration = Duration::from_secs(1);
/// After the kernel has refused a connection.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// Makes the socket in place of what is there, for its owner and group. What they may do there is asked at each connection.
///
/// # Errors
/// [`StartupError::Path`]
pub fn bind(path: &Path) -> Result<UnixListener, StartupError> {
    let step = |what: &'static str| move |source: io::Error| StartupError::Path { what, path: path.to_owned(), source };
    match std::fs::remove_file(path) {
        Ok(()) => {} // of an earlier scheduler: the lock says that it is gone
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(step("remove")(error)),
    }
    let listener = UnixListener::bind(path).map_err(step("listen on"))?;
    std::fs::set_permissions(path, Permissions::from_mode(0o660)).map_err(step("chmod"))?;
    listener.set_nonblocking(true).map_err(step("listen on"))?;
    Ok(listener)
}

/// What tells one file from another that has got its number since: device, inode, and when it was made.
type Identity = (u64, u64, i64, i64);

/// The file of the socket that is served.
#[derive(Debug)]
pub struct Watched {
    path: PathBuf,
    file: Option<Identity>,
    /// Why it could not be made again, as it was said.
    said: Option<String>,
}

impl Watched {
    /// Of a socket that listens already.
    #[must_use]
    pub fn new(path: PathBuf) -> Self {
        let file = identity(&path);
        Self { path, file, said: None }
    }

    /// A new socket, twice, when the file is not the one that was there: to serve, and to hand on. Says in the log what
    /// happened, and a failure once.
    pub fn mend(&mut self) -> Option<[UnixListener; 2]> {
        if self.file.is_some() && identity(&self.path) == self.file {
            return None;
        }
        let made = bind(&self.path).and_then(|listener| match listener.try_clone() {
            Ok(also) => Ok([listener, also]),
            Err(source) => Err(StartupError::Path { what: "listen twice on", path: self.path.clone(), source }),
        });
        match made {
            Ok(listeners) => {
                tracing::warn!(path = %self.path.display(), "somebody removed the control socket: it is made again");
                *self = Self::new(std::mem::take(&mut self.path));
                Some(listeners)
            }
            Err(error) => {
                let error = omni_log::chain(&error);
                if self.said.as_ref() != Some(&error) {
                    tracing::error!(error, "somebody removed the control socket, and it cannot be made again");
                    self.said = Some(error);
                }
                None
            }
        }
    }
}

fn identity(path: &Path) -> Option<Identity> {
    let file = std::fs::symlink_metadata(path).ok()?;
    Some((file.dev(), file.ino(), file.mtime(), file.mtime_nsec()))
}

/// Connections at a time: who may only look cannot take the places of who may do something about it.
#[derive(Debug, Clone)]
pub struct Room {
    each: u32,
    read: Arc<Semaphore>,
    write: Arc<Semaphore>,
    /// Set when nothing more is to be asked.
    closing: watch::Sender<bool>,
}

impl Room {
    /// For so many of each.
    #[must_use]
    pub fn new(each: u32) -> Self {
        let places = || Arc::new(Semaphore::new(each as usize));
        Self { each, read: places(), write: places(), closing: watch::Sender::new(false) }
    }

    fn of(&self, role: Option<Role>) -> Arc<Semaphore> {
        match role {
            Some(Role::Write) => Arc::clone(&self.write),
            Some(Role::Read) | None => Arc::clone(&self.read),
        }
    }

    /// Has every connection end with the answer to what it has asked by then. Returns when there is none any more.
    pub async fn close(&self) {
        if tokio::time::timeout(FIRST_REQUEST, self.emptied()).await.is_err() {
            self.closing.send_replace(true);
            self.emptied().await;
        }
    }

    async fn emptied(&self) {
        let _ = self.read.acquire_many(self.each).await; // given back with the last connection
        let _ = self.write.acquire_many(self.each).await;
    }

    async fn is_closing(&self) {
        let _ = self.closing.subscribe().wait_for(|closing| *closing).await;
    }
}

/// Serves the control API until it is aborted. A connection for which there is no room is closed.
pub async fn serve(listener: UnixListener, room: Room, control: Control) {
    use interprocess::local_socket::traits::tokio::Listener as _;
    let listener = match LocalListener::try_from(OwnedFd::from(listener)) {
        Ok(listener) => listener,
        Err(error) => return tracing::error!(%error, "the control socket cannot be served"),
    };
    loop {
        let Ok(stream) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_AGAIN).await; // no descriptors left, most likely
            continue;
        };
        let peer = match peer_credentials(&stream) {
            Ok(peer) => peer,
            Err(error) => {
                tracing::warn!(%error, "who is at the control socket cannot be found out: not served");
                continue;
            }
        };
        let caller = Arc::new(Caller { role: control.owners.role(&peer), peer });
        let Ok(permit) = room.of(caller.role).try_acquire_owned() else { continue };
        let (control, room) = (control.clone(), room.clone());
        tokio::spawn(async move {
            let service = hyper::service::service_fn(move |request| {
                let (control, caller) = (control.clone(), Arc::clone(&caller));
                async move { Ok::<_, Infallible>(control::serve(&control, &caller, request).await) }
            });
            let builder = auto::Builder::new(hyper_util::rt::TokioExecutor::new());
            let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
            tokio::select! {
                _ = connection.as_mut() => return drop(permit),
                () = room.is_closing() => connection.as_mut().graceful_shutdown(),
            }
            let _ = connection.await;
            drop(permit);
        });
    }
}
