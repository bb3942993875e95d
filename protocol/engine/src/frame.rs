//! The data wire between scheduler and model process, and the cancel wire beside it.
//!
//! Every frame is a header of 16 bytes, little-endian, and a payload:
//!
//! | bytes | field | meaning |
//! | --- | --- | --- |
//! | 0..4 | length | bytes of payload |
//! | 4 | kind | [`Kind`] |
//! | 5 | flags | content and options, per kind |
//! | 6..8 | code | HTTP status of answers, reason of a cancel, else 0 |
//! | 8..16 | id | the request, unique for the life of the connection |
//!
//! A fixed header instead of JSON: 216,000 against 88,000 frames a second in Python (`docs/decisions`). Where a payload
//! has a *head*, it begins with its length as `u32`, then JSON, then the rest.
//!
//! Every request gets exactly one last frame: `Response`, `End` or `Error`, even when it was cancelled. Chunks of one
//! stream may not exceed the credit that the scheduler gave ([`INITIAL_CREDIT`], then `Credit` frames); a chunk costs
//! its payload and its header, so that many tiny chunks are bounded too.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Bytes of a header.
pub const HEADER: usize = 16;
/// The largest payload a model may send, in bytes. Larger byte answers are streamed; larger JSON is an error.
pub const MAX_ANSWER: usize = 16 * 1024 * 1024;
/// The largest chunk of a stream, in bytes. Half of [`INITIAL_CREDIT`]: credit comes back in quarters, so a chunk of any
/// size can be sent once everything before it was taken.
pub const MAX_CHUNK: usize = 128 * 1024;
/// Largest payload of `Stream`, `Error`, `Health` and `Metrics`, and largest head of an answer.
pub const MAX_SMALL: usize = 64 * 1024;
/// Largest payload of `Usage`: 16 units with the longest names and numbers take 1.5 KiB.
pub const MAX_USAGE: usize = 4 * 1024;
/// Bytes of chunks, headers included, that a model may send on a fresh stream before it needs a `Credit`.
pub const INITIAL_CREDIT: usize = 256 * 1024;
/// Most members of a batch.
pub const MAX_BATCH: usize = 1024;

/// Kind of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// To the model. Head [`RequestHead`], then the body. With [`flags::BODY_STREAM`] a descriptor comes with the
    /// first byte of the frame (a `SOCK_STREAM` socket that ends with the body) and the payload has no body.
    Request = 1,
    /// To the model. Payload `u32`: that many more bytes of chunks may be sent on this stream.
    Credit = 2,
    /// To the model, on the cancel wire only, no payload. `code` is a [`CancelReason`].
    Cancel = 3,
    /// To the model, while it has no request: asks how it is. Answered by `Health` with the same id. With
    /// [`flags::OWN_CHECK`] the model's own `healthcheck` runs, else the engine alone answers.
    Check = 4,
    /// To the model. The requests that follow are one batch: [`batch_payload`]. Their `Request` frames come next on this
    /// connection, in that order, and with nothing between them. The id is the batch's own, of the same numbers as those
    /// of requests. Each member has an answer, a credit and a cancellation of its own. The handler is interrupted once
    /// all members are cancelled; until then the last frame of a cancelled one may come as late as the batch's end. Only
    /// for engines that were started with [`Boot::batches`](crate::control::Boot::batches). With [`flags::ISOLATE`] a batch that
    /// fails as a whole before any of its answers has begun is divided, and each half handled as a batch of its own.
    Batch = 5,
    /// From the model: the whole answer. Flags: [`flags::JSON`], [`flags::BYTES`], or [`flags::TEXT`] for generated text of
    /// at most [`MAX_CHUNK`] bytes; and [`flags::HEAD`] when the payload begins with an [`AnswerHead`]. `code` is the status.
    Response = 16,
    /// From the model: an answer begins that comes in chunks. Payload: JSON [`AnswerHead`] or empty. Flags:
    /// [`flags::EVENTS`], [`flags::BYTES`], or [`flags::EVENT`] for generated text.
    Stream = 17,
    /// From the model: one chunk. In a stream of events flags say [`flags::JSON`] or [`flags::TEXT`], or [`flags::BYTES`]
    /// for events, or parts of some, as the model has made them. In generated text, see
    /// [`generation`](crate::generation).
    Chunk = 18,
    /// From the model: the stream is complete.
    End = 19,
    /// From the model: the request failed. Payload: JSON [`ErrorBody`]; flags: an [`ErrorOrigin`]; `code` the status.
    Error = 20,
    /// From the model, before the last frame and at most once for each request: JSON object of unit and number, added
    /// to the model's usage.
    Usage = 21,
    /// From the model: the answer to `Check`. No payload when it is well, else what is wrong, UTF-8.
    Health = 22,
    /// From the model, at any time: metrics of the engine's own, see [`metrics`](crate::metrics). The id is 0.
    Metrics = 23,
}

impl Kind {
    /// The kind of a byte from the wire.
    #[must_use]
    pub fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Self::Request,
            2 => Self::Credit,
            3 => Self::Cancel,
            4 => Self::Check,
            5 => Self::Batch,
            16 => Self::Response,
            17 => Self::Stream,
            18 => Self::Chunk,
            19 => Self::End,
            20 => Self::Error,
            21 => Self::Usage,
            22 => Self::Health,
            23 => Self::Metrics,
            _ => return None,
        })
    }
}

/// Values of the flags byte. The low four bits say what the content is.
pub mod flags {
    /// Content is one JSON value, UTF-8.
    pub const JSON: u8 = 0;
    /// Content is bytes as they are.
    pub const BYTES: u8 = 1;
    /// Content is UTF-8 text; as an event it becomes `data: {"response": "…"}`.
    pub const TEXT: u8 = 2;
    /// A stream of server-sent events; each chunk is JSON, text, or bytes.
    pub const EVENTS: u8 = 3;
    /// Generated text, as the content of a stream. As that of a chunk in it: one [`GenerationEvent`](crate::generation::GenerationEvent).
    pub const EVENT: u8 = 4;
    /// Mask of the content.
    pub const CONTENT: u8 = 0x0f;
    /// The payload of a response begins with a head.
    pub const HEAD: u8 = 0x10;
    /// The request's body comes through a descriptor.
    pub const BODY_STREAM: u8 = 0x20;
    /// Flag of a check: run the model's own `healthcheck`.
    pub const OWN_CHECK: u8 = 1;
    /// Flag of a batch: divide it if it fails as a whole.
    pub const ISOLATE: u8 = 1;
}

/// Origin of an error; the flags of an `Error` frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ErrorOrigin {
    /// The handler raised an error of its own: status and message go to the client.
    Handler = 0,
    /// The handler raised: the client sees a plain 500, the traceback is in the log.
    Raised = 1,
    /// The handler's result cannot be sent: a plain 500, the reason is in the log.
    Unserialisable = 2,
    /// The handler ended because it was cancelled.
    Cancelled = 3,
}

impl ErrorOrigin {
    /// The origin of a byte from the wire.
    #[must_use]
    pub fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            0 => Self::Handler,
            1 => Self::Raised,
            2 => Self::Unserialisable,
            3 => Self::Cancelled,
            _ => return None,
        })
    }
}

/// Why a request is cancelled; the code of a `Cancel` frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum CancelReason {
    /// The client hung up.
    ClientGone = 1,
    /// The deadline passed.
    Deadline = 2,
    /// The instance is going away.
    Shutdown = 3,
}

/// A frame's first sixteen bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Bytes of payload.
    pub length: u32,
    /// Kind of the frame.
    pub kind: Kind,
    /// See [`flags`].
    pub flags: u8,
    /// Status or reason.
    pub code: u16,
    /// The request.
    pub id: u64,
}

/// Bytes that are no frame. The connection cannot be used further: there is no way to find the next frame.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// No such kind.
    #[error("unknown frame kind {0}")]
    UnknownKind(u8),
    /// A payload over its bound.
    #[error("frame of {length} bytes is over its bound of {bound} bytes")]
    TooLong {
        /// As the header says.
        length: u32,
        /// For this kind.
        bound: usize,
    },
    /// A head longer than its payload, or a payload that is not what the kind says.
    #[error("frame payload is malformed: {0}")]
    Malformed(&'static str),
}

impl Header {
    /// The header as it goes on the wire.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER] {
        let mut out = [0_u8; HEADER];
        out[0..4].copy_from_slice(&self.length.to_le_bytes());
        out[4] = self.kind as u8;
        out[5] = self.flags;
        out[6..8].copy_from_slice(&self.code.to_le_bytes());
        out[8..16].copy_from_slice(&self.id.to_le_bytes());
        out
    }

    /// Reads a header; the length is not yet checked, see [`Header::check_answer`].
    ///
    /// # Errors
    /// [`FrameError::UnknownKind`].
    pub fn decode(bytes: &[u8; HEADER]) -> Result<Self, FrameError> {
        let [l0, l1, l2, l3, kind, flags, c0, c1, i0, i1, i2, i3, i4, i5, i6, i7] = *bytes;
        Ok(Self {
            length: u32::from_le_bytes([l0, l1, l2, l3]),
            kind: Kind::from_byte(kind).ok_or(FrameError::UnknownKind(kind))?,
            flags,
            code: u16::from_le_bytes([c0, c1]),
            id: u64::from_le_bytes([i0, i1, i2, i3, i4, i5, i6, i7]),
        })
    }

    /// Checks what a model may send: a kind of its direction, within its bound.
    ///
    /// # Errors
    /// [`FrameError`] when the model may not send this.
    pub fn check_answer(&self) -> Result<(), FrameError> {
        let bound = match self.kind {
            Kind::Response => MAX_ANSWER,
            Kind::Chunk => MAX_CHUNK,
            Kind::Stream | Kind::Error | Kind::Health | Kind::Metrics => MAX_SMALL,
            Kind::Usage => MAX_USAGE,
            Kind::End => 0,
            Kind::Request | Kind::Credit | Kind::Cancel | Kind::Check | Kind::Batch => {
                return Err(FrameError::UnknownKind(self.kind as u8));
            }
        };
        if self.length as usize > bound {
            return Err(FrameError::TooLong { length: self.length, bound });
        }
        Ok(())
    }
}

/// Kind of a request that the node has read. Requests of other models go to them as they came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RequestKind {
    /// Generated text.
    TextGeneration,
    /// Embeddings of texts.
    Embeddings,
    /// Relevance of documents.
    Rerank,
    /// Transcription of speech.
    SpeechToText,
    /// Speech from text.
    TextToSpeech,
    /// Images from text.
    TextToImage,
    /// Number of tokens of a prompt.
    CountTokens,
}

/// Head of a request, beside its body. Python parses it only when the handler asks for it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct RequestHead {
    /// Kind of a request that the node has read. The first field, so that an engine finds it without parsing the rest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<RequestKind>,
    /// The request id that the client sees.
    pub id: String,
    /// HTTP method.
    pub method: String,
    /// Milliseconds until the deadline, from the moment of sending.
    pub timeout_ms: u64,
    /// Value of `x-session-affinity`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// Lower-case names; credentials and hop-by-hop headers are left out. Several values are joined by ", ".
    pub headers: Vec<(String, String)>,
    /// Length of a streamed body, when it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body_length: Option<u64>,
    /// The body's socket brings its beginning, then one byte more and with it the client's connection: the rest of the
    /// body is there. Only for models that the node's configuration trusts with that.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub body_handed: bool,
    /// Parameters that stand beside a body which is a file: the fields of a form.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameters: Option<Map<String, Value>>,
}

/// Head of an answer that is more than status 200 and JSON.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct AnswerHead {
    /// Value of `content-type`; for bytes the default is `application/octet-stream`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub media_type: Option<String>,
    /// Further headers. The engine refuses those that the scheduler owns; what comes of them all the same is dropped.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<(String, String)>,
    /// Length of a streamed body, when the model knows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub length: Option<u64>,
}

/// Payload of an `Error` frame.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ErrorBody {
    /// For the client when the handler said it, for the log otherwise.
    pub message: String,
    /// Path of the parameter that is wrong, such as `messages[2].content`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameter: Option<String>,
    /// Class of a request that is wrong, for clients that know it by a code: [`CONTEXT_LENGTH`], or one of a later engine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
}

/// Class of a request whose prompt and answer are longer than the model's context.
pub const CONTEXT_LENGTH: &str = "context_length_exceeded";

/// Payload of a `Batch` frame: the ids of its members, `u64` little-endian, from 1 to [`MAX_BATCH`].
///
/// # Errors
/// [`FrameError::Malformed`] when there are none or too many.
pub fn batch_payload(members: &[u64]) -> Result<Vec<u8>, FrameError> {
    if members.is_empty() || members.len() > MAX_BATCH {
        return Err(FrameError::Malformed("a batch has from 1 to 1024 members"));
    }
    Ok(members.iter().flat_map(|id| id.to_le_bytes()).collect())
}

/// Splits a payload that begins with a head into the head's JSON and the rest.
///
/// # Errors
/// [`FrameError::Malformed`] when the head's length does not fit.
pub fn split_head(payload: &[u8]) -> Result<(&[u8], &[u8]), FrameError> {
    let (length, rest) = payload.split_first_chunk::<4>().ok_or(FrameError::Malformed("no head"))?;
    rest.split_at_checked(u32::from_le_bytes(*length) as usize)
        .ok_or(FrameError::Malformed("head is longer than its frame"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_wire_is_fixed() {
        let header = Header {
            length: 0x0102_0304,
            kind: Kind::Response,
            flags: flags::BYTES | flags::HEAD,
            code: 200,
            id: 0x1122_3344_5566_7788,
        };
        assert_eq!(header.encode(), [4, 3, 2, 1, 16, 0x11, 200, 0, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11]);
    }

    #[test]
    fn a_model_may_not_send_what_only_the_scheduler_sends() {
        for kind in [Kind::Request, Kind::Credit, Kind::Cancel, Kind::Check, Kind::Batch] {
            let header = Header { length: 0, kind, flags: 0, code: 0, id: 1 };
            assert_eq!(header.check_answer(), Err(FrameError::UnknownKind(kind as u8)));
        }
    }

    #[test]
    fn a_batch_has_members_within_its_bound() {
        assert_eq!(batch_payload(&[0x0102, 3]).unwrap(), [2, 1, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0]);
        assert!(batch_payload(&[]).is_err());
        assert!(batch_payload(&[1; MAX_BATCH]).is_ok());
        assert!(batch_payload(&[1; MAX_BATCH + 1]).is_err());
    }

    proptest! {
        #[test]
        fn every_header_survives_the_wire(length: u32, kind in prop::sample::select(vec![1_u8, 2, 3, 4, 5, 16, 17, 18, 19, 20, 21, 22, 23]), flags: u8, code: u16, id: u64) {
            let header = Header { length, kind: Kind::from_byte(kind).unwrap(), flags, code, id };
            prop_assert_eq!(Header::decode(&header.encode()), Ok(header));
        }

        #[test]
        fn no_payload_breaks_the_splitter(payload: Vec<u8>) {
            if let Ok((head, rest)) = split_head(&payload) {
                prop_assert_eq!(4 + head.len() + rest.len(), payload.len());
            }
        }
    }
}
