//! Server of a connection, and its end in every case.
//!
//! Runs in the worker, outside of the model's mount namespace: a server inside would keep the namespace alive and never
//! see it end. Life of a [`Server`]: it serves until the last mount is gone (the model died: the loop ends by itself)
//! or until it is aborted; then its threads end and every reader has an answer or an error.
//!
//! fuser runs its loop on a thread that it makes itself, and waits for it on the caller's: two threads here, one of
//! them asleep for good. Its request buffers of 16 MiB are touched by a page or two, unless the kernel backs them with
//! a huge page (`transparent_hugepage=always`): a process that counts its memory sets `PR_SET_THP_DISABLE`.

use std::any::Any;
use std::io;
use std::mem;
use std::os::fd::OwnedFd;
use std::thread::{Builder, JoinHandle};

use fuser::{Config, Session, SessionACL};

use crate::filesystem::Files;
use crate::groups::Groups;
use crate::mount::{Abort, Connection};
use crate::sample::SampleError;

/// Stack of the thread that only waits for fuser's.
const STACK_BYTES: usize = 64 * 1024;

/// Served file system. Dropping it aborts the connection and waits for its threads.
#[derive(Debug)]
#[must_use = "dropping the server ends the files"]
pub struct Server {
    abort: Abort,
    thread: Option<JoinHandle<io::Result<()>>>,
}

impl Connection {
    /// Starts to serve the views of these groups. The kernel's first request is already waiting, so this does not block
    /// on the mount being attached; an earlier reader waits for this call.
    ///
    /// # Errors
    /// When the numbers cannot be read (tried once, so that a group without a limit is found here and not by the
    /// model), the kernel's handshake fails, or no thread can be made. The connection is then closed: readers get
    /// `ENOTCONN`.
    pub fn serve(self, groups: Groups) -> Result<Server, ServeError> {
        let (fuse, abort) = self.into_parts();
        groups.own().check()?;
        let session = handshake(fuse, groups).map_err(ServeError::Handshake)?;
        let thread = Builder::new()
            .name("proc-files".into())
            .stack_size(STACK_BYTES)
            .spawn(move || session.run())
            .map_err(ServeError::Thread)?;
        Ok(Server { abort, thread: Some(thread) })
    }
}

fn handshake(fuse: OwnedFd, groups: Groups) -> io::Result<Session<Files>> {
    // The kernel decides about access (`default_permissions`, modes 0444 and 0555).
    Session::from_fd(Files::new(groups), fuse, SessionACL::All, Config::default())
}

impl Server {
    /// Ends the connection at once: readers that wait get `ECONNABORTED`, also killed ones, and later ones `ENOTCONN`.
    /// Repeating it does nothing.
    ///
    /// # Errors
    /// When the kernel refuses the abort.
    pub fn abort(&self) -> io::Result<()> {
        self.abort.abort()
    }

    /// The loop has ended: the connection was aborted, or the last mount is gone.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Waits until the last mount is gone or the connection is aborted.
    ///
    /// # Errors
    /// When the loop ended for another reason.
    pub fn join(mut self) -> Result<(), JoinError> {
        self.wait()
    }

    fn wait(&mut self) -> Result<(), JoinError> {
        match mem::take(&mut self.thread).map(JoinHandle::join) {
            None | Some(Ok(Ok(()))) => Ok(()),
            Some(Ok(Err(error))) => Err(JoinError::Loop(error)),
            Some(Err(panic)) => Err(JoinError::Panicked(text_of(&*panic))),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Without the abort the threads would not end, so there is nothing to wait for.
        if self.abort().is_ok() {
            let _ = self.wait();
        }
    }
}

fn text_of(panic: &(dyn Any + Send)) -> String {
    match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
        (Some(text), _) => (*text).to_owned(),
        (None, Some(text)) => text.clone(),
        (None, None) => "no message".to_owned(),
    }
}

/// Reason why a connection is not served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The numbers of the group cannot be read.
    #[error("there are no numbers of the group to show")]
    Sample(#[from] SampleError),
    /// The kernel and fuser did not agree, or the file system was unmounted.
    #[error("the FUSE handshake with the kernel failed")]
    Handshake(#[source] io::Error),
    /// The thread could not be made.
    #[error("cannot start the thread that serves the files of /proc")]
    Thread(#[source] io::Error),
}

/// Reason why a server ended other than by an unmount or an abort.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// A request could not be read from the kernel.
    #[error("the loop that serves the files of /proc failed")]
    Loop(#[source] io::Error),
    /// A defect of the server.
    #[error("the thread that serves the files of /proc panicked: {0}")]
    Panicked(String),
}
