//! Request bodies: collected within the model's limit and the node's budget, or streamed to the model.
//!
//! JSON is collected. Anything else that is longer than [`STREAM_FROM`], or of unknown length, goes through a Unix
//! socket pair of this request whose other end the model reads: the scheduler holds one frame of it at a time.

use crate::failure::Failure;
use crate::model::requests::RequestBody;
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use hyper::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderMap};
use omni_ipc::frame::flags;
use std::future::Future;
use std::io::Write;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Other bodies than JSON are streamed from this length on.
pub const STREAM_FROM: u64 = 1024 * 1024;
/// Budget is taken in steps of this many bytes while a body of unknown length comes.
const STEP: u32 = 64 * 1024;

/// A body that is ready to be handed to a model.
#[derive(Debug)]
pub struct Taken {
    /// For the model.
    pub body: RequestBody,
    /// Length of a streamed body, when it is known.
    pub length: Option<u64>,
    /// Given back when the request is over.
    pub permit: Option<OwnedSemaphorePermit>,
    /// Copies a streamed body; to be polled beside the answer.
    pub pump: Option<Pump>,
}

/// Copies a body from the client to the model.
///
/// A Unix socket that is closed with something unread in it gives the other side an error instead of an end. So there
/// lies one byte, which is read at the end of a complete body: the model cannot take half a body for a whole one,
/// whether the client, the limit or the end of this process cut it off.
#[derive(Debug)]
pub struct Pump {
    body: Incoming,
    to: UnixStream,
    limit: u64,
}

/// A pump at work.
pub type Pumping = Pin<Box<dyn Future<Output = Result<(), Failure>> + Send>>;

/// Whether the body is JSON, by its media type; a body without a type is taken for JSON, as the API's bodies are.
#[must_use]
pub fn is_json(headers: &HeaderMap) -> bool {
    let Some(media) = headers.get(CONTENT_TYPE) else { return true };
    let media = media.as_bytes().split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
    media.eq_ignore_ascii_case(b"application/json")
        || (media.len() > 5 && media[media.len() - 5..].eq_ignore_ascii_case(b"+json"))
}

/// Takes a request's body.
///
/// # Errors
/// The body is too large, does not come in time or in full, or the node holds enough already.
pub async fn take(
    headers: &HeaderMap,
    body: Incoming,
    limit: u64,
    budget: &Arc<Semaphore>,
    deadline: Instant,
) -> Result<Taken, Failure> {
    let declared = headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()).and_then(|text| text.parse().ok());
    let exact = body.size_hint().exact();
    if declared.or(exact).is_some_and(|length: u64| length > limit) {
        return Err(Failure::BodyTooLarge { limit });
    }
    let json = is_json(headers);
    let streamed = !json && exact.is_none_or(|length| length > STREAM_FROM);
    if streamed {
        return stream(body, exact, limit);
    }
    let collecting = collect(body, exact, limit, budget);
    let (bytes, permit) =
        tokio::time::timeout_at(deadline.into(), collecting).await.map_err(|_| Failure::BodyTimeout)??;
    let content = if json { flags::JSON } else { flags::BYTES };
    Ok(Taken { body: RequestBody::Whole(content, bytes), length: None, permit, pump: None })
}

fn stream(body: Incoming, length: Option<u64>, limit: u64) -> Result<Taken, Failure> {
    let pair = || -> std::io::Result<_> {
        let (ours, mut theirs) = std::os::unix::net::UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        theirs.write_all(&[0])?; // see `Pump`
        Ok((UnixStream::from_std(ours)?, theirs.into()))
    };
    // The only reason is a want of descriptors, which is a want of the node.
    let (to, theirs) = pair().map_err(|_| Failure::NodeBusy)?;
    let pump = Some(Pump { body, to, limit });
    Ok(Taken { body: RequestBody::Streamed(Some(theirs)), length, permit: None, pump })
}

async fn collect(
    mut body: Incoming,
    exact: Option<u64>,
    limit: u64,
    budget: &Arc<Semaphore>,
) -> Result<(Bytes, Option<OwnedSemaphorePermit>), Failure> {
    let mut permit = None;
    if let Some(length) = exact {
        reserve(&mut permit, budget, u32::try_from(length).map_err(|_| Failure::NodeBusy)?)?;
    }
    let mut first = Bytes::new();
    let mut joined = BytesMut::new();
    let mut length = 0_u64;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| Failure::BadRequest(format!("the request's body broke off: {error}")))?;
        let Ok(data) = frame.into_data() else { continue };
        length += data.len() as u64;
        if length > limit {
            return Err(Failure::BodyTooLarge { limit });
        }
        while exact.is_none() && length > permit.as_ref().map_or(0, |p: &OwnedSemaphorePermit| p.num_permits() as u64) {
            reserve(&mut permit, budget, STEP)?;
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
    Ok((bytes, permit))
}

fn reserve(permit: &mut Option<OwnedSemaphorePermit>, budget: &Arc<Semaphore>, bytes: u32) -> Result<(), Failure> {
    let more = Arc::clone(budget).try_acquire_many_owned(bytes).map_err(|_| Failure::NodeBusy)?;
    match permit {
        Some(permit) => permit.merge(more),
        None => *permit = Some(more),
    }
    Ok(())
}

impl Pump {
    /// Copies until the end of the body, or until the model stops reading. Dropping the pump closes the socket.
    ///
    /// # Errors
    /// The client's side broke, or sent more than the limit.
    pub async fn run(mut self) -> Result<(), Failure> {
        let mut length = 0_u64;
        while let Some(frame) = self.body.frame().await {
            let frame = frame.map_err(|error| Failure::BadRequest(format!("the request's body broke off: {error}")))?;
            let Ok(data) = frame.into_data() else { continue };
            length += data.len() as u64;
            if length > self.limit {
                return Err(Failure::BodyTooLarge { limit: self.limit });
            }
            if self.to.write_all(&data).await.is_err() {
                return self.discard(length).await; // the model has read enough; its answer counts
            }
        }
        let _ = self.to.read(&mut [0]).await; // a model that has closed its end needs no end of ours
        Ok(())
    }

    /// Reads the rest, so that a client which writes before it reads gets its answer.
    async fn discard(mut self, mut length: u64) -> Result<(), Failure> {
        while let Some(Ok(frame)) = self.body.frame().await {
            length += frame.data_ref().map_or(0, |data| data.len() as u64);
            if length > self.limit {
                return Err(Failure::BodyTooLarge { limit: self.limit });
            }
        }
        Ok(())
    }
}
