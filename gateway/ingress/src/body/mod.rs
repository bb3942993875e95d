//! Request bodies: collected within the model's limit and the node's budget, or uploaded to the model.
//!
//! JSON is collected. Anything else that is longer than [`STREAM_FROM`], or of unknown length, is an [`Upload`]: the
//! scheduler does not hold it.

mod splice;
mod upload;

pub use self::upload::{Upload, Uploading, Way};

use self::upload::broke_off;
use crate::connection::{Hold, STREAM_WINDOW};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use hyper::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, EXPECT, HeaderMap};
use hyper::http::request::Parts;
use hyper::{Request, Version};
use omni_body::{BodyKind, BodyPermit, BudgetShare, RequestBody};
use omni_request_error::Failure;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Other bodies than JSON are streamed from this length on.
pub const STREAM_FROM: u64 = 1024 * 1024;
/// Budget is taken in steps of this many bytes while a body of unknown length comes.
const STEP: u64 = 64 * 1024;

/// Longest body that is read after its request was refused, and how long it may take to come: its connection can go on then.
const SMALL: u64 = 64 * 1024;
const SOON: Duration = Duration::from_millis(250);
/// Longest name of an encoding that is repeated in a refusal.
const ENCODING: usize = 40;

/// The body of a request, and how far it was read.
#[derive(Debug)]
pub enum Arriving {
    /// Nobody has asked for it.
    Unread(Incoming),
    /// To its end.
    Read,
    /// In part, or it is being read.
    Left,
}

/// Limits of a request's body.
#[derive(Debug, Clone, Copy)]
pub struct BodyLimits {
    /// Longest body.
    pub bytes: u64,
    /// The model may read a large body from the client's connection itself.
    pub hand_over: bool,
}

/// A body that is ready to be handed to a model.
#[derive(Debug)]
pub struct Taken {
    /// For the model.
    pub body: RequestBody,
    /// Length of a streamed body, when it is known.
    pub length: Option<u64>,
    /// The model gets the connection to read it from.
    pub handed: bool,
    /// Given back when the request is over.
    pub held: Option<BodyPermit>,
    /// Moves a streamed body; to be polled beside the answer.
    pub upload: Option<Upload>,
}

/// Whether the body is JSON, by its media type; a body without a type is taken for JSON, as the API's bodies are.
#[must_use]
pub fn is_json(headers: &HeaderMap) -> bool {
    let Some(media) = headers.get(CONTENT_TYPE) else { return true };
    let media = media.as_bytes().split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
    media.eq_ignore_ascii_case(b"application/json")
        || (media.len() > 5 && media[media.len() - 5..].eq_ignore_ascii_case(b"+json"))
}

/// The length of a body that can be moved past hyper: large, not JSON, and its end known from the head. HTTP/2 has frames
/// in between.
#[must_use]
pub fn passes_hyper(request: &Request<Incoming>) -> Option<u64> {
    let length = request.body().size_hint().exact().filter(|length| *length > STREAM_FROM)?;
    (request.version() == Version::HTTP_11 && !is_json(request.headers())).then_some(length)
}

/// Whether hyper closes the connection when this body is not read to its end. HTTP/2 ends the stream alone.
#[must_use]
pub fn may_be_left(request: &Request<Incoming>) -> bool {
    request.version() < Version::HTTP_2 && !request.body().is_end_stream()
}

/// Whether a body is not collected: its request can be served before it has come. `length`: when it is known.
#[must_use]
pub fn is_streamed(headers: &HeaderMap, length: Option<u64>) -> bool {
    length.is_none_or(|length| length > STREAM_FROM) && !is_json(headers)
}

/// Reads a small body that nobody wants, where it comes at once. Returns whether its end was reached.
async fn skip(parts: &Parts, mut body: Incoming) -> bool {
    // Who asks first has sent nothing; over HTTP/2 a stream ends alone.
    let waits = parts.headers.contains_key(EXPECT) || parts.version == Version::HTTP_2;
    if body.is_end_stream() || waits || body.size_hint().exact().is_none_or(|length| length > SMALL) {
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
    tokio::time::timeout(SOON, read).await.unwrap_or(false)
}

impl Arriving {
    /// The body, for who reads it.
    ///
    /// # Errors
    /// Somebody has it already.
    pub fn begin(&mut self) -> Result<Incoming, Failure> {
        match std::mem::replace(self, Self::Left) {
            Self::Unread(body) => Ok(body),
            Self::Read | Self::Left => Err(Failure::Died),
        }
    }

    /// Whether its request's answer leaves a part of it unread.
    pub async fn is_left(self, parts: &Parts) -> bool {
        match self {
            Self::Unread(body) => !skip(parts, body).await,
            Self::Read => false,
            Self::Left => true,
        }
    }
}

/// The encoding of a body that is in one. Who wants encoded bytes read by a model sends them without that header.
fn encoding(headers: &HeaderMap) -> Option<String> {
    let all = headers.get_all(CONTENT_ENCODING).iter().map(|value| String::from_utf8_lossy(value.as_bytes()));
    let encoded = all.filter(|value| !value.trim().is_empty() && !value.trim().eq_ignore_ascii_case("identity"));
    let encodings = encoded.collect::<Vec<_>>().join(", ");
    (!encodings.is_empty()).then(|| encodings.chars().take(ENCODING).collect())
}

/// Takes a request's body. `held`: its connection, when it is kept from hyper.
///
/// # Errors
/// The body is encoded or too large, does not come in time or in full, or the node holds enough already.
pub async fn take(
    parts: &Parts,
    held: Option<Arc<Hold>>,
    body: Incoming,
    limits: BodyLimits,
    share: &Arc<BudgetShare>,
    deadline: Instant,
) -> Result<Taken, Failure> {
    let (headers, limit) = (&parts.headers, limits.bytes);
    if let Some(encoding) = encoding(headers) {
        return Err(Failure::BodyEncoded { encoding });
    }
    let declared = headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()).and_then(|text| text.parse().ok());
    let exact = body.size_hint().exact();
    if declared.or(exact).is_some_and(|length: u64| length > limit) {
        return Err(Failure::BodyTooLarge { limit });
    }
    if is_streamed(headers, exact) {
        let way = match (held, exact) {
            (Some(hold), Some(length)) if limits.hand_over => Way::HandedOver(hold, length),
            (Some(hold), Some(length)) => Way::Spliced(hold, length),
            _ => Way::Copied(limit),
        };
        let handed = matches!(way, Way::HandedOver(..));
        // What hyper takes of it over HTTP/2 before the model reads lies in this process.
        let held = (parts.version == Version::HTTP_2).then(|| {
            let mut held = share.body();
            held.grow(exact.unwrap_or(u64::MAX).min(STREAM_WINDOW.into()), Instant::now()).then_some(held)
        });
        let held = held.map(|held| held.ok_or(Failure::NodeBusy)).transpose()?;
        let (upload, socket) = Upload::new(body, way, share)?;
        return Ok(Taken {
            body: RequestBody::Streamed(Some(socket)),
            length: exact,
            handed,
            held,
            upload: Some(upload),
        });
    }
    let collecting = collect(body, exact, limit, share);
    let (bytes, held) =
        tokio::time::timeout_at(deadline.into(), collecting).await.map_err(|_| Failure::BodyTimeout)??;
    let content = if is_json(headers) { BodyKind::Json } else { BodyKind::Bytes };
    Ok(Taken {
        body: RequestBody::Collected(content, bytes),
        length: None,
        handed: false,
        held: Some(held),
        upload: None,
    })
}

async fn collect(
    mut body: Incoming,
    exact: Option<u64>,
    limit: u64,
    share: &Arc<BudgetShare>,
) -> Result<(Bytes, BodyPermit), Failure> {
    if exact.is_some_and(|length| !share.has_room(length, Instant::now())) {
        return Err(Failure::NodeBusy); // before it is sent
    }
    let mut held = share.body();
    let mut first = Bytes::new();
    let mut joined = BytesMut::new();
    let mut length = 0_u64;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(broke_off)?;
        let Ok(data) = frame.into_data() else { continue };
        length += data.len() as u64;
        if length > limit {
            return Err(Failure::BodyTooLarge { limit });
        }
        // As it comes: who announces much and sends little takes little from others.
        while length > held.bytes() {
            let rest = exact.map_or(STEP, |exact| exact.max(length) - held.bytes());
            if !held.grow(rest.min(STEP), Instant::now()) {
                return Err(Failure::NodeBusy);
            }
        }
        if first.is_empty() && joined.is_empty() {
            first = data; // most bodies come in one piece: no copy
        } else {
            if joined.is_empty() {
                joined.reserve(usize::try_from(exact.unwrap_or_default()).unwrap_or_default());
                joined.extend_from_slice(&std::mem::take(&mut first));
            }
            joined.extend_from_slice(&data);
        }
    }
    let bytes = if joined.is_empty() { first } else { joined.freeze() };
    Ok((bytes, held))
}
