//! Deadlines for a client to read its responses, and the body that has one.

use super::state::OpenRequest;
use crate::response::{ReadDeadline, ResponseBody, ResponseGuard, StreamCut};
use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use omni_body::SlowReader;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// Time beyond a request's deadline for its client to read the end of the response; then the connection is cut.
const GRACE: Duration = Duration::from_secs(5);

/// Deadlines of the responses of one connection.
#[derive(Debug, Default)]
pub(super) struct ReadDeadlines {
    /// Length of [`Deadlines::open`], which is asked for in every turn of the connection.
    open: AtomicUsize,
    deadlines: Mutex<Deadlines>,
    /// The connection as the reader of the large responses that hyper has, in part or whole.
    reader: Arc<SlowReader>,
}

#[derive(Debug, Default)]
struct Deadlines {
    /// Deadlines of incomplete responses without reserved memory: streams, and small ones over HTTP/2.
    open: Vec<Instant>,
    /// The latest of the whole responses in memory.
    whole: Option<Instant>,
}

impl ReadDeadlines {
    /// Moment at which the client has to have read something; `None` while there is nothing for it to read.
    pub(super) fn next(&self) -> Option<Instant> {
        if self.open.load(Ordering::Relaxed) == 0 && !self.reader.has_unread() {
            return None;
        }
        let deadlines = self.deadlines.lock().unwrap_or_else(PoisonError::into_inner);
        // A response that is read ends by itself at its deadline: only an unread one stays beyond it.
        let whole = deadlines.whole.filter(|_| self.reader.has_unread());
        deadlines.open.iter().copied().chain(whole).min()
    }

    /// Returns true while a large response to this client is in memory.
    pub(super) fn has_unread_response(&self) -> bool {
        self.reader.has_unread()
    }

    /// Returns true if the memory of this client's responses is needed for others. Otherwise the task of the latest call is woken
    /// once it is.
    pub(super) fn is_evicted(&self, context: &Context<'_>) -> bool {
        self.reader.is_evicted(context)
    }

    /// Adds the deadline of a response. Returns it when it is to be removed with the response's body.
    fn add(&self, ReadDeadline { at, permit }: ReadDeadline) -> Option<Instant> {
        let mut deadlines = self.deadlines.lock().unwrap_or_else(PoisonError::into_inner);
        let at = at + GRACE;
        if let Some(permit) = permit {
            let before = deadlines.whole.filter(|_| self.reader.has_unread());
            deadlines.whole = before.max(Some(at)); // of several at a time, over HTTP/2, the latest
            permit.assign(&self.reader);
            None
        } else {
            deadlines.open.push(at);
            self.open.fetch_add(1, Ordering::Relaxed);
            Some(at)
        }
    }

    fn remove(&self, at: Instant) {
        let mut deadlines = self.deadlines.lock().unwrap_or_else(PoisonError::into_inner);
        let position = deadlines.open.iter().position(|open| *open == at);
        position.map(|position| deadlines.open.swap_remove(position));
        self.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Body of a response, which keeps its request open.
#[derive(Debug)]
pub(super) struct OpenResponse<S> {
    body: ResponseBody<S>,
    request: OpenRequest,
    /// Deadline to remove at the end.
    deadline: Option<Instant>,
    /// Only the end of the connection ends the body (HTTP/1.0), so that a failed one has to be cut.
    ends_with_connection: bool,
    /// Dropped once the response was written.
    _guard: Option<ResponseGuard>,
}

impl<S> OpenResponse<S> {
    pub(super) fn new(
        body: ResponseBody<S>,
        request: OpenRequest,
        deadline: Option<ReadDeadline>,
        ends_with_connection: bool,
        guard: Option<ResponseGuard>,
    ) -> Self {
        let deadline = deadline.and_then(|deadline| request.0.deadlines.add(deadline));
        Self { body, request, deadline, ends_with_connection, _guard: guard }
    }
}

impl<S> Drop for OpenResponse<S> {
    fn drop(&mut self) {
        if let Some(deadline) = self.deadline {
            self.request.0.deadlines.remove(deadline);
        }
    }
}

impl<S> Body for OpenResponse<S>
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
        if self.ends_with_connection && matches!(frame, Poll::Ready(Some(Err(_)))) {
            self.request.0.end.cut();
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
