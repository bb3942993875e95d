//! Server-sent events, as far as the run API uses them: the `data` of each event.
//!
//! Used by `run`. Pure: bytes in, texts out. Invariants: an event is returned as soon as its empty line is there,
//! however the bytes were cut; memory is bounded by [`EVENT_LIMIT`].

/// Longest event, in bytes.
pub(crate) const EVENT_LIMIT: usize = 16 << 20;

/// An event longer than [`EVENT_LIMIT`].
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("an event of the stream is longer than {EVENT_LIMIT} bytes")]
pub(crate) struct TooLong;

/// Takes a stream apart.
#[derive(Debug, Default)]
pub(crate) struct Events {
    /// A line whose end has not come.
    line: Vec<u8>,
    /// The `data` of an event whose end has not come.
    data: Option<String>,
}

impl Events {
    /// Takes the next bytes and returns the data of the events that they end.
    pub(crate) fn feed(&mut self, bytes: &[u8]) -> Result<Vec<String>, TooLong> {
        let mut ended = Vec::new();
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            if self.line.len() + self.data.as_ref().map_or(0, String::len) + piece.len() > EVENT_LIMIT {
                return Err(TooLong);
            }
            self.line.extend_from_slice(piece);
            if piece.ends_with(b"\n") {
                let line = std::mem::take(&mut self.line);
                ended.extend(self.end_line(String::from_utf8_lossy(&line).trim_end_matches(['\n', '\r'])));
            }
        }
        Ok(ended)
    }

    fn end_line(&mut self, line: &str) -> Option<String> {
        if line.is_empty() {
            return self.data.take();
        }
        // Comments (`: ping`) and other fields (`event`, `id`) say nothing that is printed.
        let value = line.strip_prefix("data:")?;
        let value = value.strip_prefix(' ').unwrap_or(value);
        match &mut self.data {
            Some(data) => {
                data.push('\n');
                data.push_str(value);
            }
            None => self.data = Some(value.to_owned()),
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_the_same_however_the_bytes_are_cut() {
        let stream =
            "data: {\"response\": \"é\"}\n\n: ping\n\nevent: x\r\ndata:a\r\ndata: b\r\n\r\ndata: [DONE]\n\nrest";
        for size in 1..=stream.len() {
            let mut events = Events::default();
            let data: Vec<String> =
                stream.as_bytes().chunks(size).flat_map(|chunk| events.feed(chunk).unwrap()).collect();
            assert_eq!(data, ["{\"response\": \"é\"}", "a\nb", "[DONE]"], "in pieces of {size}");
        }
    }

    #[test]
    fn an_endless_event_is_refused() {
        let mut events = Events::default();
        assert_eq!(events.feed(&vec![b'x'; EVENT_LIMIT]), Ok(Vec::new()));
        assert_eq!(events.feed(b"x"), Err(TooLong));

        let mut events = Events::default();
        let line = [b"data: ".as_slice(), &vec![b'x'; 1 << 20], b"\n"].concat();
        assert!((0..17).any(|_| events.feed(&line) == Err(TooLong)));
    }
}
