//! State of one client's connection, shared by its parts: the socket below hyper, the service above it, and the task that polls it.
//!
//! The parts belong to one task, so relaxed atomics are enough; locks are never contended.

use super::deadlines::ReadDeadlines;
use super::stream::ClientStream;
use crate::body_handoff::RawBodyHandoff;
use crate::check::OpenHeads;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Context, Waker};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::Instant;

/// The beginning of every HTTP/2 connection, as far as it differs from a request of HTTP/1.1.
const PREFACE: &[u8] = b"PRI";
/// Bytes that are read of an HTTP/2 connection in one turn, before the requests in them are served: until then the memory of their
/// heads is not counted.
const READ_PER_TURN: usize = 32 * 1024;

/// State of a connection.
#[derive(Debug, Default)]
pub(super) struct ConnectionState {
    pub(super) requests: Requests,
    pub(super) io: SocketActivity,
    pub(super) deadlines: ReadDeadlines,
    pub(super) end: End,
    /// Transfer of a large body past hyper. The connection ends with the response that is due once that has begun, unless exactly the
    /// body was read.
    pub(super) handoff: Arc<RawBodyHandoff>,
    /// Heads of the open requests over HTTP/2.
    pub(super) heads: Arc<OpenHeads>,
    /// The task that polls the connection, while the handoff is active.
    waker: Mutex<Option<Waker>>,
}

/// Requests of a connection.
#[derive(Debug, Default)]
pub(super) struct Requests {
    /// At least one request has come.
    begun: AtomicBool,
    /// Requests whose responses are not complete.
    open: AtomicUsize,
    /// End of the last open request, over HTTP/2.
    last_end: Mutex<Option<Instant>>,
}

/// Reads and writes of hyper on the socket, and the version of HTTP by the first bytes.
#[derive(Debug, Default)]
pub(super) struct SocketActivity {
    /// Bytes were read since the last write.
    read_since_write: AtomicBool,
    /// Hyper has tried to read after the last write, and there was nothing.
    waits_for_input: AtomicBool,
    /// Length of the part of [`PREFACE`] that the connection began with.
    preface: AtomicUsize,
    /// The beginning is not that of HTTP/2.
    is_http1: AtomicBool,
    /// Bytes that may still be read in this turn, over HTTP/2.
    read_allowance: AtomicUsize,
}

/// How the connection is to end.
#[derive(Debug, Default)]
pub(super) struct End {
    /// Cut: what the kernel has not sent yet is dropped.
    is_cut: AtomicBool,
    /// The successor that gets the socket when hyper drops it.
    successor: OnceLock<mpsc::Sender<TcpStream>>,
    /// Closed after the next response, which says so.
    after_next_response: AtomicBool,
    /// Hyper may close the connection with a part of a body unread, outside the handoff.
    lingers: AtomicBool,
    /// The socket, once hyper has dropped it and it is still needed: to drain it, or to serve further requests.
    leftover: Mutex<Option<ClientStream>>,
    /// Hyper was told to shut down gracefully.
    is_shutting_down: AtomicBool,
    /// Trailers beyond their bound.
    has_large_trailers: AtomicBool,
    /// Hyper stops behind a body that it has not read itself: a new hyper serves the next request.
    continues: AtomicBool,
}

fn load(flag: &AtomicBool) -> bool {
    flag.load(Ordering::Relaxed)
}

fn set(flag: &AtomicBool, value: bool) {
    flag.store(value, Ordering::Relaxed);
}

impl ConnectionState {
    /// Returns true if no request or response is in flight, as far as this side can know. Hyper waits for the next request then; after a
    /// response to a request that was not read to its end it closes the connection instead.
    pub(super) fn is_idle(&self) -> bool {
        !self.io.is_http2()
            && !self.handoff.is_active()
            && !self.deadlines.has_unread_response()
            && self.requests.open.load(Ordering::Relaxed) == 0
            && !load(&self.io.read_since_write)
            && load(&self.io.waits_for_input)
    }

    /// Returns true if the next response is the last one and has to announce it. HTTP/2 has GOAWAY for that.
    pub(super) fn is_last_response(&self) -> bool {
        load(&self.end.after_next_response) && !self.io.is_http2()
    }

    /// Decides whether the connection continues behind the response that begins now: its body was transferred past hyper and was read
    /// to the last byte.
    pub(super) fn decide_continuation(&self) -> bool {
        let continues = self.handoff.is_body_read() && !load(&self.end.is_shutting_down) && !self.is_last_response();
        set(&self.end.continues, continues);
        continues
    }

    /// Ends a turn of hyper. Between two requests nothing is left of the first one, and hyper may close at once.
    pub(super) fn end_turn(&self) {
        if load(&self.end.lingers) && self.is_idle() {
            self.end.set_lingers(false);
        }
    }

    /// Has this task woken when a request ends during a handoff: hyper does not see by itself that the rest of the body is not wanted
    /// any more.
    pub(super) fn wake_on_request_end(&self, context: &Context<'_>) {
        if self.handoff.is_active() {
            *self.waker.lock().unwrap_or_else(PoisonError::into_inner) = Some(context.waker().clone());
        }
    }

    /// Returns true if the read allowance of this turn is used up: the requests read so far are served first.
    pub(super) fn has_read_enough(&self) -> bool {
        self.io.is_http2() && self.io.read_allowance.load(Ordering::Relaxed) == 0
    }

    /// Time since when no request is open over HTTP/2; `None` while one is.
    pub(super) fn idle_since(&self) -> Option<Instant> {
        let last_end = self.requests.last_end.lock().unwrap_or_else(PoisonError::into_inner);
        last_end.filter(|_| self.requests.open.load(Ordering::Relaxed) == 0)
    }

    /// Notes bytes that hyper has read.
    pub(super) fn on_read(&self, bytes: &[u8]) {
        let io = &self.io;
        if io.is_http2() {
            let left = io.read_allowance.load(Ordering::Relaxed);
            io.read_allowance.store(left.saturating_sub(bytes.len()), Ordering::Relaxed);
        }
        set(&io.read_since_write, true);
        set(&io.waits_for_input, false);
        if !self.requests.has_begun() {
            io.detect_version(bytes);
        }
    }

    /// Begins a request, which is open until the returned value is dropped.
    pub(super) fn begin_request(self: &Arc<Self>) -> OpenRequest {
        set(&self.requests.begun, true);
        self.requests.open.fetch_add(1, Ordering::Relaxed);
        OpenRequest(Arc::clone(self))
    }
}

impl Requests {
    pub(super) fn has_begun(&self) -> bool {
        load(&self.begun)
    }
}

impl SocketActivity {
    pub(super) fn is_http2(&self) -> bool {
        self.preface.load(Ordering::Relaxed) == PREFACE.len()
    }

    /// Returns true unless the bytes received so far rule HTTP/2 out.
    pub(super) fn may_be_http2(&self) -> bool {
        !load(&self.is_http1)
    }

    /// Any other beginning is one of HTTP/1.1, and stays one.
    fn detect_version(&self, bytes: &[u8]) {
        let known = self.preface.load(Ordering::Relaxed);
        if load(&self.is_http1) || known >= PREFACE.len() {
            return;
        }
        let rest = PREFACE.get(known..).unwrap_or_default();
        let same = rest.iter().zip(bytes).take_while(|(a, b)| a == b).count();
        if same == rest.len().min(bytes.len()) {
            self.preface.store(known + same, Ordering::Relaxed);
        } else {
            set(&self.is_http1, true);
        }
    }

    /// Begins a turn of hyper.
    pub(super) fn begin_turn(&self) {
        self.read_allowance.store(READ_PER_TURN, Ordering::Relaxed);
    }

    /// Notes a write, `complete` or still pending.
    pub(super) fn on_write(&self, complete: bool) {
        set(&self.waits_for_input, false);
        if complete {
            set(&self.read_since_write, false);
        }
    }

    /// Notes that hyper closes the connection, perhaps in several steps: it waits for no request.
    pub(super) fn on_close(&self) {
        set(&self.waits_for_input, false);
    }

    /// Notes that hyper has tried to read, and there was nothing.
    pub(super) fn on_no_input(&self) {
        set(&self.waits_for_input, true);
    }
}

impl End {
    /// Cuts the connection: the client loses it, and sees that it did.
    pub(super) fn cut(&self) {
        set(&self.is_cut, true);
    }

    pub(super) fn is_cut(&self) -> bool {
        load(&self.is_cut)
    }

    /// Gives the socket to a successor once hyper drops it. From now on nothing is read, and the connection is not closed. Only the
    /// first call counts.
    pub(super) fn hand_off(&self, successor: mpsc::Sender<TcpStream>) {
        let _ = self.successor.set(successor);
    }

    pub(super) fn successor(&self) -> Option<&mpsc::Sender<TcpStream>> {
        self.successor.get()
    }

    /// Closes the connection after its next response, over HTTP/1.1.
    pub(super) fn close_after_next_response(&self) {
        set(&self.after_next_response, true);
    }

    /// Sets whether the response that begins may be complete before its request's body was read.
    pub(super) fn set_lingers(&self, lingers: bool) {
        set(&self.lingers, lingers);
    }

    pub(super) fn lingers(&self) -> bool {
        load(&self.lingers)
    }

    /// Notes that hyper was told to shut down: a response that begins from now on says that it is the last.
    pub(super) fn on_shutdown(&self) {
        set(&self.is_shutting_down, true);
    }

    pub(super) fn on_large_trailers(&self) {
        set(&self.has_large_trailers, true);
    }

    pub(super) fn has_large_trailers(&self) -> bool {
        load(&self.has_large_trailers)
    }

    pub(super) fn continues(&self) -> bool {
        load(&self.continues)
    }

    pub(super) fn keep_leftover(&self, stream: ClientStream) {
        *self.leftover.lock().unwrap_or_else(PoisonError::into_inner) = Some(stream);
    }

    /// The socket that hyper has dropped. Its client may not have closed its side: it may send on, and read its response only then.
    pub(super) fn take_leftover(&self) -> Option<ClientStream> {
        self.leftover.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// A request whose response is not complete.
#[derive(Debug)]
pub(super) struct OpenRequest(pub(super) Arc<ConnectionState>);

impl Drop for OpenRequest {
    fn drop(&mut self) {
        let state = &self.0;
        let before = state.requests.open.fetch_sub(1, Ordering::Relaxed);
        if before == 1 && state.io.is_http2() {
            *state.requests.last_end.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        }
        if state.handoff.is_active()
            && let Some(waker) = state.waker.lock().unwrap_or_else(PoisonError::into_inner).take()
        {
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests;
