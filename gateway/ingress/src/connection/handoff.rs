//! A client's connection that is held: from then on its bytes are for somebody else than hyper.
//!
//! Every connection has one ([`super::connection`]); [`super::upload`] uses it to move a large body past hyper. The listener
//! calls [`Hold::hold`] while hyper is still at the request's head. From then on hyper gets not one more byte of this
//! connection. What it had read beyond the head it gives as the body's first pieces, and asks for more when it has nothing
//! left: at that moment whoever waits in [`Hold::poll_socket`] gets a descriptor of the connection that stands exactly
//! behind those pieces. What always holds: one that was once held is never read again by the hyper that read the head, so that no
//! byte of a body can be taken for a request. It answers; then a new one reads on behind the body's last byte, if exactly the
//! body was taken, or the connection closes.

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::net::TcpStream;

/// For a client that sends on after its answer, and reads only then: longest silence, and longest time in all.
const LINGER: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(30));

/// Whether a connection is held, and what becomes of it. Shared by connection, service and request.
#[derive(Debug, Default)]
pub struct Hold {
    held: AtomicBool,
    /// Bytes of the body that nobody has taken from the connection.
    unread: AtomicU64,
    /// The model has the connection.
    handed: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    socket: Option<io::Result<TcpStream>>,
    /// It was put there, once for all.
    given: bool,
    waiting: Option<Waker>,
    /// For what is to be done after hyper has closed.
    closing: Option<std::net::TcpStream>,
}

impl Hold {
    /// Keeps the rest of the connection from hyper. To be called before hyper reads on behind the head of a request whose
    /// body has this length.
    pub fn hold(&self, length: u64) {
        self.unread.store(length, Ordering::Relaxed);
        self.held.store(true, Ordering::Relaxed);
    }

    /// Whether it is held.
    pub fn is_held(&self) -> bool {
        self.held.load(Ordering::Relaxed)
    }

    /// Whether exactly the body was taken from the connection: the next byte is not the body's.
    pub(crate) fn is_read(&self) -> bool {
        self.is_held() && self.unread.load(Ordering::Relaxed) == 0 && !self.handed.load(Ordering::Relaxed)
    }

    /// Hyper has nothing left: who waits gets the connection, once.
    pub(crate) fn give(&self, duplicate: impl FnOnce() -> io::Result<std::net::TcpStream>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if !state.given {
            state.given = true;
            state.socket = Some(duplicate().and_then(TcpStream::from_std));
            if let Some(waiting) = state.waiting.take() {
                waiting.wake();
            }
        }
    }

    /// Hyper is about to close it; this is for what is to be done then. One that a model has is shut for both at once: of what
    /// the client sends when it sees its answer's end, not one byte is the model's.
    pub(crate) fn closing(&self, duplicate: Option<std::net::TcpStream>) {
        if let Some(stream) = duplicate.as_ref().filter(|_| self.handed.load(Ordering::Relaxed)) {
            let _ = stream.shutdown(std::net::Shutdown::Both); // closed already is as well
        }
        self.state.lock().unwrap_or_else(PoisonError::into_inner).closing = duplicate;
    }

    /// The connection, behind all that hyper has read. Only when no piece of the body is left at hyper.
    pub fn poll_socket(&self, context: &mut Context<'_>) -> Poll<io::Result<TcpStream>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match state.socket.take() {
            Some(socket) => Poll::Ready(socket),
            None => {
                state.waiting = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }

    /// So many bytes of the body have left the connection.
    pub fn took(&self, bytes: u64) {
        self.unread.fetch_sub(bytes.min(self.unread.load(Ordering::Relaxed)), Ordering::Relaxed);
    }

    /// The model gets the connection, which must not outlive this request.
    ///
    /// # Errors
    /// There are no descriptors left.
    pub fn hand_over(&self, socket: &TcpStream) -> io::Result<()> {
        let duplicate = socket.as_fd().try_clone_to_owned()?;
        self.handed.store(true, Ordering::Relaxed);
        self.state.lock().unwrap_or_else(PoisonError::into_inner).closing = Some(duplicate.into());
        Ok(())
    }

    /// After hyper's end of a held connection. A client that sends its whole body before it reads would lose its answer to
    /// a reset: the rest is read and dropped, for a while. A connection that a model has is shut for both.
    pub async fn close(&self) {
        let closing = self.state.lock().unwrap_or_else(PoisonError::into_inner).closing.take();
        let Some(stream) = closing else { return };
        if self.handed.load(Ordering::Relaxed) {
            let _ = stream.shutdown(std::net::Shutdown::Both); // closed already is as well
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
    let (silence, whole) = LINGER;
    let _ = tokio::time::timeout(whole, async {
        while unread > 0 {
            match tokio::time::timeout(silence, stream.read(&mut sink)).await {
                Ok(Ok(count)) if count > 0 => unread = unread.saturating_sub(count as u64),
                Ok(_) | Err(_) => break,
            }
        }
    })
    .await;
}
