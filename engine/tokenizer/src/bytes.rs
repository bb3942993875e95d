//! Bytes of each token.

use crate::added::AddedToken;
use crate::error::{TokenizerError, shorten};
use crate::parts::{self, Form};

/// Place of a first token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Begin of a text: where the vocabulary puts a space before every word, that of the first one is left out.
    Start,
    /// After other tokens.
    Continuation,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Absent,
    Text,
    Special,
}

/// Bytes and kind of every token.
#[derive(Debug)]
pub(crate) struct Table {
    bytes: Vec<u8>,
    /// End of each token's bytes; its begin is the end of the one before.
    ends: Vec<u32>,
    kinds: Vec<Kind>,
    strip: bool,
}

impl Table {
    pub(crate) fn new(vocabulary: &[(String, u32)], added: &[AddedToken], form: &Form) -> Result<Self, TokenizerError> {
        let of_model = vocabulary.iter().map(|(text, id)| (text.as_str(), *id));
        let size = parts::size(of_model.chain(added.iter().map(|token| (token.text.as_str(), token.id))))?;
        let mut texts: Vec<Option<(&str, Option<&AddedToken>)>> = vec![None; size];
        for (text, id) in vocabulary {
            texts[*id as usize] = Some((text, None));
        }
        for token in added {
            let place = &mut texts[token.id as usize];
            // Text that the model makes that id of would become a control token.
            if let Some((text, None)) = place.filter(|(text, _)| token.special && *text != token.text) {
                let (id, control, text) = (token.id, shorten(&token.text), shorten(text));
                let reason = format!("token {id} is the control token {control:?}, and {text:?} in the model");
                return Err(TokenizerError::invalid("added_tokens", reason));
            }
            *place = Some((&token.text, Some(token)));
        }
        let from_characters = match form {
            Form::ByteLevel => byte_characters(),
            _ => Vec::new(),
        };
        let mut table =
            Self { bytes: Vec::new(), ends: Vec::new(), kinds: Vec::new(), strip: !matches!(form, Form::ByteLevel) };
        if let Form::Pieces { strip, .. } = form {
            table.strip = *strip;
        }
        for entry in texts {
            let kind = match entry {
                None => Kind::Absent,
                Some((text, Some(token))) => {
                    table.bytes.extend_from_slice(text.as_bytes());
                    if token.special { Kind::Special } else { Kind::Text }
                }
                Some((text, None)) => {
                    push(text, form, &from_characters, &mut table.bytes);
                    Kind::Text
                }
            };
            let end = u32::try_from(table.bytes.len())
                .map_err(|_| TokenizerError::invalid("vocabulary", "its texts are too long"))?;
            table.ends.push(end);
            table.kinds.push(kind);
        }
        Ok(table)
    }

    /// Number of ids.
    pub(crate) fn size(&self) -> usize {
        self.ends.len()
    }

    /// Bytes of a token within a text, `None`: there is no such token.
    pub(crate) fn get(&self, id: u32) -> Option<&[u8]> {
        let id = id as usize;
        let end = *self.ends.get(id)? as usize;
        let start = id.checked_sub(1).and_then(|before| self.ends.get(before)).map_or(0, |start| *start as usize);
        (self.kinds.get(id)? != &Kind::Absent).then(|| self.bytes.get(start..end)).flatten()
    }

    pub(crate) fn is_special(&self, id: u32) -> bool {
        self.kinds.get(id as usize) == Some(&Kind::Special)
    }

    /// Returns true if a space at the begin of a text is left out.
    pub(crate) fn strips(&self) -> bool {
        self.strip
    }
}

/// Appends the bytes of a token of the model.
fn push(text: &str, form: &Form, from_characters: &[Option<u8>], bytes: &mut Vec<u8>) {
    match form {
        Form::ByteLevel => {
            let start = bytes.len();
            for character in text.chars() {
                match from_characters.get(character as usize).copied().flatten() {
                    Some(byte) => bytes.push(byte),
                    None => {
                        bytes.truncate(start);
                        bytes.extend_from_slice(text.as_bytes());
                        return;
                    }
                }
            }
        }
        Form::Pieces { space, byte_fallback, .. } => match byte_of(text).filter(|_| *byte_fallback) {
            Some(byte) => bytes.push(byte),
            None => match space {
                Some(space) => bytes.extend_from_slice(text.replace(*space, " ").as_bytes()),
                None => bytes.extend_from_slice(text.as_bytes()),
            },
        },
        Form::Words { prefix, cleanup } => match text.strip_prefix(prefix.as_str()) {
            Some(rest) => bytes.extend_from_slice(rest.as_bytes()),
            None => {
                const JOINED: &[&str] = &[".", "?", "!", ",", "n't", "'m", "'s", "'ve", "'re"];
                if !(*cleanup && JOINED.contains(&text)) {
                    bytes.push(b' ');
                }
                bytes.extend_from_slice(text.as_bytes());
            }
        },
    }
}

/// Byte that a token such as `<0x0A>` stands for.
pub(crate) fn byte_of(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    let hexadecimal = digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    hexadecimal.then(|| u8::from_str_radix(digits, 16).ok()).flatten()
}

/// Bytes by the character that stands for them in GPT-2's vocabulary: printable ones for themselves, the others, in
/// order, for characters from 256 on.
fn byte_characters() -> Vec<Option<u8>> {
    let mut bytes = vec![None; 256 + 68];
    let mut next = 256;
    for byte in 0..=u8::MAX {
        let printable = matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
        let character = if printable { usize::from(byte) } else { next };
        next += usize::from(!printable);
        if let Some(slot) = bytes.get_mut(character) {
            *slot = Some(byte);
        }
    }
    bytes
}
