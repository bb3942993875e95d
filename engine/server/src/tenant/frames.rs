//! Frames of answers.

use super::request::Refused;
use omni_engine_protocol::frame::{ErrorBody, ErrorOrigin, Header, Kind};
use serde::Serialize;

/// A whole frame.
pub(super) fn frame(kind: Kind, flags: u8, code: u16, id: u64, payload: &[u8]) -> Vec<u8> {
    // Payloads are bounded far below 4 GiB by their kinds.
    let length = u32::try_from(payload.len()).unwrap_or(u32::MAX);
    let mut bytes = Vec::with_capacity(16 + payload.len());
    bytes.extend_from_slice(&Header { length, kind, flags, code, id }.encode());
    bytes.extend_from_slice(payload);
    bytes
}

/// A frame with JSON.
pub(super) fn json(kind: Kind, flags: u8, code: u16, id: u64, value: &impl Serialize) -> Vec<u8> {
    frame(kind, flags, code, id, &serde_json::to_vec(value).unwrap_or_default())
}

/// The last frame of a request that is refused or has failed.
pub(super) fn refusal(id: u64, refused: &Refused) -> Vec<u8> {
    let body = ErrorBody {
        message: refused.message.clone(),
        parameter: refused.parameter.map(str::to_owned),
        code: refused.code.map(str::to_owned),
    };
    json(Kind::Error, ErrorOrigin::Handler as u8, refused.status, id, &body)
}

/// The last frame of a request that was cancelled.
pub(super) fn cancelled(id: u64, status: u16) -> Vec<u8> {
    let body = ErrorBody { message: "the request was cancelled".to_owned(), ..ErrorBody::default() };
    json(Kind::Error, ErrorOrigin::Cancelled as u8, status, id, &body)
}
