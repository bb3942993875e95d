//! Envelope of the Workers AI dialect around a JSON value:
//! `{"result": …, "success": …, "errors": […], "messages": []}`.

use crate::code_of_handler;
use bytes::{BufMut, Bytes, BytesMut};
use omni_codec::event::put_json;
use serde::Serialize;

/// Longest value that is copied into one buffer with its envelope.
const JOIN: usize = 64 * 1024;
const BEFORE: &[u8] = b"{\"result\":";
const AFTER: &[u8] = b",\"success\":true,\"errors\":[],\"messages\":[]}";

/// Value in its envelope.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Envelope {
    /// A single buffer.
    Joined(Bytes),
    /// Envelope before the value, value, envelope after it.
    Pieces([Bytes; 3]),
}

/// The envelope around one JSON value. A status of 400 or more is reported as a failure, which the value describes. A small value is
/// copied, unless its memory `counts` against a budget for as long as it lives.
#[must_use]
pub fn envelope(status: u16, json: Bytes, counts: bool) -> Envelope {
    let after = if status < 400 {
        Bytes::from_static(AFTER)
    } else {
        let code = code_of_handler(status);
        let error = format!("{{\"code\":{code},\"message\":\"the model answered with status {status}\"}}");
        Bytes::from(format!(",\"success\":false,\"errors\":[{error}],\"messages\":[]}}"))
    };
    if counts || json.len() > JOIN {
        return Envelope::Pieces([Bytes::from_static(BEFORE), json, after]);
    }
    let mut joined = BytesMut::with_capacity(BEFORE.len() + json.len() + after.len());
    joined.extend_from_slice(BEFORE);
    joined.extend_from_slice(&json);
    joined.extend_from_slice(&after);
    Envelope::Joined(joined.freeze())
}

/// A value in the envelope of a success.
pub(crate) fn enveloped(value: &impl Serialize) -> Bytes {
    let mut out = BytesMut::new();
    put_enveloped(value, &mut out);
    out.freeze()
}

/// Puts a value in the envelope of a success.
pub(crate) fn put_enveloped(value: &impl Serialize, out: &mut BytesMut) {
    out.put_slice(BEFORE);
    put_json(value, out);
    out.put_slice(AFTER);
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn joined(envelope: Envelope) -> Vec<u8> {
        match envelope {
            Envelope::Joined(bytes) => bytes.to_vec(),
            Envelope::Pieces(pieces) => pieces.concat(),
        }
    }

    fn enveloped(status: u16, json: &'static [u8]) -> Value {
        serde_json::from_slice(&joined(envelope(status, Bytes::from_static(json), false))).unwrap()
    }

    #[test]
    fn a_status_of_400_or_more_is_reported_as_a_failure_with_the_value() {
        assert_eq!(enveloped(399, b"[1]"), json!({ "result": [1], "success": true, "errors": [], "messages": [] }));
        for (status, code) in [(400, 5004), (422, 5004), (429, 3040), (500, 3043), (504, 3007), (599, 3043)] {
            let message = format!("the model answered with status {status}");
            let errors = json!([{ "code": code, "message": message }]);
            let expected = json!({ "result": { "d": "é" }, "success": false, "errors": errors, "messages": [] });
            assert_eq!(enveloped(status, "{\"d\":\"é\"}".as_bytes()), expected);
        }
        let large = Bytes::from(format!("\"{}\"", "x".repeat(JOIN)));
        let body: Value = serde_json::from_slice(&joined(envelope(503, large, false))).unwrap();
        assert_eq!((&body["success"], body["result"].as_str().unwrap().len()), (&json!(false), JOIN));
    }
}
