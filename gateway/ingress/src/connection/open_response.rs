//! Body of a response that is being written: keeps its request open and its read deadline set.

use super::state::OpenRequest;
use crate::response::{ReadDeadline, ResponseBody, ResponseGuard, StreamCut};
use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use std::pin::Pin;
use std::task::{Context, Poll};

/// Body of a response, which keeps its request open.
#[derive(Debug)]
pub(super) struct OpenResponse<S> {
    body: ResponseBody<S>,
    request: OpenRequest,
    /// Number of the deadline to remove at the end.
    deadline: Option<u64>,
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
