//! Response bodies, and what a handler says of a response beside it: extensions that the connection reads.

use bytes::Bytes;
use hyper::Version;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use omni_body::{BodyPermit, BudgetShare, ResponsePermit};
use omni_request_error::Failure;
use std::any::Any;
use std::borrow::Cow;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// Largest response over HTTP/1 that does not count as memory.
const SMALL: usize = 64 * 1024;
/// Largest response over HTTP/2 that does not count as memory: a connection can have many unread responses at a time.
const SMALL_HTTP2: usize = 1024;

/// Body of a response; `S` is the stream of the binary.
#[derive(Debug)]
pub enum ResponseBody<S> {
    /// Up to three pieces, sent in order.
    Pieces([Bytes; 3]),
    /// A stream of a model.
    Stream(S),
    /// Lines that are sent as they come (logs).
    Lines(tokio::sync::mpsc::Receiver<Bytes>),
    /// The response of another process.
    Forwarded(Incoming),
}

/// Extension of a response that its client may be slow to read.
#[derive(Debug, Clone)]
pub struct ReadDeadline {
    /// Moment at which the client must have read all of it.
    pub at: Instant,
    /// Time from the end of the listener, as a successor takes it over, after which it must have done so in any case.
    /// `None`: the response is waited for as before.
    pub after_end: Option<Duration>,
    /// Memory of the response until then; a stream has none.
    pub permit: Option<Arc<ResponsePermit>>,
}

/// Extension of a response that is sent before the request's body was read to its end.
#[derive(Debug, Clone, Copy)]
pub struct BodyUnread;

/// Extension of a response: a value that is dropped once the response was written to its end.
#[derive(Debug, Clone)]
pub struct ResponseGuard(#[expect(dead_code, reason = "held for its drop")] Arc<dyn Any + Send + Sync>);

/// A stream that failed after its beginning: the connection is cut, so that the client cannot take it for complete.
#[derive(Debug, thiserror::Error)]
#[error("the model's stream failed: {0}")]
pub struct StreamCut(pub Cow<'static, str>);

/// A large response in memory, which stays reserved until the last of it was written.
struct PermittedBytes {
    bytes: Bytes,
    _permit: Arc<ResponsePermit>,
}

impl AsRef<[u8]> for PermittedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl From<Infallible> for StreamCut {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

impl ResponseGuard {
    /// Keeps `value` until the response was written.
    #[must_use]
    pub fn new(value: impl Any + Send + Sync) -> Self {
        Self(Arc::new(value))
    }
}

impl<S> ResponseBody<S> {
    /// A body of one piece.
    #[must_use]
    pub fn full(bytes: Bytes) -> Self {
        Self::Pieces([bytes, Bytes::new(), Bytes::new()])
    }

    /// The whole body, when it is in memory.
    #[must_use]
    pub fn bytes(&self) -> Option<Vec<u8>> {
        match self {
            Self::Pieces(pieces) => Some(pieces.concat()),
            Self::Stream(_) | Self::Lines(_) | Self::Forwarded(_) => None,
        }
    }
}

impl<S> Body for ResponseBody<S>
where
    S: Body<Data = Bytes> + Unpin,
    S::Error: Into<StreamCut>,
{
    type Data = Bytes;
    type Error = StreamCut;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, StreamCut>>> {
        match self.get_mut() {
            Self::Pieces(pieces) => {
                let next = pieces.iter_mut().find(|piece| !piece.is_empty()).map(std::mem::take);
                Poll::Ready(next.map(|piece| Ok(Frame::data(piece))))
            }
            Self::Stream(stream) => {
                Pin::new(stream).poll_frame(context).map(|frame| frame.map(|frame| frame.map_err(Into::into)))
            }
            Self::Lines(lines) => lines.poll_recv(context).map(|line| line.map(|line| Ok(Frame::data(line)))),
            Self::Forwarded(body) => {
                let frame = Pin::new(body).poll_frame(context);
                frame.map(|frame| frame.map(|frame| frame.map_err(|_| StreamCut("the answer broke off".into()))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Pieces(pieces) => pieces.iter().all(Bytes::is_empty),
            Self::Stream(stream) => stream.is_end_stream(),
            Self::Lines(_) => false,
            Self::Forwarded(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Pieces(pieces) => SizeHint::with_exact(pieces.iter().map(|piece| piece.len() as u64).sum()),
            Self::Stream(stream) => stream.size_hint(),
            Self::Lines(_) => SizeHint::default(),
            Self::Forwarded(body) => body.size_hint(),
        }
    }
}

/// Reserves memory for a response that may stay in memory for long; `None` for one that is too small to count. `reserved`: what was
/// reserved when its first frame arrived.
///
/// # Errors
/// The memory for bodies is used up.
pub fn reserve_response(
    bytes: &mut Bytes,
    reserved: Option<BodyPermit>,
    version: Version,
    share: &Arc<BudgetShare>,
) -> Result<Option<Arc<ResponsePermit>>, Failure> {
    let small = if version == Version::HTTP_2 { SMALL_HTTP2 } else { SMALL };
    if bytes.len() <= small {
        return Ok(None);
    }
    let now = Instant::now();
    let permit = match reserved {
        Some(reserved) => reserved.into_response(now),
        None => share.response(bytes.len() as u64, now).ok_or(Failure::AnswerNotKept)?,
    };
    let permit = Arc::new(permit);
    let permitted = PermittedBytes { bytes: std::mem::take(bytes), _permit: Arc::clone(&permit) };
    *bytes = Bytes::from_owner(permitted);
    Ok(Some(permit))
}
