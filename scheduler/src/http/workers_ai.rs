//! Workers AI dialect: the envelope around a JSON value, and streams as server-sent events.
//!
//! | content | rendered as |
//! | --- | --- |
//! | JSON | `{"result": …, "success": …, "errors": […], "messages": []}` |
//! | chunk of text | `data: {"response": "…"}` |
//! | chunk of JSON | `data: …` |
//! | bytes | as they are |
//! | end of events | `data: [DONE]`, or `data: {"error": {"message": …}}` |

use super::answer::AnswerBody;
use bytes::{BufMut, Bytes, BytesMut};
use omni_engine_client::{Chunk, Chunks, StreamKind};
use omni_workers_ai::code_of_handler;
use std::borrow::Cow;

/// Longest value that is copied into one buffer with its envelope.
const JOIN: usize = 64 * 1024;
/// Bytes around a chunk of text, which are more than those around a chunk of JSON.
const EVENT_OVERHEAD: usize = b"data: {\"response\":\"\"}\n\n".len();
const BEFORE: &[u8] = b"{\"result\":";
const AFTER: &[u8] = b",\"success\":true,\"errors\":[],\"messages\":[]}";

/// The envelope around one JSON value. A status of 400 or more is reported as a failure, which the value describes. A small value is
/// copied, unless its memory `counts` against a budget for as long as it lives.
#[must_use]
pub fn envelope(status: u16, json: Bytes, counts: bool) -> AnswerBody {
    let after = if status < 400 {
        Bytes::from_static(AFTER)
    } else {
        let code = code_of_handler(status);
        let error = format!("{{\"code\":{code},\"message\":\"the model answered with status {status}\"}}");
        Bytes::from(format!(",\"success\":false,\"errors\":[{error}],\"messages\":[]}}"))
    };
    if counts || json.len() > JOIN {
        return AnswerBody::Pieces([Bytes::from_static(BEFORE), json, after]);
    }
    let mut joined = BytesMut::with_capacity(BEFORE.len() + json.len() + after.len());
    joined.extend_from_slice(BEFORE);
    joined.extend_from_slice(&json);
    joined.extend_from_slice(&after);
    AnswerBody::full(joined.freeze())
}

/// Renderer of a stream's events so far: text and JSON are rendered here, bytes are events that the model has rendered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Renderer {
    /// All events were rendered here.
    Node,
    /// Some events were rendered here, some by the model.
    Both,
    /// All events were rendered by the model.
    Model,
}

/// Encoder of one stream, from typed chunks to the bytes of the response.
#[derive(Debug)]
pub struct StreamEncoder {
    kind: StreamKind,
    /// `None` until the first chunk.
    renderer: Option<Renderer>,
}

impl StreamEncoder {
    /// Makes the encoder of a stream of this kind.
    #[must_use]
    pub fn new(kind: StreamKind) -> Self {
        Self { kind, renderer: None }
    }

    /// Renders chunks for the client.
    #[must_use]
    pub fn encode(&mut self, chunks: Chunks) -> Bytes {
        let chunks = match chunks.into_bytes() {
            Ok(bytes) => {
                self.note(Renderer::Model);
                return bytes;
            }
            Err(chunks) => chunks,
        };
        let mut out = BytesMut::with_capacity(chunks.byte_length() + chunks.count() * EVENT_OVERHEAD);
        for chunk in chunks.iter() {
            self.note(match chunk {
                Chunk::Text(_) | Chunk::Json(_) => Renderer::Node,
                Chunk::Bytes(_) => Renderer::Model,
            });
            match chunk {
                Chunk::Text(text) => put_text(text, &mut out),
                Chunk::Json(json) => put_json(json, &mut out),
                Chunk::Bytes(bytes) => out.put_slice(bytes),
            }
        }
        out.freeze()
    }

    fn note(&mut self, renderer: Renderer) {
        let before = self.renderer.unwrap_or(renderer);
        self.renderer = Some(if before == renderer { renderer } else { Renderer::Both });
    }

    /// Renders the end of a stream, which is complete or has failed with a message: the last bytes for the client, if there are any.
    ///
    /// # Errors
    /// The message: the connection has to be cut, since nothing else shows the client that bytes are missing.
    pub fn finish(&self, end: Result<(), Cow<'static, str>>) -> Result<Option<Bytes>, Cow<'static, str>> {
        match (self.kind, end) {
            // A model that renders its events has an event of its own for the end.
            (StreamKind::Events, Ok(())) if self.renderer == Some(Renderer::Model) => Ok(None),
            (StreamKind::Events, Ok(())) => Ok(Some(Bytes::from_static(b"data: [DONE]\n\n"))),
            (StreamKind::Events, Err(message)) => {
                let all_by_node = self.renderer.is_none_or(|renderer| renderer == Renderer::Node);
                // Ends the last event of the model, which may be unfinished.
                let before = if all_by_node { "" } else { "\n\n" };
                let event = format!("{before}data: {}\n\n", serde_json::json!({ "error": { "message": message } }));
                Ok(Some(Bytes::from(event)))
            }
            (StreamKind::Bytes, Ok(())) => Ok(None),
            (StreamKind::Bytes, Err(message)) => Err(message),
        }
    }
}

fn put_text(text: &str, out: &mut BytesMut) {
    out.put_slice(b"data: {\"response\":");
    let _ = serde_json::to_writer((&mut *out).writer(), text); // writing to memory does not fail
    out.put_slice(b"}\n\n");
}

/// Puts a value on one line. Line ends between tokens become spaces; inside a string JSON escapes them.
fn put_json(json: &str, out: &mut BytesMut) {
    out.put_slice(b"data: ");
    out.extend(json.bytes().map(|byte| if matches!(byte, b'\n' | b'\r') { b' ' } else { byte }));
    out.put_slice(b"\n\n");
}

#[cfg(test)]
mod tests {
    use super::*;
    use omni_engine_client::{StreamRead, stream};
    use omni_engine_protocol::frame::flags;
    use serde_json::{Value, json};
    use std::task::{Context, Poll, Waker};

    /// Encodes these chunks: the bytes for the client, and the encoder.
    fn encoded(kind: StreamKind, chunks: &[(u8, &[u8])]) -> (String, StreamEncoder) {
        let (writer, mut reader) = stream(kind);
        let mut encoder = StreamEncoder::new(kind);
        let mut got = Vec::new();
        for (flags, payload) in chunks {
            writer.push(*flags, payload).unwrap();
        }
        if let Poll::Ready(StreamRead::Chunks(chunks)) = reader.poll_read(&mut Context::from_waker(Waker::noop())) {
            got.extend_from_slice(&encoder.encode(chunks));
        }
        (String::from_utf8(got).unwrap(), encoder)
    }

    fn last(encoder: &StreamEncoder, end: Result<(), &'static str>) -> Option<String> {
        let last = encoder.finish(end.map_err(Cow::Borrowed)).unwrap();
        last.map(|last| String::from_utf8(last.to_vec()).unwrap())
    }

    #[test]
    fn text_and_json_become_events() {
        let chunks: [(u8, &[u8]); 2] = [(flags::TEXT, b"to\"ken\n"), (flags::JSON, b"{\"n\":\n1}")];
        let (got, encoder) = encoded(StreamKind::Events, &chunks);
        assert_eq!(got, "data: {\"response\":\"to\\\"ken\\n\"}\n\ndata: {\"n\": 1}\n\n");
        assert_eq!(last(&encoder, Ok(())).unwrap(), "data: [DONE]\n\n");
        assert_eq!(last(&encoder, Err("gone")).unwrap(), "data: {\"error\":{\"message\":\"gone\"}}\n\n");
    }

    #[test]
    fn events_rendered_by_the_model_are_passed_through() {
        let own: [(u8, &[u8]); 2] = [(flags::BYTES, b": ping\n\nevent: a\nda"), (flags::BYTES, b"ta: 1\n\n")];
        let (got, encoder) = encoded(StreamKind::Events, &own);
        assert_eq!(got, ": ping\n\nevent: a\ndata: 1\n\n");
        assert_eq!(last(&encoder, Ok(())), None, "the model ends its events itself");
        assert_eq!(last(&encoder, Err("gone")).unwrap(), "\n\ndata: {\"error\":{\"message\":\"gone\"}}\n\n");
    }

    #[test]
    fn a_stream_with_events_of_both_ends_like_one_of_the_node() {
        let (_, encoder) = encoded(StreamKind::Events, &[(flags::BYTES, b"data: 1\n\n"), (flags::JSON, b"2")]);
        assert_eq!(last(&encoder, Ok(())).unwrap(), "data: [DONE]\n\n");
        assert!(last(&encoder, Err("gone")).unwrap().starts_with("\n\ndata: "));
    }

    #[test]
    fn a_failed_byte_stream_cuts_the_connection() {
        let (got, encoder) = encoded(StreamKind::Bytes, &[(flags::BYTES, b"abc")]);
        assert_eq!((got.as_str(), encoder.finish(Ok(()))), ("abc", Ok(None)));
        assert_eq!(encoder.finish(Err("gone".into())), Err("gone".into()));
    }

    fn enveloped(status: u16, json: &'static [u8]) -> Value {
        serde_json::from_slice(&envelope(status, Bytes::from_static(json), false).bytes().unwrap()).unwrap()
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
        let body: Value = serde_json::from_slice(&envelope(503, large, false).bytes().unwrap()).unwrap();
        assert_eq!((&body["success"], body["result"].as_str().unwrap().len()), (&json!(false), JOIN));
    }
}
