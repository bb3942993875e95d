//! One client's connection: what is known of it, and its way to a successor.
//!
//! An HTTP/1.1 connection on which nothing is in the air goes over to the successor as it is; the client notices
//! nothing. It may go when every answer has been written and not one byte has been read since: what the client sends
//! from then on lies in the socket, which this process does not read any more. HTTP/2 has GOAWAY for the same end. One that
//! cannot go, since TLS is spoken on it, stays for one more request, whose answer says that the connection ends with it: so
//! none is closed while a request may be on its way.

use super::handoff::Hold;
use super::stream::Stream;
use crate::check::Heads;
use crate::response::{ResponseBody, ResponseGuard, Slow, StreamCut};
use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use omni_body::SlowReader;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use tokio::sync::mpsc;

/// How every HTTP/2 connection begins, as far as it tells one from a request of HTTP/1.1.
const PREFACE: &[u8] = b"PRI";
/// What a client gets beyond a request's deadline to take the end of its answer; then the connection is cut.
const TAKEN_WITHIN: Duration = Duration::from_secs(5);

/// What is read of an HTTP/2 connection before the requests that it brought are looked at: what their heads take in memory until
/// then nobody counts.
const AT_ONCE: usize = 32 * 1024;

/// What is known of a connection.
#[derive(Debug, Default)]
pub(crate) struct Known {
    /// A request came.
    pub(super) begun: AtomicBool,
    /// Requests whose answers are not whole yet.
    pub(super) open: AtomicUsize,
    /// Something was read since the last write.
    pub(super) heard: AtomicBool,
    /// Bytes of [`PREFACE`] that it began with.
    pub(super) preface: AtomicUsize,
    /// Hyper asked for more after the last write, and there was nothing.
    pub(super) asked: AtomicBool,
    /// One that is held ends with the answer that is due, whoever serves.
    pub(crate) hold: Arc<Hold>,
    /// How many [`Until::open`] has: asked at every turn of the connection.
    pub(super) slow: AtomicUsize,
    /// When they must have been taken.
    pub(super) until: Mutex<Until>,
    /// Large answers that hyper has, in part or in whole.
    pub(super) debtor: Arc<SlowReader>,
    /// It is cut: what the kernel has yet to send is not wanted either.
    pub(super) cut: AtomicBool,
    /// Where it goes when hyper lets go of it.
    pub(super) heir: OnceLock<mpsc::Sender<TcpStream>>,
    /// It stays until its next answer, which says that it is the last.
    pub(super) runs_out: AtomicBool,
    /// Hyper may close it with a part of a body unread, which nobody can hold.
    pub(super) lingers: AtomicBool,
    /// It, once hyper has done so.
    pub(super) left: Mutex<Option<Stream>>,
    /// Heads of its requests over HTTP/2.
    pub(crate) heads: Arc<Heads>,
    /// What may still be read of it in this turn, over HTTP/2.
    pub(super) at_once: AtomicUsize,
    /// When the last request ended of those that were open, over HTTP/2.
    pub(super) ended: Mutex<Option<tokio::time::Instant>>,
    /// Hyper was told to let go of it.
    pub(super) told: AtomicBool,
    /// Its client sent trailers that are too large.
    pub(super) overdone: AtomicBool,
    /// Hyper leaves it behind a body that it has not read and somebody else has: the next request may follow.
    pub(super) goes_on: AtomicBool,
    pub(super) waker: Mutex<Option<Waker>>,
}

/// When a client must have taken what it asked for.
#[derive(Debug, Default)]
pub(super) struct Until {
    /// Answers that are not over, of which none lies in memory for long: streams, and small ones over HTTP/2.
    open: Vec<Instant>,
    /// The last of the answers that are whole.
    kept: Option<Instant>,
}

impl Known {
    /// Whether there was a request.
    pub(crate) fn has_begun(&self) -> bool {
        self.begun.load(Ordering::Relaxed)
    }

    /// Whether it speaks HTTP/2.
    pub(crate) fn is_http2(&self) -> bool {
        self.preface.load(Ordering::Relaxed) == PREFACE.len()
    }

    /// Whether it speaks HTTP/2 as far as it has spoken.
    pub(super) fn may_be_http2(&self) -> bool {
        self.preface.load(Ordering::Relaxed) <= PREFACE.len()
    }

    /// It ends for what its client sent beyond the bound of trailers.
    pub(super) fn overdoes(&self) {
        self.overdone.store(true, Ordering::Relaxed);
    }

    /// Whether it ended so.
    pub(crate) fn has_overdone(&self) -> bool {
        self.overdone.load(Ordering::Relaxed)
    }

    /// Whether nothing is in the air, as far as this side can know. Hyper asks for the next request, and finds none; after
    /// an answer to a request that was not read to its end it closes instead.
    pub(crate) fn is_idle(&self) -> bool {
        !self.is_http2()
            && !self.hold.is_held()
            && !self.debtor.has_unread()
            && self.open.load(Ordering::Relaxed) == 0
            && !self.heard.load(Ordering::Relaxed)
            && self.asked.load(Ordering::Relaxed)
    }

    /// When the client is given up that does not take what it asked for; `None` while it owes nothing.
    pub(crate) fn until(&self) -> Option<Instant> {
        if !self.owes() {
            return None;
        }
        let until = self.until.lock().unwrap_or_else(PoisonError::into_inner);
        // One that is taken ends by itself at its deadline: only one that is not stays open beyond it.
        let kept = until.kept.filter(|_| self.debtor.has_unread());
        until.open.iter().copied().chain(kept).min()
    }

    /// Whether there is an answer that it may be slow to take.
    fn owes(&self) -> bool {
        self.slow.load(Ordering::Relaxed) > 0 || self.debtor.has_unread()
    }

    /// Whether its room is needed for others; if not, who asked last is woken when it is.
    pub(crate) fn is_given_up(&self, context: &Context<'_>) -> bool {
        self.debtor.is_evicted(context)
    }

    /// The client loses its connection, and sees that it did.
    pub(crate) fn cut(&self) {
        self.cut.store(true, Ordering::Relaxed);
    }

    /// Nothing is read from here on, and the connection is not closed: hyper is about to let go of it.
    pub(crate) fn bequeath(&self, heir: mpsc::Sender<TcpStream>) {
        let _ = self.heir.set(heir); // the first one counts
    }

    /// A connection of HTTP/1.1 that no successor can have: its next answer says that it is the last one.
    pub(crate) fn run_out(&self) {
        self.runs_out.store(true, Ordering::Relaxed);
    }

    /// Whether an answer is the last one, and has to say so. HTTP/2 has GOAWAY for that.
    pub(crate) fn runs_out(&self) -> bool {
        self.runs_out.load(Ordering::Relaxed) && !self.is_http2()
    }

    /// Whether the answer that goes out may come before the end of its request's body, a part of which hyper leaves then.
    pub(crate) fn linger(&self, may: bool) {
        self.lingers.store(may, Ordering::Relaxed);
    }

    /// Hyper is told to let go of it: an answer that begins from now on says that it is the last.
    pub(crate) fn tell(&self) {
        self.told.store(true, Ordering::Relaxed);
    }

    /// Whether it goes on behind the answer that begins now: the body was held, and is read to its last byte.
    pub(crate) fn may_go_on(&self) -> bool {
        let may = self.hold.is_read() && !self.told.load(Ordering::Relaxed) && !self.runs_out();
        self.goes_on.store(may, Ordering::Relaxed);
        may
    }

    /// Hyper gets its turn.
    pub(crate) fn turn(&self) {
        self.at_once.store(AT_ONCE, Ordering::Relaxed);
    }

    /// Since when nothing was asked over HTTP/2; `None` while something is.
    pub(crate) fn unused_since(&self) -> Option<tokio::time::Instant> {
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        ended.filter(|_| self.open.load(Ordering::Relaxed) == 0)
    }

    /// Hyper has done what it can for now. Between two requests nothing is left of the first one, and it may close at once.
    pub(crate) fn settle(&self) {
        if self.lingers.load(Ordering::Relaxed) && self.is_idle() {
            self.linger(false);
        }
    }

    /// What hyper does not want any more, for who does.
    pub(super) fn keep(&self, stream: Stream) {
        *self.left.lock().unwrap_or_else(PoisonError::into_inner) = Some(stream);
    }

    /// Whether so much was read in this turn that the requests in it are to be looked at first.
    pub(super) fn has_read_enough(&self) -> bool {
        self.is_http2() && self.at_once.load(Ordering::Relaxed) == 0
    }

    /// Who serves it is woken when an answer over a held connection is over: hyper does not see by itself that nobody wants
    /// the rest of the body.
    pub(crate) fn awaits_end(&self, context: &Context<'_>) {
        if self.hold.is_held() {
            *self.waker.lock().unwrap_or_else(PoisonError::into_inner) = Some(context.waker().clone());
        }
    }

    /// Whether [`Known::left`] is to be served on.
    pub(crate) fn goes_on(&self) -> bool {
        self.goes_on.load(Ordering::Relaxed)
    }

    /// What hyper has closed, and its client perhaps not: it may send on, and read its answer only then.
    pub(crate) fn left(&self) -> Option<Stream> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// A request came; it is open until what is returned goes.
    pub(crate) fn begin(self: &Arc<Self>) -> Open {
        self.begun.store(true, Ordering::Relaxed);
        self.open.fetch_add(1, Ordering::Relaxed);
        Open(Arc::clone(self))
    }

    /// A write was tried, and went through or not.
    pub(super) fn wrote(&self, through: bool) {
        self.asked.store(false, Ordering::Relaxed);
        if through {
            self.heard.store(false, Ordering::Relaxed);
        }
    }

    /// Hyper closes, perhaps in more than one step: it waits for no request.
    pub(super) fn closes(&self) {
        self.asked.store(false, Ordering::Relaxed);
    }

    /// Hyper asked for bytes, and there were none.
    pub(super) fn found_nothing(&self) {
        self.asked.store(true, Ordering::Relaxed);
    }

    pub(super) fn read(&self, bytes: &[u8]) {
        if self.is_http2() {
            let left = self.at_once.load(Ordering::Relaxed);
            self.at_once.store(left.saturating_sub(bytes.len()), Ordering::Relaxed);
        }
        self.heard.store(true, Ordering::Relaxed);
        self.asked.store(false, Ordering::Relaxed);
        let known = self.preface.load(Ordering::Relaxed);
        if !self.has_begun() && known < PREFACE.len() {
            let rest = PREFACE.get(known..).unwrap_or_default();
            let same = rest.iter().zip(bytes).take_while(|(a, b)| a == b).count();
            // Any other beginning is one of HTTP/1.1, and stays one.
            self.preface
                .store(if same == rest.len().min(bytes.len()) { known + same } else { usize::MAX }, Ordering::Relaxed);
        }
    }
}

/// A request that is not answered in full.
#[derive(Debug)]
pub(crate) struct Open(Arc<Known>);

impl Drop for Open {
    fn drop(&mut self) {
        let before = self.0.open.fetch_sub(1, Ordering::Relaxed);
        if before == 1 && self.0.is_http2() {
            *self.0.ended.lock().unwrap_or_else(PoisonError::into_inner) = Some(tokio::time::Instant::now());
        }
        if self.0.hold.is_held()
            && let Some(waker) = self.0.waker.lock().unwrap_or_else(PoisonError::into_inner).take()
        {
            waker.wake();
        }
    }
}

/// An answer's body, which keeps its request open.
#[derive(Debug)]
pub(crate) struct Answering<S> {
    body: ResponseBody<S>,
    open: Open,
    /// Its own in [`Until::open`].
    until: Option<Instant>,
    /// Only the end of the connection says that it is over, which one that broke off must not look like.
    by_end: bool,
    /// Dropped once the response was written.
    _guard: Option<ResponseGuard>,
}

impl<S> Answering<S> {
    /// One that takes until `slow` at most; `by_end`: over HTTP/1.0.
    pub(crate) fn new(
        body: ResponseBody<S>,
        open: Open,
        slow: Option<Slow>,
        by_end: bool,
        guard: Option<ResponseGuard>,
    ) -> Self {
        let mut own = None;
        if let Some(Slow { until, untaken }) = slow {
            let known = &open.0;
            let mut all = known.until.lock().unwrap_or_else(PoisonError::into_inner);
            let until = until + TAKEN_WITHIN;
            if let Some(untaken) = untaken {
                let before = all.kept.filter(|_| known.debtor.has_unread());
                all.kept = before.max(Some(until)); // of several at a time over HTTP/2 the last
                untaken.assign(&known.debtor);
            } else {
                own = Some(until);
                all.open.push(until);
                known.slow.fetch_add(1, Ordering::Relaxed);
            }
        }
        Self { body, open, until: own, by_end, _guard: guard }
    }
}

impl<S> Drop for Answering<S> {
    fn drop(&mut self) {
        if let Some(own) = self.until {
            let known = &self.open.0;
            let mut until = known.until.lock().unwrap_or_else(PoisonError::into_inner);
            let at = until.open.iter().position(|one| *one == own);
            at.map(|at| until.open.swap_remove(at));
            known.slow.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl<S> Body for Answering<S>
where
    S: Body<Data = Bytes> + Unpin,
    S::Error: Into<StreamCut>,
{
    type Data = Bytes;
    type Error = StreamCut;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, StreamCut>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context);
        if self.by_end && matches!(frame, Poll::Ready(Some(Err(_)))) {
            self.open.0.cut();
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
#[path = "state_tests.rs"]
mod tests;
