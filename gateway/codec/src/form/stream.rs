//! Forms that arrive in pieces and are too large for memory: the same bodies as those of [`Form`](super::Form), read as they come.
//!
//! ```text
//! Preamble ─ boundary ─▶ Delimited ─ ␍␊ ─▶ Head ─ ␍␊␍␊ ─▶ Content ─ boundary ─▶ Delimited ─ -- ─▶ Over
//! ```
//!
//! Invariants: what is held between two pieces is at most the longest head or a boundary; time is linear in the body's length.

use super::{LONGEST_HEAD, MOST_PARTS, boundary, head::Head, malformed, split};
use bytes::{Bytes, BytesMut};
use omni_request_error::InvalidRequest;

/// Reader of a form that arrives in pieces. Not used any more after an error.
#[derive(Debug)]
pub struct FormReader {
    delimiter: Vec<u8>,
    buffer: BytesMut,
    state: State,
    parts: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// In front of the first boundary, where anything may be.
    Preamble,
    /// Behind a boundary.
    Delimited,
    /// In the head of a part.
    Head,
    /// Behind a head, whose last line end is that in front of a boundary if the content is empty.
    Begun,
    /// In the content of a part.
    Content,
    /// Behind the last boundary.
    Over,
}

/// Next item of a form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FormEvent {
    /// A part begins.
    Part {
        /// Name of the field.
        field: String,
        /// Name of the file; present for files alone.
        file_name: Option<String>,
    },
    /// Bytes of the part's content.
    Content(Bytes),
    /// The part has ended.
    PartEnd,
}

impl FormReader {
    /// A reader of a body with this `content-type`.
    ///
    /// # Errors
    /// Another media type, or no boundary.
    pub fn new(media_type: &str) -> Result<Self, InvalidRequest> {
        let delimiter = format!("\r\n--{}", boundary(media_type)?).into_bytes();
        // A boundary at the very beginning has no line end in front of it.
        Ok(Self { delimiter, buffer: BytesMut::from(&b"\r\n"[..]), state: State::Preamble, parts: 0 })
    }

    /// Adds a piece of the body. All events are to be taken before the next one.
    pub fn push(&mut self, piece: &[u8]) {
        if self.state != State::Over {
            self.buffer.extend_from_slice(piece);
        }
    }

    /// Takes the next event; `None`: another piece is needed.
    ///
    /// # Errors
    /// The form is out of bounds, or is none.
    pub fn next_event(&mut self) -> Result<Option<FormEvent>, InvalidRequest> {
        loop {
            let before = self.state;
            let event = match self.state {
                State::Preamble => {
                    if self.take_content().1 {
                        self.state = State::Delimited;
                    }
                    None
                }
                State::Delimited => {
                    self.pass_delimiter()?;
                    None
                }
                State::Head => self.take_head()?,
                State::Begun => {
                    self.begin_content();
                    None
                }
                State::Content => {
                    let (content, ended) = self.take_content();
                    if !content.is_empty() {
                        // The boundary is found again, at the beginning of what is left.
                        Some(FormEvent::Content(content))
                    } else if ended {
                        self.state = State::Delimited;
                        Some(FormEvent::PartEnd)
                    } else {
                        None
                    }
                }
                State::Over => return Ok(None),
            };
            if event.is_some() || self.state == before {
                return Ok(event);
            }
        }
    }

    /// Checks that the form was whole.
    ///
    /// # Errors
    /// It was cut off.
    pub fn finish(&self) -> Result<(), InvalidRequest> {
        match self.state {
            State::Over => Ok(()),
            State::Preamble => Err(malformed("its boundary is not there")),
            State::Delimited | State::Head | State::Begun | State::Content => Err(malformed("it is cut off")),
        }
    }

    /// Takes the bytes that are certainly in front of the next boundary, and returns whether that begins behind them. It is taken away
    /// if nothing is in front of it.
    fn take_content(&mut self) -> (Bytes, bool) {
        let is_preamble = self.state == State::Preamble;
        let mut from = 0;
        loop {
            let Some(at) = self.buffer.get(from..).and_then(|rest| rest.iter().position(|byte| *byte == b'\r')) else {
                return (self.buffer.split().freeze(), false);
            };
            let at = from + at;
            let rest = self.buffer.get(at..).unwrap_or_default();
            let length = rest.len().min(self.delimiter.len());
            if rest.get(..length) == self.delimiter.get(..length) {
                let content = self.buffer.split_to(at).freeze();
                let ended = length == self.delimiter.len();
                if ended && (content.is_empty() || is_preamble) {
                    let _ = self.buffer.split_to(length);
                }
                return (content, ended);
            }
            from = at + 1;
        }
    }

    /// Reads what follows a boundary: the end, or padding of the transport and a line end.
    fn pass_delimiter(&mut self) -> Result<(), InvalidRequest> {
        let padding = self.buffer.iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
        let Some(next) = self.buffer.get(padding..padding + 2) else {
            return if padding > LONGEST_HEAD { Err(malformed("it is cut off")) } else { Ok(()) };
        };
        match next {
            b"--" if padding == 0 => {
                self.state = State::Over;
                self.buffer.clear();
            }
            b"\r\n" => {
                let _ = self.buffer.split_to(padding + 2);
                self.state = State::Head;
            }
            _ => return Err(malformed("it is cut off")),
        }
        Ok(())
    }

    fn take_head(&mut self) -> Result<Option<FormEvent>, InvalidRequest> {
        let window = self.buffer.get(..LONGEST_HEAD + 4).unwrap_or(&self.buffer);
        let Some((head, _)) = split(window, b"\r\n\r\n") else {
            return if window.len() == LONGEST_HEAD + 4 {
                Err(malformed(&format!("the head of a part is longer than {LONGEST_HEAD} bytes")))
            } else {
                Ok(None)
            };
        };
        let length = head.len();
        let Head { field, file_name, media_type: _ } = Head::parse(head)?;
        if self.parts == MOST_PARTS {
            return Err(malformed(&format!("it has more than {MOST_PARTS} parts")));
        }
        self.parts += 1;
        let _ = self.buffer.split_to(length + 2);
        self.state = State::Begun;
        Ok(Some(FormEvent::Part { field, file_name }))
    }

    /// Tells an empty content, whose boundary follows at once, from any other.
    fn begin_content(&mut self) {
        let length = self.buffer.len().min(self.delimiter.len());
        if self.buffer.get(..length) != self.delimiter.get(..length) {
            let _ = self.buffer.split_to(2);
            self.state = State::Content;
        } else if length == self.delimiter.len() {
            self.state = State::Content;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::form::{Form, FormFile};
    use proptest::prelude::*;

    const TYPE: &str = "multipart/form-data; boundary=b1";

    /// Name of a field, name of a file, content.
    type Part = (String, Option<String>, Vec<u8>);

    /// Fields and files, read in pieces of these lengths.
    fn read(body: &[u8], lengths: &[usize]) -> Result<Vec<Part>, InvalidRequest> {
        let mut reader = FormReader::new(TYPE)?;
        let (mut parts, mut rest, mut lengths) = (Vec::new(), body, lengths.iter().cycle());
        while !rest.is_empty() {
            let (piece, behind) = rest.split_at(rest.len().min(*lengths.next().unwrap_or(&1)));
            reader.push(piece);
            rest = behind;
            while let Some(event) = reader.next_event()? {
                match event {
                    FormEvent::Part { field, file_name } => parts.push((field, file_name, Vec::new())),
                    FormEvent::Content(bytes) => parts.last_mut().unwrap().2.extend_from_slice(&bytes),
                    FormEvent::PartEnd => {}
                }
            }
            assert!(reader.buffer.len() <= LONGEST_HEAD + 4, "{}", reader.buffer.len());
        }
        reader.finish()?;
        Ok(parts)
    }

    proptest! {
        #[test]
        fn pieces_give_what_the_whole_gives(
            contents in proptest::collection::vec("(\r|\n|-|b|1|x|\r\n--b){0,12}", 0..4),
            lengths in proptest::collection::vec(1..9_usize, 1..5),
            cut in 0..400_usize,
        ) {
            let mut body = b"preamble".to_vec();
            for (at, content) in contents.iter().enumerate() {
                body.extend(format!("\r\n--b1\r\nContent-Disposition: form-data; name=\"f{at}\"; filename=\"n\"\r\n\r\n{content}").bytes());
            }
            body.extend(b"\r\n--b1--\r\n");
            body.truncate(cut.max(20));
            let whole = Form::parse(TYPE, &body, &[]).map(|form| {
                let of = |file: FormFile<'_>| (file.field, file.name, file.content.to_vec());
                form.files.into_iter().map(of).collect::<Vec<_>>()
            });
            let pieces = read(&body, &lengths);
            match (whole, pieces) {
                (Ok(whole), Ok(pieces)) => prop_assert_eq!(whole, pieces),
                (Err(_), Err(_)) => {}
                (whole, pieces) => prop_assert!(false, "{:?} {:?}", whole, pieces),
            }
        }

        #[test]
        fn no_bytes_break_the_reader(bytes: Vec<u8>, lengths in proptest::collection::vec(1..9_usize, 1..5)) {
            let _ = read(&bytes, &lengths);
        }
    }

    #[test]
    fn a_head_without_an_end_is_refused() {
        let body = format!("--b1\r\n{}", "x".repeat(2 * LONGEST_HEAD));
        let error = read(body.as_bytes(), &[100]).unwrap_err();
        assert!(error.message.contains("longer than 4096 bytes"), "{}", error.message);
    }
}
