//! Forms with files: bodies of the type `multipart/form-data`, as RFC 7578 has them.
//!
//! ```text
//! --boundary␍␊ head ␍␊␍␊ content ␍␊--boundary␍␊ head ␍␊␍␊ content ␍␊--boundary--
//! ```
//!
//! Invariants: contents are parts of the body, never copies; time is linear in the body's length.

mod head;
mod stream;

pub use stream::{FormEvent, FormReader};

use head::{Head, parameters};
use omni_request_error::InvalidRequest;
use std::collections::HashSet;

/// Most parts of a form.
const MOST_PARTS: usize = 128;
/// Longest head of a part, in bytes.
const LONGEST_HEAD: usize = 4096;
/// Longest boundary, by RFC 2046.
const LONGEST_BOUNDARY: usize = 70;
/// Longest name that an error repeats, in bytes.
const LONGEST_NAME: usize = 64;

/// A form.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Form<'a> {
    /// Parts without the name of a file, in order.
    pub fields: Vec<(String, &'a str)>,
    /// Files, in order.
    pub files: Vec<FormFile<'a>>,
}

/// A file of a form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FormFile<'a> {
    /// Name of the field.
    pub field: String,
    /// Name of the file, as the client has it.
    pub name: Option<String>,
    /// Media type, as the client has it.
    pub media_type: Option<String>,
    /// Content.
    pub content: &'a [u8],
}

impl<'a> Form<'a> {
    /// Reads a form. `media_type`: the value of `content-type`; `files`: names of the fields that are files in any case.
    ///
    /// # Errors
    /// Another media type, no boundary, a form that is cut off or out of bounds, a field that is no text, or a field that appears twice
    /// and whose name does not end with `[]`.
    pub fn parse(media_type: &str, body: &'a [u8], files: &[&str]) -> Result<Self, InvalidRequest> {
        let delimiter = format!("\r\n--{}", boundary(media_type)?);
        let mut form = Self::default();
        let mut seen = HashSet::new();
        for part in Parts::new(body, delimiter.as_bytes())? {
            let Part { head, content } = part?;
            let head = Head::parse(head)?;
            if form.fields.len() + form.files.len() == MOST_PARTS {
                return Err(malformed(&format!("it has more than {MOST_PARTS} parts")));
            }
            if !head.field.ends_with("[]") && !seen.insert(head.field.clone()) {
                let name = shortened(&head.field);
                return Err(InvalidRequest::new(name, format!("`{name}` appears twice")));
            }
            let Head { field, file_name, media_type } = head;
            if file_name.is_some() || files.contains(&field.as_str()) {
                form.files.push(FormFile { field, name: file_name, media_type, content });
                continue;
            }
            let Ok(text) = str::from_utf8(content) else {
                let name = shortened(&field);
                return Err(InvalidRequest::new(name, format!("`{name}` has to be UTF-8 text")));
            };
            form.fields.push((field, text));
        }
        Ok(form)
    }
}

/// The boundary that a media type names.
fn boundary(media_type: &str) -> Result<String, InvalidRequest> {
    let (essence, behind) = media_type.split_once(';').unwrap_or((media_type, ""));
    if !essence.trim().eq_ignore_ascii_case("multipart/form-data") {
        return Err(malformed("its `content-type` has to be `multipart/form-data`"));
    }
    let mut boundaries = parameters(behind).filter(|(name, _)| name.eq_ignore_ascii_case("boundary"));
    let boundary = boundaries.next().map(|(_, boundary)| boundary).unwrap_or_default();
    if boundaries.next().is_some() {
        return Err(malformed("its `content-type` names several boundaries"));
    }
    let is_valid = (1..=LONGEST_BOUNDARY).contains(&boundary.len()) && boundary.bytes().all(is_of_boundary);
    if is_valid { Ok(boundary) } else { Err(malformed("its `content-type` has to name a boundary")) }
}

fn is_of_boundary(byte: u8) -> bool {
    byte.is_ascii_graphic() || byte == b' '
}

/// A part of a body.
struct Part<'a> {
    head: &'a [u8],
    content: &'a [u8],
}

/// Parts of a body.
struct Parts<'a, 'd> {
    /// Bytes behind the last delimiter.
    rest: &'a [u8],
    delimiter: &'d [u8],
}

impl<'a, 'd> Parts<'a, 'd> {
    /// The parts behind the first delimiter, in front of which may be anything.
    fn new(body: &'a [u8], delimiter: &'d [u8]) -> Result<Self, InvalidRequest> {
        let at_start = delimiter.strip_prefix(b"\r\n").and_then(|delimiter| body.strip_prefix(delimiter));
        let rest = at_start.or_else(|| split(body, delimiter).map(|(_, rest)| rest));
        let rest = rest.ok_or_else(|| malformed("its boundary is not there"))?;
        Ok(Self { rest, delimiter })
    }

    fn next_part(&mut self) -> Result<Option<Part<'a>>, InvalidRequest> {
        let cut_off = || malformed("it is cut off");
        if self.rest.starts_with(b"--") {
            return Ok(None);
        }
        // Spaces and tabs behind a boundary are padding of the transport.
        let padding = self.rest.iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
        let part = self.rest.get(padding..).and_then(|rest| rest.strip_prefix(b"\r\n")).ok_or_else(cut_off)?;
        let window = part.get(..LONGEST_HEAD + 4).unwrap_or(part);
        let (head, _) = split(window, b"\r\n\r\n").ok_or_else(|| match window.len() == part.len() {
            true => cut_off(),
            false => malformed(&format!("the head of a part is longer than {LONGEST_HEAD} bytes")),
        })?;
        let content = part.get(head.len() + 4..).unwrap_or_default();
        let (content, rest) = match self.delimiter.strip_prefix(b"\r\n").and_then(|end| content.strip_prefix(end)) {
            Some(rest) => (&[][..], rest), // the line end behind the head is that in front of the boundary
            None => split(content, self.delimiter).ok_or_else(cut_off)?,
        };
        self.rest = rest;
        Ok(Some(Part { head, content }))
    }
}

impl<'a> Iterator for Parts<'a, '_> {
    type Item = Result<Part<'a>, InvalidRequest>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.next_part();
        if next.is_err() {
            self.rest = b"--"; // nothing follows an error
        }
        next.transpose()
    }
}

/// The bytes in front of the first `separator`, which begins with a carriage return and has no other, and those behind it.
fn split<'a>(bytes: &'a [u8], separator: &[u8]) -> Option<(&'a [u8], &'a [u8])> {
    let mut from = 0;
    loop {
        let at = from + bytes.get(from..)?.iter().position(|byte| *byte == b'\r')?;
        if let Some(rest) = bytes.get(at..)?.strip_prefix(separator) {
            return Some((bytes.get(..at)?, rest));
        }
        from = at + 1;
    }
}

fn malformed(why: &str) -> InvalidRequest {
    let message = format!("the request's body is not a form: {why}");
    InvalidRequest { message, parameter: None, code: omni_request_error::InvalidCode::Value }
}

fn shortened(name: &str) -> &str {
    name.get(..name.floor_char_boundary(LONGEST_NAME)).unwrap_or_default()
}

#[cfg(test)]
mod tests;
