//! A streamed answer between the model's actor, which writes it, and the client's connection, which reads it.
//!
//! Chunks are checked when they arrive and lie in one buffer until they are read, so that a burst of small chunks costs
//! the reader one wake-up and one write.
//!
//! Invariant: unread chunks never exceed the credit that the engine has ([`INITIAL_CREDIT`]); sending more is a
//! violation.

use super::violation::ProtocolViolation;
use omni_body::{ChunkBuffer, Chunks, StreamKind};
use omni_engine_protocol::frame::{HEADER, INITIAL_CREDIT, flags};
use omni_request_error::Failure;
use serde_json::value::RawValue;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// End of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StreamEnd {
    /// The engine ended it.
    Complete,
    /// Broken off.
    Failed(Failure),
}

/// Outcome of a read.
#[derive(Debug, PartialEq, Eq)]
pub enum StreamRead {
    /// Chunks; at least one.
    Chunks(Chunks),
    /// The end.
    End(StreamEnd),
}

#[derive(Debug, Default)]
struct Shared {
    /// Chunks that were not read yet, with the credit that they took.
    unread: ChunkBuffer,
    end: Option<StreamEnd>,
    waker: Option<Waker>,
}

/// Writing end, owned by the model's actor. A stream whose writer is dropped before its end has failed.
#[derive(Debug)]
pub struct StreamWriter {
    kind: StreamKind,
    shared: Arc<Mutex<Shared>>,
}

/// Reading end, owned by the client's response.
#[derive(Debug)]
pub struct StreamReader {
    kind: StreamKind,
    shared: Arc<Mutex<Shared>>,
}

/// Both ends of a new stream.
#[must_use]
pub fn stream(kind: StreamKind) -> (StreamWriter, StreamReader) {
    let shared = Arc::new(Mutex::new(Shared::default()));
    (StreamWriter { kind, shared: Arc::clone(&shared) }, StreamReader { kind, shared })
}

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl StreamWriter {
    /// Appends a chunk with the flags and payload of its frame.
    ///
    /// # Errors
    /// A chunk that the engine may not send.
    pub fn push(&self, flags: u8, payload: &[u8]) -> Result<(), ProtocolViolation> {
        let mut shared = lock(&self.shared);
        if shared.unread.add_cost(payload.len() + HEADER) > INITIAL_CREDIT + HEADER {
            return Err(ProtocolViolation::OverCredit);
        }
        match (self.kind, flags & flags::CONTENT) {
            (StreamKind::Events | StreamKind::Generation, flags::TEXT) => {
                let text = str::from_utf8(payload).map_err(|_| ProtocolViolation::Chunk)?;
                shared.unread.push_text(text);
            }
            (StreamKind::Events, flags::JSON) => {
                let value: &RawValue = serde_json::from_slice(payload).map_err(|_| ProtocolViolation::Chunk)?;
                shared.unread.push_json(value.get());
            }
            (StreamKind::Events | StreamKind::Bytes, flags::BYTES) => shared.unread.push_bytes(payload),
            (StreamKind::Generation, flags::BYTES) => shared.unread.push_piece(payload),
            (StreamKind::Generation, flags::EVENT) => shared.unread.push_event(payload),
            (StreamKind::Events | StreamKind::Bytes | StreamKind::Generation, _) => {
                return Err(ProtocolViolation::Chunk);
            }
        }
        wake(shared);
        Ok(())
    }

    /// Ends the stream; the first end counts.
    pub fn end(&self, end: StreamEnd) {
        let mut shared = lock(&self.shared);
        shared.end.get_or_insert(end);
        wake(shared);
    }
}

impl Drop for StreamWriter {
    fn drop(&mut self) {
        self.end(StreamEnd::Failed(Failure::Died));
    }
}

fn wake(mut shared: MutexGuard<'_, Shared>) {
    let waker = shared.waker.take();
    drop(shared);
    if let Some(waker) = waker {
        waker.wake();
    }
}

impl StreamReader {
    /// Kind of the stream.
    #[must_use]
    pub fn kind(&self) -> StreamKind {
        self.kind
    }

    /// Takes all chunks that arrived since the last read, or the end.
    pub fn poll_read(&mut self, context: &mut Context<'_>) -> Poll<StreamRead> {
        let mut shared = lock(&self.shared);
        if !shared.unread.is_empty() {
            return Poll::Ready(StreamRead::Chunks(shared.unread.take()));
        }
        if let Some(end) = shared.end.clone() {
            return Poll::Ready(StreamRead::End(end));
        }
        shared.waker = Some(context.waker().clone());
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use omni_body::Chunk;

    fn read(reader: &mut StreamReader) -> Poll<StreamRead> {
        reader.poll_read(&mut Context::from_waker(Waker::noop()))
    }

    fn chunks(reader: &mut StreamReader) -> Chunks {
        match read(reader) {
            Poll::Ready(StreamRead::Chunks(chunks)) => chunks,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn chunks_are_read_together_and_keep_their_types() {
        let (writer, mut reader) = stream(StreamKind::Events);
        writer.push(flags::TEXT, b"to\"ken\n").unwrap();
        writer.push(flags::JSON, b" {\"n\":\n1} ").unwrap();
        writer.push(flags::BYTES, b": ping\n").unwrap();
        writer.push(flags::BYTES, b"\n").unwrap();
        let read_chunks = chunks(&mut reader);
        let expected = [Chunk::Text("to\"ken\n"), Chunk::Json("{\"n\":\n1}"), Chunk::Bytes(b": ping\n\n")];
        assert_eq!(read_chunks.iter().collect::<Vec<_>>(), expected);
        assert_eq!(read_chunks.cost(), 7 + 10 + 7 + 1 + 4 * HEADER);
        assert_eq!((read_chunks.count(), read_chunks.byte_length()), (3, 7 + 8 + 8));
        assert!(read_chunks.into_bytes().is_err(), "two of them need rendering");
        assert_eq!(read(&mut reader), Poll::Pending);
        writer.end(StreamEnd::Complete);
        assert_eq!(read(&mut reader), Poll::Ready(StreamRead::End(StreamEnd::Complete)));
    }

    #[test]
    fn bytes_are_joined_and_not_copied_again() {
        let (writer, mut reader) = stream(StreamKind::Bytes);
        writer.push(flags::BYTES, b"ab").unwrap();
        writer.push(flags::BYTES, b"c").unwrap();
        assert_eq!(chunks(&mut reader).into_bytes(), Ok(Bytes::from_static(b"abc")));
        assert_eq!(writer.push(flags::TEXT, b"x"), Err(ProtocolViolation::Chunk));
    }

    #[test]
    fn an_empty_chunk_of_text_is_an_event_too() {
        let (writer, mut reader) = stream(StreamKind::Events);
        writer.push(flags::TEXT, b"").unwrap();
        assert_eq!(chunks(&mut reader).iter().collect::<Vec<_>>(), [Chunk::Text("")]);
    }

    #[test]
    fn credit_bounds_unread_chunks() {
        let (writer, mut reader) = stream(StreamKind::Bytes);
        let chunk = vec![0; INITIAL_CREDIT - HEADER];
        writer.push(flags::BYTES, &chunk).unwrap();
        assert_eq!(writer.push(flags::BYTES, b"more"), Err(ProtocolViolation::OverCredit));
        assert_eq!(chunks(&mut reader).iter().count(), 1);
    }

    #[test]
    fn a_chunk_that_is_not_what_its_flags_say_is_a_violation() {
        let (writer, _reader) = stream(StreamKind::Events);
        for (flags, payload) in
            [(flags::TEXT, &b"\xff"[..]), (flags::JSON, b"{"), (flags::EVENTS, b"x"), (flags::JSON, b"1 2")]
        {
            assert_eq!(writer.push(flags, payload), Err(ProtocolViolation::Chunk), "{payload:?}");
        }
    }

    #[test]
    fn a_dropped_writer_ends_the_stream_as_failed() {
        let (writer, mut reader) = stream(StreamKind::Events);
        drop(writer);
        assert_eq!(read(&mut reader), Poll::Ready(StreamRead::End(StreamEnd::Failed(Failure::Died))));
    }
}
