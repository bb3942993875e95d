//! Workers AI dialect: the envelope around a JSON value, and streams as server-sent events.
//!
//! | answer | rendered as |
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

/// Size up to which an envelope is joined to one buffer.
const JOIN: usize = 64 * 1024;
const BEFORE: &[u8] = b"{\"result\":";
const AFTER: &[u8] = b",\"success\":true,\"errors\":[],\"messages\":[]}";

/// The envelope around one JSON value. With a status from 400 on it reports a failure, and the value is the model's
/// account of it. A small value is copied, unless it `counts` as memory for as long as it lives.
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

/// Author of a stream's events so far: text and JSON are rendered here, bytes are events that the model rendered itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EventAuthor {
    /// All were rendered here, or there is none.
    Node,
    /// Some were rendered here, some by the model.
    Both,
    /// All were rendered by the model.
    Model,
}

/// Encoder of one stream.
#[derive(Debug)]
pub struct StreamEncoder {
    kind: StreamKind,
    author: Option<EventAuthor>,
}

impl StreamEncoder {
    /// The encoder of a stream of this kind.
    #[must_use]
    pub fn new(kind: StreamKind) -> Self {
        Self { kind, author: None }
    }

    /// Renders chunks for the client.
    #[must_use]
    pub fn encode(&mut self, chunks: Chunks) -> Bytes {
        let chunks = match chunks.into_bytes() {
            Ok(bytes) => {
                self.note(EventAuthor::Model);
                return bytes;
            }
            Err(chunks) => chunks,
        };
        let mut out = BytesMut::new();
        for chunk in chunks.iter() {
            self.note(match chunk {
                Chunk::Text(_) | Chunk::Json(_) => EventAuthor::Node,
                Chunk::Bytes(_) => EventAuthor::Model,
            });
            match chunk {
                Chunk::Text(text) => put_text(text, &mut out),
                Chunk::Json(json) => put_json(json, &mut out),
                Chunk::Bytes(bytes) => out.put_slice(bytes),
            }
        }
        out.freeze()
    }

    fn note(&mut self, author: EventAuthor) {
        let before = self.author.unwrap_or(author);
        self.author = Some(if before == author { author } else { EventAuthor::Both });
    }

    /// The last bytes for the client, if any, of a stream that is complete or failed with a message.
    ///
    /// # Errors
    /// The message: the connection has to be cut, as nothing else shows the client that bytes are missing.
    pub fn finish(&self, end: Result<(), Cow<'static, str>>) -> Result<Option<Bytes>, Cow<'static, str>> {
        match (self.kind, end) {
            // Clients of a model's own events know their end by one of them.
            (StreamKind::Events, Ok(())) if self.author == Some(EventAuthor::Model) => Ok(None),
            (StreamKind::Events, Ok(())) => Ok(Some(Bytes::from_static(b"data: [DONE]\n\n"))),
            (StreamKind::Events, Err(message)) => {
                let is_own = self.author.is_none_or(|author| author == EventAuthor::Node);
                // The model may have left its last event unfinished.
                let before = if is_own { "" } else { "\n\n" };
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

/// Puts a value on one line, which JSON always fits: a line end inside a string is escaped.
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

    /// What a client gets of these chunks, and the encoder after them.
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
    fn events_that_the_model_rendered_pass_as_they_are() {
        let own: [(u8, &[u8]); 2] = [(flags::BYTES, b": ping\n\nevent: a\nda"), (flags::BYTES, b"ta: 1\n\n")];
        let (got, encoder) = encoded(StreamKind::Events, &own);
        assert_eq!(got, ": ping\n\nevent: a\ndata: 1\n\n");
        assert_eq!(last(&encoder, Ok(())), None, "the model ends its events itself");
        assert_eq!(last(&encoder, Err("gone")).unwrap(), "\n\ndata: {\"error\":{\"message\":\"gone\"}}\n\n");
    }

    #[test]
    fn a_stream_with_events_of_both_ends_as_one_of_the_node() {
        let (_, encoder) = encoded(StreamKind::Events, &[(flags::BYTES, b"data: 1\n\n"), (flags::JSON, b"2")]);
        assert_eq!(last(&encoder, Ok(())).unwrap(), "data: [DONE]\n\n");
        assert!(last(&encoder, Err("gone")).unwrap().starts_with("\n\ndata: "));
    }

    #[test]
    fn a_failed_stream_of_bytes_is_cut() {
        let (got, encoder) = encoded(StreamKind::Bytes, &[(flags::BYTES, b"abc")]);
        assert_eq!((got.as_str(), encoder.finish(Ok(()))), ("abc", Ok(None)));
        assert_eq!(encoder.finish(Err("gone".into())), Err("gone".into()));
    }

    fn enveloped(status: u16, json: &'static [u8]) -> Value {
        serde_json::from_slice(&envelope(status, Bytes::from_static(json), false).bytes().unwrap()).unwrap()
    }

    #[test]
    fn a_status_of_400_or_more_is_a_failure_and_keeps_the_value() {
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
