//! Head of a form's part: the name of its field, and name and type of a file.

use super::malformed;
use omni_request_error::InvalidRequest;

/// Longest name of a field, and of a file, in bytes.
const LONGEST_NAME: usize = 1024;

/// Head of a part.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Head {
    /// Name of the field.
    pub(super) field: String,
    /// Name of the file; present for files alone.
    pub(super) file_name: Option<String>,
    /// Media type.
    pub(super) media_type: Option<String>,
}

impl Head {
    /// Reads the lines of a head.
    pub(super) fn parse(head: &[u8]) -> Result<Self, InvalidRequest> {
        let text = str::from_utf8(head).map_err(|_| malformed("the head of a part is not UTF-8"))?;
        let (mut disposition, mut media_type) = (None, None);
        for line in text.split("\r\n") {
            let Some((name, value)) = line.split_once(':') else { continue };
            match name.trim() {
                name if name.eq_ignore_ascii_case("content-disposition") => disposition = Some(value.trim()),
                name if name.eq_ignore_ascii_case("content-type") => media_type = Some(value.trim().to_owned()),
                name if name.eq_ignore_ascii_case("content-transfer-encoding")
                    && !["7bit", "8bit", "binary"].iter().any(|plain| value.trim().eq_ignore_ascii_case(plain)) =>
                {
                    return Err(malformed("a part has a `content-transfer-encoding`: send bytes as they are"));
                }
                _ => {}
            }
        }
        let parameters = disposition
            .and_then(|value| value.split_once(';'))
            .filter(|(kind, _)| kind.trim().eq_ignore_ascii_case("form-data"))
            .map(|(_, parameters)| parameters);
        let field = parameters.and_then(|parameters| parameter(parameters, "name"));
        let field = field.filter(|field| !field.is_empty()).ok_or_else(|| malformed("a part has no name"))?;
        let file_name = parameters.and_then(|parameters| parameter(parameters, "filename"));
        if field.len().max(file_name.as_ref().map_or(0, String::len)) > LONGEST_NAME {
            return Err(malformed(&format!("a name has more than {LONGEST_NAME} bytes")));
        }
        Ok(Self { field, file_name, media_type })
    }
}

/// The value of the first parameter of a name.
pub(super) fn parameter(text: &str, wanted: &str) -> Option<String> {
    parameters(text).find(|(name, _)| name.eq_ignore_ascii_case(wanted)).map(|(_, value)| value)
}

/// Names and values of parameters such as `name="file"`, with quotes and escapes taken away.
pub(super) fn parameters(text: &str) -> impl Iterator<Item = (&str, String)> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let (name, behind) = rest.split_once('=')?;
        let behind = behind.trim_start();
        let (value, behind) = match behind.strip_prefix('"') {
            Some(quoted) => unquoted(quoted)?,
            None => {
                let end = behind.find(';').unwrap_or(behind.len());
                let (value, behind) = behind.split_at(end);
                (value.trim_end().to_owned(), behind)
            }
        };
        rest = behind;
        Some((name.trim_matches([' ', '\t', ';']), value))
    })
}

/// A quoted text, behind its first quote, and what follows. A backslash escapes a quote or a backslash, and nothing else: clients send names of
/// files of Windows as they are.
fn unquoted(quoted: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut characters = quoted.char_indices().peekable();
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return Some((value, quoted.get(at + 1..)?)),
            '\\' => match characters.next_if(|(_, next)| matches!(next, '"' | '\\')) {
                Some((_, escaped)) => value.push(escaped),
                None => value.push('\\'),
            },
            other => value.push(other),
        }
    }
    None
}
