//! A streamed answer between the model's task, which fills it, and the client's connection, which empties it.
//!
//! Chunks are rendered when they arrive and joined while the client is slow, so a burst of small events costs one
//! write. What always holds: the unread part never exceeds the credit that the model has ([`INITIAL_CREDIT`]); a model
//! that sends more breaks the wire.

use bytes::{BufMut, Bytes, BytesMut};
use omni_engine_protocol::frame::{HEADER, INITIAL_CREDIT, flags};
use std::borrow::Cow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// How a stream's chunks become bytes for the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// Server-sent events.
    Events,
    /// Bytes as they are.
    Bytes,
}

/// The maker of a stream's events so far: of text and JSON the node makes them, bytes are the model's own.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Maker {
    /// All are the node's, or there is none.
    #[default]
    Node,
    /// Some are the node's, some the model's.
    Both,
    /// All are the model's.
    Model,
}

/// How a stream ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// The model said so.
    Complete,
    /// It failed on the way; the message is for the client.
    Failed(Cow<'static, str>),
}

/// A chunk that the model may not send.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadChunk {
    /// More than the credit.
    #[error("the model sent more of a stream than its credit")]
    OverCredit,
    /// Content that does not fit the stream, or is not what its flags say.
    #[error("the model sent a chunk that is not what its flags say")]
    Content,
}

#[derive(Debug, Default)]
struct Shared {
    unread: BytesMut,
    /// Credit that the unread part took.
    unread_cost: usize,
    maker: Option<Maker>,
    end: Option<End>,
    waker: Option<Waker>,
}

/// The filling end; owned by the model's task.
#[derive(Debug)]
pub struct Filler {
    shape: Shape,
    shared: Arc<Mutex<Shared>>,
}

/// The emptying end; owned by the client's response body.
#[derive(Debug)]
pub struct Reader {
    shape: Shape,
    shared: Arc<Mutex<Shared>>,
}

/// What the reader finds.
#[derive(Debug, PartialEq, Eq)]
pub enum Read {
    /// Bytes for the client; the model gets that much credit back.
    Data(Bytes, usize),
    /// Nothing will follow.
    End(End),
}

/// Both ends of a new stream.
#[must_use]
pub fn stream(shape: Shape) -> (Filler, Reader) {
    let shared = Arc::new(Mutex::new(Shared::default()));
    (Filler { shape, shared: Arc::clone(&shared) }, Reader { shape, shared })
}

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Filler {
    /// Takes one chunk of the model.
    ///
    /// # Errors
    /// [`BadChunk`]: the model broke the wire.
    pub fn chunk(&self, flags: u8, payload: &[u8]) -> Result<(), BadChunk> {
        let mut shared = lock(&self.shared);
        shared.unread_cost += payload.len() + HEADER;
        if shared.unread_cost > INITIAL_CREDIT + HEADER {
            return Err(BadChunk::OverCredit);
        }
        let maker = match (self.shape, flags & flags::CONTENT) {
            (Shape::Events, flags::TEXT) => {
                text_event(payload, &mut shared.unread)?;
                Maker::Node
            }
            (Shape::Events, flags::JSON) => {
                json_event(payload, &mut shared.unread)?;
                Maker::Node
            }
            (Shape::Events | Shape::Bytes, flags::BYTES) => {
                shared.unread.put_slice(payload);
                Maker::Model
            }
            (Shape::Events | Shape::Bytes, _) => return Err(BadChunk::Content),
        };
        let before = shared.maker.unwrap_or(maker);
        shared.maker = Some(if before == maker { maker } else { Maker::Both });
        wake(shared);
        Ok(())
    }

    /// The stream is over; the first end counts.
    pub fn end(&self, end: End) {
        let mut shared = lock(&self.shared);
        shared.end.get_or_insert(end);
        wake(shared);
    }
}

impl Drop for Filler {
    fn drop(&mut self) {
        self.end(End::Failed("the model's instance died".into()));
    }
}

fn wake(mut shared: MutexGuard<'_, Shared>) {
    let waker = shared.waker.take();
    drop(shared);
    if let Some(waker) = waker {
        waker.wake();
    }
}

impl Reader {
    /// How the chunks are rendered.
    #[must_use]
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// The maker of what has come, read or not.
    #[must_use]
    pub fn maker(&self) -> Maker {
        lock(&self.shared).maker.unwrap_or_default()
    }

    /// Everything that came since the last call, or the end.
    pub fn poll_read(&mut self, context: &mut Context<'_>) -> Poll<Read> {
        let mut shared = lock(&self.shared);
        if !shared.unread.is_empty() {
            let cost = std::mem::take(&mut shared.unread_cost);
            return Poll::Ready(Read::Data(shared.unread.split().freeze(), cost));
        }
        if let Some(end) = shared.end.clone() {
            return Poll::Ready(Read::End(end));
        }
        shared.waker = Some(context.waker().clone());
        Poll::Pending
    }
}

/// `data: {"response": "…"}`, as Workers AI streams text.
fn text_event(text: &[u8], out: &mut BytesMut) -> Result<(), BadChunk> {
    let text = std::str::from_utf8(text).map_err(|_| BadChunk::Content)?;
    out.put_slice(b"data: {\"response\":");
    serde_json::to_writer((&mut *out).writer(), text).map_err(|_| BadChunk::Content)?;
    out.put_slice(b"}\n\n");
    Ok(())
}

/// `data: <json>` on one line, which JSON always fits: a line end inside a string is escaped.
fn json_event(json: &[u8], out: &mut BytesMut) -> Result<(), BadChunk> {
    let value: &serde_json::value::RawValue = serde_json::from_slice(json).map_err(|_| BadChunk::Content)?;
    out.put_slice(b"data: ");
    out.extend(value.get().bytes().map(|byte| if matches!(byte, b'\n' | b'\r') { b' ' } else { byte }));
    out.put_slice(b"\n\n");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(reader: &mut Reader) -> Poll<Read> {
        reader.poll_read(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn chunks_become_events_and_join() {
        let (filler, mut reader) = stream(Shape::Events);
        filler.chunk(flags::TEXT, "to\"ken\n".as_bytes()).unwrap();
        filler.chunk(flags::JSON, b"{\"n\":\n1}").unwrap();
        let Poll::Ready(Read::Data(data, cost)) = read(&mut reader) else { panic!("nothing to read") };
        assert_eq!(&data[..], b"data: {\"response\":\"to\\\"ken\\n\"}\n\ndata: {\"n\": 1}\n\n");
        assert_eq!(cost, 7 + 8 + 2 * HEADER);
        assert_eq!(read(&mut reader), Poll::Pending);
        filler.end(End::Complete);
        assert_eq!(read(&mut reader), Poll::Ready(Read::End(End::Complete)));
    }

    #[test]
    fn bytes_among_events_are_the_models_own() {
        let (filler, mut reader) = stream(Shape::Events);
        assert_eq!(reader.maker(), Maker::Node);
        filler.chunk(flags::BYTES, b": ping\n\nevent: a\nda").unwrap();
        assert_eq!(reader.maker(), Maker::Model);
        filler.chunk(flags::BYTES, b"ta: 1\n\n").unwrap();
        assert_eq!(reader.maker(), Maker::Model);
        let Poll::Ready(Read::Data(data, _)) = read(&mut reader) else { panic!("nothing to read") };
        assert_eq!(&data[..], b": ping\n\nevent: a\ndata: 1\n\n");
        filler.chunk(flags::JSON, b"2").unwrap();
        assert_eq!(reader.maker(), Maker::Both);
        let (filler, reader) = stream(Shape::Bytes);
        assert_eq!(filler.chunk(flags::TEXT, b"x"), Err(BadChunk::Content));
        assert_eq!(reader.maker(), Maker::Node);
    }

    #[test]
    fn credit_bounds_what_lies_unread() {
        let (filler, mut reader) = stream(Shape::Bytes);
        let chunk = vec![0; INITIAL_CREDIT - HEADER];
        filler.chunk(flags::BYTES, &chunk).unwrap();
        assert_eq!(filler.chunk(flags::BYTES, b"more"), Err(BadChunk::OverCredit));
        assert!(matches!(read(&mut reader), Poll::Ready(Read::Data(_, _))));
    }

    #[test]
    fn what_is_not_what_its_flags_say_breaks_the_wire() {
        let (filler, _reader) = stream(Shape::Events);
        for (flags, payload) in
            [(flags::TEXT, &b"\xff"[..]), (flags::JSON, b"{"), (flags::EVENTS, b"x"), (flags::JSON, b"1 2")]
        {
            assert_eq!(filler.chunk(flags, payload), Err(BadChunk::Content), "{payload:?}");
        }
    }

    #[test]
    fn a_filler_that_vanishes_ends_the_stream_as_failed() {
        let (filler, mut reader) = stream(Shape::Events);
        drop(filler);
        assert!(matches!(read(&mut reader), Poll::Ready(Read::End(End::Failed(_)))));
    }
}
