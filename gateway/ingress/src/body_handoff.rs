//! Handoff of a large request body: the rest of the connection is withheld from hyper, and the body is moved past it.
//!
//! ```text
//! inactive ─ begin ─▶ active ─ hyper has nothing left ─▶ socket provided ─▶ body read by this process ─▶ connection continues, or closes
//!                                                                      └─▶ given to the model ─────────▶ connection closes
//! ```
//!
//! The service begins the handoff while hyper is still at the request's head. From then on hyper gets not one more byte of the
//! connection. Bytes that it had read beyond the head it yields as the first pieces of the body, and tries to read when it has nothing
//! left: at that moment [`RawBodyHandoff::poll_socket`] returns a descriptor of the connection that is exactly behind those pieces.
//!
//! Invariant: the hyper that read the head never reads again after a handoff has begun, so that no byte of a body can be taken for a
//! request. It writes the response; then a new hyper reads on behind the body's last byte, if exactly the body was read, or the
//! connection closes.

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::net::TcpStream;

/// For a client that sends on after the response and reads it only then: longest silence.
const LINGER_SILENCE: Duration = Duration::from_secs(5);
/// Longest time in all for such a client.
const LINGER: Duration = Duration::from_secs(30);

/// Handoff of one connection, shared by connection, service and request.
#[derive(Debug, Default)]
pub struct RawBodyHandoff {
    active: AtomicBool,
    /// Bytes of the body that have not been read from the connection.
    unread: AtomicU64,
    /// The model has a descriptor of the connection.
    given_to_model: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Descriptor for the task that moves the body.
    socket: Option<io::Result<TcpStream>>,
    /// The descriptor was provided, which happens once.
    is_provided: bool,
    waiting: Option<Waker>,
    /// Descriptor to drain or shut down after hyper has closed.
    after_close: Option<std::net::TcpStream>,
}

impl RawBodyHandoff {
    /// Withholds the rest of the connection from hyper. To be called before hyper reads on behind the head of a request whose body has
    /// this length.
    pub(crate) fn begin(&self, length: u64) {
        self.unread.store(length, Ordering::Relaxed);
        self.active.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_active(&self) -> bool {
        self.active.load(Ordering::Relaxed)
    }

    /// Returns true if exactly the body was read from the connection: the next byte is beyond it.
    pub(crate) fn is_body_read(&self) -> bool {
        self.is_active() && self.unread.load(Ordering::Relaxed) == 0 && !self.given_to_model.load(Ordering::Relaxed)
    }

    /// Provides the connection to the task that moves the body, once: hyper has nothing left of the body.
    pub(crate) fn provide_socket(&self, duplicate: impl FnOnce() -> io::Result<std::net::TcpStream>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if !state.is_provided {
            state.is_provided = true;
            state.socket = Some(duplicate().and_then(TcpStream::from_std));
            if let Some(waiting) = state.waiting.take() {
                waiting.wake();
            }
        }
    }

    /// Keeps a descriptor for [`Self::finish`]; hyper is about to close the connection. A connection that the model has is shut down for
    /// both at once: not one byte that the client sends after the end of its response is for the model.
    pub(crate) fn on_close(&self, duplicate: Option<std::net::TcpStream>) {
        if let Some(stream) = duplicate.as_ref().filter(|_| self.given_to_model.load(Ordering::Relaxed)) {
            let _ = stream.shutdown(std::net::Shutdown::Both); // or it is closed already
        }
        self.state.lock().unwrap_or_else(PoisonError::into_inner).after_close = duplicate;
    }

    /// Returns the connection, behind all that hyper has read. To be polled only when hyper has no piece of the body left.
    pub(crate) fn poll_socket(&self, context: &mut Context<'_>) -> Poll<io::Result<TcpStream>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match state.socket.take() {
            Some(socket) => Poll::Ready(socket),
            None => {
                state.waiting = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }

    /// Notes that so many bytes of the body were read from the connection.
    pub(crate) fn on_read(&self, bytes: u64) {
        self.unread.fetch_sub(bytes.min(self.unread.load(Ordering::Relaxed)), Ordering::Relaxed);
    }

    /// Notes that the model gets the connection, which must not outlive this request.
    ///
    /// # Errors
    /// There are no descriptors left.
    pub(crate) fn give_to_model(&self, socket: &TcpStream) -> io::Result<()> {
        let duplicate = socket.as_fd().try_clone_to_owned()?;
        self.given_to_model.store(true, Ordering::Relaxed);
        self.state.lock().unwrap_or_else(PoisonError::into_inner).after_close = Some(duplicate.into());
        Ok(())
    }

    /// Ends the handoff after hyper has closed. A client that sends its whole body before it reads would lose the response to a reset:
    /// the rest is read and dropped, for a while. A connection that the model has is shut down for both.
    pub(crate) async fn finish(&self) {
        let after_close = self.state.lock().unwrap_or_else(PoisonError::into_inner).after_close.take();
        let Some(stream) = after_close else { return };
        if self.given_to_model.load(Ordering::Relaxed) {
            let _ = stream.shutdown(std::net::Shutdown::Both); // or it is closed already
            return;
        }
        let unread = self.unread.load(Ordering::Relaxed);
        if unread == 0 {
            return;
        }
        if let Ok(stream) = TcpStream::from_std(stream) {
            drain(stream, unread).await;
        }
    }
}

/// Reads and drops so many bytes, or all until the end, for a while.
pub(crate) async fn drain(mut stream: impl AsyncRead + Unpin, mut unread: u64) {
    let mut sink = vec![0; 64 * 1024];
    let _ = tokio::time::timeout(LINGER, async {
        while unread > 0 {
            match tokio::time::timeout(LINGER_SILENCE, stream.read(&mut sink)).await {
                Ok(Ok(count)) if count > 0 => unread = unread.saturating_sub(count as u64),
                Ok(_) | Err(_) => break,
            }
        }
    })
    .await;
}
