//! Request bodies: collected within the model's limit and the budget, or uploaded to the model.
//!
//! JSON is collected. Any other body that is longer than [`STREAM_FROM`], or of unknown length, is an [`Upload`]: it is never in memory as
//! a whole, unless the node itself reads it ([`receive_whole`](crate::receive_whole)).

mod splice;
mod upload;

pub use self::upload::{RunningUpload, Transfer, Upload};

use self::upload::incomplete;
use crate::body_handoff::RawBodyHandoff;
use crate::limits::STREAM_WINDOW;
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use hyper::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, EXPECT, HeaderMap};
use hyper::http::request::Parts;
use hyper::{Request, Version};
use omni_body::{BodyKind, BodyPermit, BudgetShare, RequestBody};
use omni_request_error::Failure;
use std::fmt::Display;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Length from which bodies other than JSON are streamed.
pub const STREAM_FROM: u64 = 1024 * 1024;
/// Bytes that are reserved at once while a body arrives.
const STEP: u64 = 64 * 1024;

/// Longest body that is read after its request was refused, so that the connection can be kept.
const SKIPPED: u64 = 64 * 1024;
/// Time for such a body to arrive.
const SKIP_WITHIN: Duration = Duration::from_millis(250);
/// Characters of an encoding's name that a refusal repeats.
const ENCODING: usize = 40;

/// Body of a request by how far it was read.
#[derive(Debug)]
pub enum IncomingBody {
    /// Not read at all.
    Unread(Incoming),
    /// Read to its end.
    Complete,
    /// Read in part, or being read.
    Partial,
}

/// Limits of a request's body.
#[derive(Debug, Clone, Copy)]
pub struct BodyLimits {
    /// Longest body.
    pub bytes: u64,
    /// The model may read a large body from the client's connection itself.
    pub hand_over: bool,
}

/// Body that is ready for a model.
#[derive(Debug)]
pub struct ReceivedBody {
    /// The body, for the model.
    pub body: RequestBody,
    /// Length of a streamed body, when it is known.
    pub length: Option<u64>,
    /// The model reads it from the client's connection.
    pub handed_over: bool,
    /// Memory of the body, until the request is over.
    pub permit: Option<BodyPermit>,
    /// Transfer of a streamed body, to be polled beside the response.
    pub upload: Option<Upload>,
}

/// Returns true if the body is JSON by its media type. A body without a type counts as JSON, as the bodies of the APIs are;
/// one with several types does not.
#[must_use]
pub fn is_json(headers: &HeaderMap) -> bool {
    let mut types = headers.get_all(CONTENT_TYPE).iter();
    let (media, None) = (types.next(), types.next()) else { return false };
    let Some(media) = media else { return true };
    let media = media.as_bytes().split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
    media.eq_ignore_ascii_case(b"application/json")
        || (media.len() > 5 && media[media.len() - 5..].eq_ignore_ascii_case(b"+json"))
}

/// The length of a body that can be moved past hyper: large, not JSON, of known length, and without frames in between as HTTP/2 has.
#[must_use]
pub fn bypass_length(request: &Request<Incoming>) -> Option<u64> {
    let length = request.body().size_hint().exact().filter(|length| *length > STREAM_FROM)?;
    (request.version() == Version::HTTP_11 && !is_json(request.headers())).then_some(length)
}

/// Returns true if hyper closes the connection when this body is not read to its end. HTTP/2 ends only the stream.
#[must_use]
pub(crate) fn closes_when_unread(request: &Request<Incoming>) -> bool {
    request.version() < Version::HTTP_2 && !request.body().is_end_stream()
}

/// Returns true if a body of this length, or of unknown length, is streamed: its request can be served before it has arrived.
#[must_use]
pub fn is_streamed(headers: &HeaderMap, length: Option<u64>) -> bool {
    length.is_none_or(|length| length > STREAM_FROM) && !is_json(headers)
}

/// Reads and drops a small body that arrives soon. Returns whether its end was reached.
async fn skip(parts: &Parts, mut body: Incoming) -> bool {
    // A client that expects `100 Continue` has sent nothing; over HTTP/2 only the stream ends.
    let waits = parts.headers.contains_key(EXPECT) || parts.version == Version::HTTP_2;
    if body.is_end_stream() || waits || body.size_hint().exact().is_none_or(|length| length > SKIPPED) {
        return body.is_end_stream();
    }
    let read = async {
        while let Some(frame) = body.frame().await {
            if frame.is_err() {
                return false;
            }
        }
        true
    };
    tokio::time::timeout(SKIP_WITHIN, read).await.unwrap_or(false)
}

impl IncomingBody {
    /// Takes the body to read it.
    ///
    /// # Errors
    /// The body was taken already.
    pub fn take(&mut self) -> Result<Incoming, Failure> {
        match std::mem::replace(self, Self::Partial) {
            Self::Unread(body) => Ok(body),
            Self::Complete | Self::Partial => Err(Failure::Died),
        }
    }

    /// Reads a small body to its end. Returns true if part of the body stays unread behind the response.
    pub async fn stays_unread(self, parts: &Parts) -> bool {
        match self {
            Self::Unread(body) => !skip(parts, body).await,
            Self::Complete => false,
            Self::Partial => true,
        }
    }
}

/// The content encoding of a body, other than `identity`. A client that wants a model to get encoded bytes sends them without that header.
fn encoding(headers: &HeaderMap) -> Option<String> {
    let all = headers.get_all(CONTENT_ENCODING).iter().map(|value| String::from_utf8_lossy(value.as_bytes()));
    let encoded = all.filter(|value| !value.trim().is_empty() && !value.trim().eq_ignore_ascii_case("identity"));
    let encodings = encoded.collect::<Vec<_>>().join(", ");
    (!encodings.is_empty()).then(|| encodings.chars().take(ENCODING).collect())
}

/// Receives a request's body. `handoff`: that of its connection, when the body goes past hyper.
///
/// # Errors
/// The body is encoded or too large, does not arrive in time or in full, or there is no memory for it.
pub async fn receive(
    parts: &Parts,
    handoff: Option<Arc<RawBodyHandoff>>,
    body: Incoming,
    limits: BodyLimits,
    share: &Arc<BudgetShare>,
    deadline: Instant,
) -> Result<ReceivedBody, Failure> {
    let (headers, limit) = (&parts.headers, limits.bytes);
    let exact = body.size_hint().exact();
    check_head(headers, exact, limit)?;
    if is_streamed(headers, exact) {
        let transfer = match (handoff, exact) {
            (Some(handoff), Some(length)) if limits.hand_over => Transfer::HandOver(handoff, length),
            (Some(handoff), Some(length)) => Transfer::Splice(handoff, length),
            _ => Transfer::Copy(limit),
        };
        let handed_over = matches!(transfer, Transfer::HandOver(..));
        // Over HTTP/2, hyper buffers a window of it in this process before the model reads.
        let permit = (parts.version == Version::HTTP_2).then(|| {
            let mut permit = share.body();
            permit.grow(exact.unwrap_or(u64::MAX).min(STREAM_WINDOW.into()), Instant::now()).then_some(permit)
        });
        let permit = permit.map(|permit| permit.ok_or(Failure::NodeBusy)).transpose()?;
        let (upload, socket) = Upload::new(body, transfer, share)?;
        return Ok(ReceivedBody {
            body: RequestBody::Streamed(Some(socket)),
            length: exact,
            handed_over,
            permit,
            upload: Some(upload),
        });
    }
    let (bytes, permit) = collect(body, exact, limit, share, deadline).await?;
    let kind = if is_json(headers) { BodyKind::Json } else { BodyKind::Bytes };
    Ok(ReceivedBody {
        body: RequestBody::Collected(kind, bytes),
        length: None,
        handed_over: false,
        permit: Some(permit),
        upload: None,
    })
}

/// Checks the encoding and the length that a head announces.
pub(crate) fn check_head(headers: &HeaderMap, exact: Option<u64>, limit: u64) -> Result<(), Failure> {
    if let Some(encoding) = encoding(headers) {
        return Err(Failure::BodyEncoded { encoding });
    }
    let declared = headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()).and_then(|text| text.parse().ok());
    match declared.or(exact).is_some_and(|length: u64| length > limit) {
        true => Err(Failure::BodyTooLarge { limit }),
        false => Ok(()),
    }
}

/// Collects a body until the deadline.
pub(crate) async fn collect(
    body: impl Body<Data = Bytes, Error: Display> + Unpin,
    exact: Option<u64>,
    limit: u64,
    share: &Arc<BudgetShare>,
    deadline: Instant,
) -> Result<(Bytes, BodyPermit), Failure> {
    let collecting = collect_all(body, exact, limit, share);
    tokio::time::timeout_at(deadline.into(), collecting).await.map_err(|_| Failure::BodyTimeout)?
}

async fn collect_all(
    mut body: impl Body<Data = Bytes, Error: Display> + Unpin,
    exact: Option<u64>,
    limit: u64,
    share: &Arc<BudgetShare>,
) -> Result<(Bytes, BodyPermit), Failure> {
    if exact.is_some_and(|length| !share.has_room(length, Instant::now())) {
        return Err(Failure::NodeBusy); // before the client sends it
    }
    let mut permit = share.body();
    let mut first = Bytes::new();
    let mut joined = BytesMut::new();
    let mut length = 0_u64;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(incomplete)?;
        let Ok(data) = frame.into_data() else { continue };
        length += data.len() as u64;
        if length > limit {
            return Err(Failure::BodyTooLarge { limit });
        }
        // As it arrives: a client that announces much and sends little reserves little.
        while length > permit.bytes() {
            let rest = exact.map_or(STEP, |exact| exact.max(length) - permit.bytes());
            if !permit.grow(rest.min(STEP), Instant::now()) {
                return Err(Failure::NodeBusy);
            }
        }
        if first.is_empty() && joined.is_empty() {
            first = data; // most bodies arrive in one piece: no copy
        } else {
            if joined.is_empty() {
                joined.reserve(usize::try_from(exact.unwrap_or_default()).unwrap_or_default());
                joined.extend_from_slice(&std::mem::take(&mut first));
            }
            joined.extend_from_slice(&data);
        }
    }
    let bytes = if joined.is_empty() { first } else { joined.freeze() };
    Ok((bytes, permit))
}
