//! JSON texts: their structure, which is brackets and strings and nothing else, so that texts that are almost JSON pass as they are;
//! strings inside of strings.

use serde_json::value::RawValue;

/// Progress through one value of JSON (or of Python, whose strings have two kinds of quotes).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Structure {
    depth: usize,
    /// Quote of the open string.
    quote: Option<u8>,
    escaped: bool,
    python: bool,
}

/// Point at which a scan stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pause {
    /// Offset behind the last bracket.
    End(usize),
    /// Offset of a `<` outside strings, which JSON does not have.
    Angle(usize),
    /// End of the text.
    Text,
}

impl Structure {
    /// The structure of Python's literals.
    pub(crate) fn python() -> Self {
        Self { python: true, ..Self::default() }
    }

    /// Returns true inside of a value.
    pub(crate) fn is_open(self) -> bool {
        self.depth > 0 || self.quote.is_some()
    }

    /// Goes on through `text`.
    pub(crate) fn scan(&mut self, text: &str) -> Pause {
        for (at, byte) in text.bytes().enumerate() {
            match (self.quote, byte) {
                (Some(_), _) if self.escaped => self.escaped = false,
                (Some(_), b'\\') => self.escaped = true,
                (Some(quote), _) if quote == byte => self.quote = None,
                (None, b'"') => self.quote = Some(byte),
                (None, b'\'') if self.python => self.quote = Some(byte),
                (None, b'{' | b'[' | b'(') => self.depth += 1,
                (None, b'}' | b']' | b')') => {
                    self.depth = self.depth.saturating_sub(1);
                    if self.depth == 0 {
                        return Pause::End(at + 1);
                    }
                }
                (None, b'<') if self.depth > 0 && !self.python => return Pause::Angle(at),
                _ => {}
            }
        }
        Pause::Text
    }
}

/// String of JSON whose text is itself JSON: the escapes are removed as it comes.
///
/// Returns the text without escapes, the bytes used, and whether the closing quote was among them. `end`: no more text will come.
pub(crate) fn unescape(text: &str, end: bool) -> (String, usize, bool) {
    let mut plain = String::with_capacity(text.len());
    let mut at = 0;
    while let Some(rest) = text.get(at..).filter(|rest| !rest.is_empty()) {
        let run = rest.find(['"', '\\']).unwrap_or(rest.len());
        plain.push_str(rest.get(..run).unwrap_or_default());
        at += run;
        match rest.as_bytes().get(run) {
            None => break,
            Some(b'"') => return (plain, at + 1, true),
            Some(_) => match escape(rest.get(run..).unwrap_or_default()) {
                Some((c, length)) => {
                    plain.push(c);
                    at += length;
                }
                None if end => {
                    plain.push_str(rest.get(run..).unwrap_or_default());
                    at = text.len();
                }
                None => break,
            },
        }
    }
    (plain, at, false)
}

/// Character of an escape at the beginning of `text`, and its length; `None`: more text decides.
fn escape(text: &str) -> Option<(char, usize)> {
    let c = text.chars().nth(1)?;
    let plain = match c {
        'n' => '\n',
        't' => '\t',
        'r' => '\r',
        'b' => '\u{8}',
        'f' => '\u{c}',
        'u' => return unicode(text),
        other => other,
    };
    Some((plain, 1 + c.len_utf8()))
}

fn unicode(text: &str) -> Option<(char, usize)> {
    let digits = |from: usize| -> Option<Result<u32, ()>> {
        let digits = text.as_bytes().get(from..from + 4)?;
        Some(str::from_utf8(digits).map_err(|_| ()).and_then(|digits| u32::from_str_radix(digits, 16).map_err(|_| ())))
    };
    let Ok(first) = digits(2)? else { return Some(('u', 2)) };
    if let Some(c) = char::from_u32(first) {
        return Some((c, 6));
    }
    let lone = Some((char::REPLACEMENT_CHARACTER, 6));
    let after = text.get(6..).unwrap_or_default();
    if !"\\u".starts_with(after.get(..after.len().min(2)).unwrap_or("-")) {
        return lone;
    }
    let Ok(second) = digits(8)? else { return lone };
    let pair =
        first.checked_sub(0xd800).zip(second.checked_sub(0xdc00)).filter(|(high, low)| *high < 0x400 && *low < 0x400);
    pair.map_or(lone, |(high, low)| Some((char::from_u32(0x1_0000 + (high << 10) + low)?, 12)))
}

/// A JSON string.
pub(crate) fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// JSON text as it is, if it is valid.
pub(crate) fn valid(text: &str) -> Option<&str> {
    serde_json::from_str::<&RawValue>(text).ok().map(RawValue::get)
}
