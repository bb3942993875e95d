//! Chunks of a streamed response with their types, which a dialect renders for the client.

use bytes::{BufMut, Bytes, BytesMut};

/// Kind of a stream, as the engine announced it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamKind {
    /// Events: text, JSON values, or bytes of events that the model has rendered itself.
    Events,
    /// Bytes as they are.
    Bytes,
    /// Generated text: text, bytes of text, or events of its generation.
    Generation,
}

/// Type of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ChunkKind {
    /// Text, a token for example.
    Text,
    /// JSON value.
    Json,
    /// Bytes as they are.
    Bytes,
    /// Bytes of one piece of text.
    Piece,
    /// Event of a generation.
    Event,
}

/// A chunk, as the engine sent it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Chunk<'a> {
    /// Text, a token for example.
    Text(&'a str),
    /// JSON value.
    Json(&'a str),
    /// Bytes as they are. Neighbours are joined.
    Bytes(&'a [u8]),
    /// Bytes of one piece of text; characters may be split over pieces.
    Piece(&'a [u8]),
    /// Event of a generation, JSON; not checked.
    Event(&'a [u8]),
}

/// Chunks in one buffer, in order.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Chunks {
    bytes: Bytes,
    parts: Vec<Part>,
    cost: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Part {
    kind: ChunkKind,
    length: u32,
}

/// Buffer of chunks that were not read yet.
#[derive(Debug, Default)]
pub struct ChunkBuffer {
    bytes: BytesMut,
    parts: Vec<Part>,
    cost: usize,
}

impl ChunkBuffer {
    /// Adds the cost of a chunk to that of all unread chunks, and returns the sum.
    pub fn add_cost(&mut self, cost: usize) -> usize {
        self.cost += cost;
        self.cost
    }

    /// Appends a text.
    pub fn push_text(&mut self, text: &str) {
        self.push(ChunkKind::Text, text.as_bytes());
    }

    /// Appends a JSON value.
    pub fn push_json(&mut self, json: &str) {
        self.push(ChunkKind::Json, json.as_bytes());
    }

    /// Appends bytes.
    pub fn push_bytes(&mut self, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.push(ChunkKind::Bytes, bytes);
        }
    }

    /// Appends bytes of one piece of text.
    pub fn push_piece(&mut self, bytes: &[u8]) {
        self.push(ChunkKind::Piece, bytes);
    }

    /// Appends an event of a generation.
    pub fn push_event(&mut self, json: &[u8]) {
        self.push(ChunkKind::Event, json);
    }

    /// Returns whether there is nothing to read.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Takes all unread chunks.
    pub fn take(&mut self) -> Chunks {
        let (parts, cost) = (std::mem::take(&mut self.parts), std::mem::take(&mut self.cost));
        Chunks { bytes: self.bytes.split().freeze(), parts, cost }
    }

    fn push(&mut self, kind: ChunkKind, bytes: &[u8]) {
        self.bytes.put_slice(bytes);
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX); // frames are bounded far below
        match self.parts.last_mut() {
            Some(last) if kind == ChunkKind::Bytes && last.kind == ChunkKind::Bytes => last.length += length,
            Some(_) | None => self.parts.push(Part { kind, length }),
        }
    }
}

impl Chunks {
    /// Credit that the engine gets back for them.
    #[must_use]
    pub fn cost(&self) -> usize {
        self.cost
    }

    /// Number of chunks.
    #[must_use]
    pub fn count(&self) -> usize {
        self.parts.len()
    }

    /// Length of all chunks together, in bytes.
    #[must_use]
    pub fn byte_length(&self) -> usize {
        self.bytes.len()
    }

    /// The chunks, one after the other.
    pub fn iter(&self) -> impl Iterator<Item = Chunk<'_>> {
        let mut rest = &*self.bytes;
        self.parts.iter().map(move |part| {
            let (bytes, after) = rest.split_at_checked(part.length as usize).unwrap_or((rest, &[]));
            rest = after;
            let text = || str::from_utf8(bytes).unwrap_or_default(); // pushed as text
            match part.kind {
                ChunkKind::Text => Chunk::Text(text()),
                ChunkKind::Json => Chunk::Json(text()),
                ChunkKind::Bytes => Chunk::Bytes(bytes),
                ChunkKind::Piece => Chunk::Piece(bytes),
                ChunkKind::Event => Chunk::Event(bytes),
            }
        })
    }

    /// Takes the bytes of all chunks without a copy, if none of them needs rendering.
    ///
    /// # Errors
    /// The chunks, when there is one.
    pub fn into_bytes(self) -> Result<Bytes, Self> {
        if self.parts.iter().all(|part| part.kind == ChunkKind::Bytes) { Ok(self.bytes) } else { Err(self) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_keep_order_and_type_and_neighbouring_bytes_are_joined() {
        let mut buffer = ChunkBuffer::default();
        buffer.push_text("é");
        buffer.push_bytes(b"a");
        buffer.push_bytes(b"");
        buffer.push_bytes(b"b");
        buffer.push_json("{}");
        buffer.push_text("");
        assert_eq!(buffer.add_cost(7), 7);
        let chunks = buffer.take();
        let expected = [Chunk::Text("é"), Chunk::Bytes(b"ab"), Chunk::Json("{}"), Chunk::Text("")];
        assert_eq!(chunks.iter().collect::<Vec<_>>(), expected);
        assert_eq!((chunks.cost(), chunks.count(), chunks.byte_length()), (7, 4, 6));
        assert!(chunks.into_bytes().is_err());
        assert!(buffer.is_empty() && buffer.take() == Chunks::default());
        buffer.push_bytes(b"only");
        assert_eq!(buffer.take().into_bytes().unwrap(), "only");
    }
}
