//! Response to a model's answer: envelope, bytes, or server-sent events.

use crate::file_body::FileBody;
use crate::generation::stream::GenerationBody;
use crate::head::REQUEST_ID;
use crate::in_flight::InFlightRequest;
use crate::memory::{LONGEST_WHOLE, too_long};
use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Response, StatusCode, Version};
use omni_body::{BodyPermit, BudgetShare, ResponsePermit, StreamKind};
use omni_engine_client::{Answer, AnswerContent, StreamEnd, StreamRead, StreamReader, Swap};
use omni_engine_protocol::frame::AnswerHead;
use omni_ingress::body::{IncomingBody, RunningUpload};
use omni_ingress::response_headers::sendable;
use omni_ingress::{BodyUnread, ReadDeadline, ResponseBody, StreamCut, reserve_response};
use omni_request_error::Failure;
use omni_usage::{TokenSource, Tokens};
use omni_workers_ai::{Envelope, StreamEncoder, envelope};
use std::fmt::{self, Display, Formatter};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

const MODEL_VERSION: HeaderName = HeaderName::from_static("x-omni-model-version");
const SERVER_TIMING: HeaderName = HeaderName::from_static("server-timing");
/// Media type of server-sent events.
const EVENTS: &str = "text/event-stream";

/// Body of a response of this node.
pub type AnswerBody = ResponseBody<Box<AnswerStream>>;

/// A streamed answer.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "boxed as a whole")]
pub enum AnswerStream {
    /// As the model sends it, in the form of the run API.
    Model(StreamBody),
    /// Generated text, in the form of any API.
    Generation(GenerationBody),
    /// Content of a file.
    File(FileBody),
}

impl Body for AnswerStream {
    type Data = Bytes;
    type Error = StreamCut;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, StreamCut>>> {
        match self.get_mut() {
            Self::Model(body) => Pin::new(body).poll_frame(context),
            Self::Generation(body) => Pin::new(body).poll_frame(context),
            Self::File(body) => Pin::new(body).poll_frame(context),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Model(body) => body.size_hint(),
            Self::Generation(body) => body.size_hint(),
            Self::File(body) => body.size_hint(),
        }
    }
}

/// A streamed answer: cancels the request when it is dropped before its end.
#[derive(Debug)]
pub struct StreamBody {
    /// The answer in progress; `None` once it has ended.
    running: Option<Running>,
    encoder: StreamEncoder,
    /// Transfer of the request's body, of which the model may still read.
    upload: Option<RunningUpload>,
    /// Missing bytes of the length that the model announced. With the last of them the answer is complete, and hyper does not poll
    /// again.
    left: Option<u64>,
    /// Error of the next poll, which cuts the connection. Not of this one: hyper discards what it has not written yet, even the head.
    cut: Option<StreamCut>,
}

/// An answer in progress.
#[derive(Debug)]
struct Running {
    reader: StreamReader,
    request: InFlightRequest,
}

impl Body for StreamBody {
    type Data = Bytes;
    type Error = StreamCut;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, StreamCut>>> {
        self.get_mut().poll(context)
    }

    fn size_hint(&self) -> SizeHint {
        self.left.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

impl StreamBody {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, StreamCut>>> {
        if let Some(cut) = self.cut.take() {
            return Poll::Ready(Some(Err(cut)));
        }
        let Some(running) = &mut self.running else { return Poll::Ready(None) };
        let uploaded = self.upload.as_mut().map_or(Poll::Pending, |upload| Pin::new(upload).poll(context));
        if uploaded.is_ready() {
            self.upload = None;
        }
        let end = match (running.reader.poll_read(context), uploaded) {
            (Poll::Ready(StreamRead::Chunks(chunks)), Poll::Pending | Poll::Ready(Ok(()))) => {
                running.request.on_consumed(&chunks);
                let mut data = self.encoder.encode(chunks);
                if let Some(left) = &mut self.left {
                    let has_more = data.len() as u64 > *left;
                    data.truncate(usize::try_from(*left).unwrap_or(usize::MAX));
                    *left -= data.len() as u64;
                    if *left == 0
                        && let Some(running) = self.running.take()
                    {
                        running.on_all_read(has_more);
                    }
                }
                return Poll::Ready(Some(Ok(Frame::data(data))));
            }
            (Poll::Ready(StreamRead::End(end)), _) => {
                running.on_end(&end);
                match end {
                    StreamEnd::Complete => Ok(()),
                    StreamEnd::Failed(failure) => Err(failure.stream_message()),
                }
            }
            (_, Poll::Ready(Err(_))) => Err("the request's body broke off".into()),
            (Poll::Pending, _) => return Poll::Pending,
        };
        self.running = None;
        self.upload = None;
        match self.encoder.finish(end) {
            Ok(last) => Poll::Ready(last.map(|last| Ok(Frame::data(last)))),
            Err(why) => {
                self.cut = Some(StreamCut(why));
                context.waker().wake_by_ref();
                Poll::Pending
            }
        }
    }
}

impl Running {
    fn on_end(&mut self, end: &StreamEnd) {
        match end {
            StreamEnd::Failed(Failure::Deadline) => self.request.on_deadline(),
            StreamEnd::Complete | StreamEnd::Failed(_) => self.request.on_stream_end(*end == StreamEnd::Complete),
        }
    }

    /// Counts an answer of which the client has all bytes, and waits for its end, at most until the deadline: its handler still
    /// runs. `has_more`: the model has sent more bytes than it announced; its handler is cancelled at once.
    fn on_all_read(mut self, has_more: bool) {
        self.request.on_all_read();
        if has_more {
            return; // what is dropped is cancelled
        }
        if self.poll_end(&mut Context::from_waker(Waker::noop())).is_pending() {
            tokio::spawn(async move { std::future::poll_fn(|context| self.poll_end(context)).await });
        }
    }

    /// Polls the end. More bytes than were announced end the answer, too: what is dropped is cancelled.
    fn poll_end(&mut self, context: &mut Context<'_>) -> Poll<()> {
        loop {
            match std::task::ready!(self.reader.poll_read(context)) {
                StreamRead::Chunks(chunks) if chunks.byte_length() == 0 => {}
                StreamRead::Chunks(_) => return Poll::Ready(()),
                StreamRead::End(_) => {
                    self.request.on_end();
                    return Poll::Ready(());
                }
            }
        }
    }
}

/// Reserves memory for an answer that may lie there for long. Streams need none.
///
/// # Errors
/// The node's budget is used up.
pub(crate) fn reserve(
    answer: &mut Answer,
    version: Version,
    share: &Arc<BudgetShare>,
) -> Result<Option<Arc<ResponsePermit>>, Failure> {
    let reserved = answer.permit.take();
    match &mut answer.content {
        AnswerContent::Json(bytes) | AnswerContent::Bytes(bytes) => reserve_response(bytes, reserved, version, share),
        AnswerContent::Stream(_) => Ok(None),
    }
}

/// Completes a response: its request id, and what is left unread of the request's body.
pub(crate) async fn complete(
    mut response: Response<AnswerBody>,
    id: HeaderValue,
    body: IncomingBody,
    parts: &Parts,
) -> Response<AnswerBody> {
    response.headers_mut().insert(REQUEST_ID, id);
    if body.stays_unread(parts).await {
        response.extensions_mut().insert(BodyUnread);
    }
    response
}

/// A whole answer for the client.
#[derive(Debug)]
pub(crate) struct Document {
    pub(crate) media_type: HeaderValue,
    pub(crate) bytes: Bytes,
    pub(crate) used: Used,
}

/// Usage that a whole answer reports.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Used {
    /// Tokens of the request.
    pub(crate) tokens: Option<Tokens>,
    /// Number of images.
    pub(crate) images: u64,
    /// Seconds of the recording.
    pub(crate) audio_seconds: f64,
}

impl Document {
    /// A document of JSON.
    pub(crate) fn json(bytes: Bytes) -> Self {
        Self { media_type: HeaderValue::from_static("application/json"), bytes, used: Used::default() }
    }

    /// The same, with what the answer says about its usage.
    pub(crate) fn with_usage(self, used: Used) -> Self {
        Self { used, ..self }
    }

    /// Response with a document that is not kept in memory for long.
    pub(crate) fn response(self) -> Response<AnswerBody> {
        let mut response = Response::new(AnswerBody::full(self.bytes));
        response.headers_mut().insert(CONTENT_TYPE, self.media_type);
        response
    }

    /// Reserves memory for a document that may lie there for long, and makes its response. `reserved`: memory that was reserved while it
    /// was made.
    ///
    /// # Errors
    /// The node's budget is used up.
    pub(crate) fn kept_response(
        mut self,
        mut reserved: Option<BodyPermit>,
        version: Version,
        share: &Arc<BudgetShare>,
        deadline: Instant,
    ) -> Result<Response<AnswerBody>, Failure> {
        if self.bytes.len() as u64 > LONGEST_WHOLE {
            return Err(too_long(LONGEST_WHOLE));
        }
        if let Some(permit) = &mut reserved {
            let more = (self.bytes.len() as u64).saturating_sub(permit.bytes());
            if more > 0 && !permit.grow(more, Instant::now()) {
                return Err(Failure::AnswerNotKept);
            }
        }
        let permit = reserve_response(&mut self.bytes, reserved, version, share)?;
        let mut response = self.response();
        if permit.is_some() {
            response.extensions_mut().insert(ReadDeadline { at: deadline, after_end: None, permit });
        }
        Ok(response)
    }
}

impl Used {
    /// Tokens of a prompt alone, as the model said them, or as they are estimated.
    pub(crate) fn input_tokens(said: Option<u64>, estimate: u64) -> Self {
        let source = if said.is_some() { TokenSource::Model } else { TokenSource::Counted };
        let tokens = Tokens { input: said.unwrap_or(estimate), output: 0, cached: 0, reasoning: 0, source };
        Self { tokens: Some(tokens), ..Self::default() }
    }
}

/// Adds the version that answered, and the times of the answer.
pub(crate) fn timing_headers(
    headers: &mut HeaderMap,
    (version, submitted): (&str, Instant),
    sent_at: Instant,
    swap: Option<Swap>,
    answered: Instant,
) {
    let queued = sent_at.saturating_duration_since(submitted);
    let worked = answered.saturating_duration_since(sent_at);
    let swap = swap.map(|swap| swap.overlap_since(submitted)).filter(|time| !time.is_zero());
    if let Ok(version) = HeaderValue::from_str(version) {
        headers.insert(MODEL_VERSION, version);
    }
    if let Ok(timing) = HeaderValue::from_str(&server_timing(queued, swap, worked)) {
        headers.insert(SERVER_TIMING, timing);
    }
}

/// The response to a model's answer. `permit`: the memory reserved for it. A stream goes on with the upload; any other answer ends it.
pub(crate) fn respond(
    answer: Answer,
    mut request: InFlightRequest,
    upload: Option<RunningUpload>,
    permit: Option<Arc<ResponsePermit>>,
) -> Response<AnswerBody> {
    let Answer { status, head, content, permit: _, sent_at: _, swap: _, instance: _ } = answer;
    let head = head.unwrap_or_default();
    let mut response = response_head(status, &head, &content);
    let counts = permit.is_some();
    if counts || matches!(content, AnswerContent::Stream(_)) {
        response.extensions_mut().insert(ReadDeadline { at: request.deadline(), after_end: None, permit });
    }
    let body = match content {
        AnswerContent::Json(json) => json_body(status, json, counts),
        AnswerContent::Bytes(bytes) => AnswerBody::full(bytes),
        AnswerContent::Stream(reader) => {
            let left = head.length.filter(|_| reader.kind() == StreamKind::Bytes);
            request.cancel_at_deadline();
            let encoder = StreamEncoder::new(reader.kind());
            let running = Running { reader, request };
            if left == Some(0) {
                running.on_all_read(false);
                return response.map(|()| AnswerBody::full(Bytes::new()));
            }
            let running = Some(running);
            let stream = StreamBody { running, encoder, upload, left, cut: None };
            AnswerBody::Stream(Box::new(AnswerStream::Model(stream)))
        }
    };
    response.map(|()| body)
}

/// Body with one JSON value in the dialect's envelope. `counts`: its memory counts against a budget.
#[must_use]
pub fn json_body(status: u16, json: Bytes, counts: bool) -> AnswerBody {
    match envelope(status, json, counts) {
        Envelope::Joined(bytes) => AnswerBody::full(bytes),
        Envelope::Pieces(pieces) => AnswerBody::Pieces(pieces),
    }
}

/// Status and headers of a model's answer. The model chooses them, as far as it is allowed to.
#[must_use]
pub fn response_head(status: u16, head: &AnswerHead, content: &AnswerContent) -> Response<()> {
    let kind = match content {
        AnswerContent::Json(_) => None,
        AnswerContent::Bytes(_) => Some(StreamKind::Bytes),
        AnswerContent::Stream(reader) => Some(reader.kind()),
    };
    let given = head.media_type.as_deref().and_then(|media| HeaderValue::from_bytes(media.as_bytes()).ok());
    let media = match kind {
        None => given.unwrap_or(HeaderValue::from_static("application/json")),
        Some(StreamKind::Events) => given.filter(is_events).unwrap_or(HeaderValue::from_static(EVENTS)),
        Some(StreamKind::Bytes | StreamKind::Generation) => {
            given.unwrap_or(HeaderValue::from_static("application/octet-stream"))
        }
    };
    let mut response = Response::new(());
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    headers.extend(sendable(&head.headers));
    if is_events(&media) {
        headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-cache"));
    }
    headers.insert(CONTENT_TYPE, media);
    response
}

/// Returns true for the media type of server-sent events, with or without parameters.
fn is_events(media: &HeaderValue) -> bool {
    let essence = media.as_bytes().split(|byte| *byte == b';').next().unwrap_or_default();
    essence.trim_ascii().eq_ignore_ascii_case(EVENTS.as_bytes())
}

/// Value of `Server-Timing`: times in the queue, in the wait for GPU memory, and in the model, which do not overlap.
pub(crate) fn server_timing(queued: Duration, swap: Option<Duration>, worked: Duration) -> String {
    let queue = Ms(queued.saturating_sub(swap.unwrap_or_default()));
    let worked = Ms(worked);
    match swap.map(Ms) {
        None => format!("queue;dur={queue}, model;dur={worked}"),
        Some(swap) => format!("queue;dur={queue}, swap;dur={swap}, model;dur={worked}"),
    }
}

/// Milliseconds with three decimals. Formatted from whole numbers, which is cheaper: every answer has some.
struct Ms(Duration);

impl Display for Ms {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        let micros = u64::try_from(self.0.as_micros()).unwrap_or(u64::MAX);
        write!(out, "{}.{:03}", micros / 1000, micros % 1000)
    }
}

#[cfg(test)]
mod tests;
