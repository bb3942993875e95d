//! Streams as server-sent events of the Workers AI dialect.
//!
//! | content | rendered as |
//! | --- | --- |
//! | chunk of text | `data: {"response": "…"}` |
//! | chunk of JSON | `data: …` |
//! | bytes | as they are |
//! | end of events | `data: [DONE]`, or `data: {"error": {"message": …}}` |

use bytes::{BufMut, Bytes, BytesMut};
use omni_body::{Chunk, Chunks, StreamKind};
use std::borrow::Cow;

/// Bytes around a chunk of text, which are more than those around a chunk of JSON.
const EVENT_OVERHEAD: usize = b"data: {\"response\":\"\"}\n\n".len();

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
                Chunk::Bytes(_) | Chunk::Piece(_) | Chunk::Event(_) => Renderer::Model,
            });
            match chunk {
                Chunk::Text(text) => put_text(text, &mut out),
                Chunk::Json(json) => put_json(json, &mut out),
                Chunk::Bytes(bytes) | Chunk::Piece(bytes) | Chunk::Event(bytes) => out.put_slice(bytes),
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
            (StreamKind::Bytes | StreamKind::Generation, Ok(())) => Ok(None),
            (StreamKind::Bytes | StreamKind::Generation, Err(message)) => Err(message),
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
    use omni_body::ChunkBuffer;

    /// Encodes these chunks: the bytes for the client, and the encoder.
    fn encoded(kind: StreamKind, chunks: &[Chunk<'_>]) -> (String, StreamEncoder) {
        let (mut buffer, mut encoder) = (ChunkBuffer::default(), StreamEncoder::new(kind));
        for chunk in chunks {
            match chunk {
                Chunk::Text(text) => buffer.push_text(text),
                Chunk::Json(json) => buffer.push_json(json),
                Chunk::Bytes(bytes) => buffer.push_bytes(bytes),
                Chunk::Piece(_) | Chunk::Event(_) => unreachable!("chunks of generated text"),
            }
        }
        let got = if buffer.is_empty() { Bytes::new() } else { encoder.encode(buffer.take()) };
        (String::from_utf8(got.to_vec()).unwrap(), encoder)
    }

    fn last(encoder: &StreamEncoder, end: Result<(), &'static str>) -> Option<String> {
        let last = encoder.finish(end.map_err(Cow::Borrowed)).unwrap();
        last.map(|last| String::from_utf8(last.to_vec()).unwrap())
    }

    #[test]
    fn text_and_json_become_events() {
        let chunks = [Chunk::Text("to\"ken\n"), Chunk::Json("{\"n\":\n1}")];
        let (got, encoder) = encoded(StreamKind::Events, &chunks);
        assert_eq!(got, "data: {\"response\":\"to\\\"ken\\n\"}\n\ndata: {\"n\": 1}\n\n");
        assert_eq!(last(&encoder, Ok(())).unwrap(), "data: [DONE]\n\n");
        assert_eq!(last(&encoder, Err("gone")).unwrap(), "data: {\"error\":{\"message\":\"gone\"}}\n\n");
    }

    #[test]
    fn events_rendered_by_the_model_are_passed_through() {
        let own = [Chunk::Bytes(b": ping\n\nevent: a\nda"), Chunk::Bytes(b"ta: 1\n\n")];
        let (got, encoder) = encoded(StreamKind::Events, &own);
        assert_eq!(got, ": ping\n\nevent: a\ndata: 1\n\n");
        assert_eq!(last(&encoder, Ok(())), None, "the model ends its events itself");
        assert_eq!(last(&encoder, Err("gone")).unwrap(), "\n\ndata: {\"error\":{\"message\":\"gone\"}}\n\n");
    }

    #[test]
    fn a_stream_with_events_of_both_ends_like_one_of_the_node() {
        let (_, encoder) = encoded(StreamKind::Events, &[Chunk::Bytes(b"data: 1\n\n"), Chunk::Json("2")]);
        assert_eq!(last(&encoder, Ok(())).unwrap(), "data: [DONE]\n\n");
        assert!(last(&encoder, Err("gone")).unwrap().starts_with("\n\ndata: "));
    }

    #[test]
    fn a_failed_byte_stream_cuts_the_connection() {
        let (got, encoder) = encoded(StreamKind::Bytes, &[Chunk::Bytes(b"abc")]);
        assert_eq!((got.as_str(), encoder.finish(Ok(()))), ("abc", Ok(None)));
        assert_eq!(encoder.finish(Err("gone".into())), Err("gone".into()));
    }
}
