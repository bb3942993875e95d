//! Chat template and special tokens of a file, without the rest of its vocabulary.

use crate::file::{FileSource, MOST_READ};
use crate::kind::Kind;
use crate::source::{Defect, Source};
use crate::special::{NAMED, SpecialTokens};
use crate::values::{Value, header, values};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs::File;

/// Key of the chat template.
pub const CHAT_TEMPLATE: &str = "tokenizer.chat_template";
/// Longest chat template, in bytes; those of models have some ten kilobytes.
pub const LONGEST_TEMPLATE: u64 = 1 << 20;
/// Texts of the vocabulary by id, and their types.
const TOKENS: &str = "tokenizer.ggml.tokens";
const TYPES: &str = "tokenizer.ggml.token_type";
/// Ids of tokens that are control tokens even in files that do not say so.
const FRAMING: [&str; 4] = [
    "tokenizer.ggml.bos_token_id",
    "tokenizer.ggml.cls_token_id",
    "tokenizer.ggml.eos_token_id",
    // The name in the files is written so.
    "tokenizer.ggml.seperator_token_id",
];
/// Types of tokens that are control tokens: the unknown one, and control.
const CONTROL: [i128; 2] = [2, 3];
/// Most control tokens, and most bytes of their texts.
const MOST_CONTROL: (usize, usize) = (1 << 15, 2 << 20);
/// Longest text of such a token, in bytes.
const LONGEST_TOKEN: u64 = 4096;

/// Parts of a file that the node needs to render conversations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conversation {
    /// Chat template; `None`: the file has none.
    pub template: Option<String>,
    /// Special tokens.
    pub tokens: SpecialTokens,
}

impl Conversation {
    /// Reads them. At most [`MOST_READ`] bytes are read, at their positions, and the texts of other tokens are not kept.
    ///
    /// # Errors
    /// The file cannot be read, is no GGUF file, or a part has another type or is too long.
    pub fn read(file: &File) -> Result<Self, Defect> {
        let budget = Cell::new(MOST_READ);
        let mut source = FileSource::new(file, &budget).map_err(|error| Defect(format!("cannot be read: {error}")))?;
        let count = header(&mut source)?.values;
        let mut kept = BTreeMap::new();
        values(&mut source, count, |key, value| {
            if is_kept(&key) && kept.insert(key.clone(), value).is_some() {
                return Err(Defect(format!("has the key {key:?} twice")));
            }
            Ok(())
        })?;
        let wanted = Wanted { source, kept };
        Ok(Self { template: wanted.template()?, tokens: wanted.tokens()? })
    }
}

fn is_kept(key: &str) -> bool {
    let ids = NAMED.iter().map(|(_, key)| *key).chain(FRAMING);
    [CHAT_TEMPLATE, TOKENS, TYPES].into_iter().chain(ids).any(|wanted| wanted == key)
}

/// Values that are wanted, and where to read them.
struct Wanted<'a> {
    source: FileSource<'a>,
    kept: BTreeMap<String, Value>,
}

impl Wanted<'_> {
    fn template(&self) -> Result<Option<String>, Defect> {
        let Some(Value { kind, count, bytes }) = self.kept.get(CHAT_TEMPLATE) else { return Ok(None) };
        if (*kind, *count) != (Kind::Text, None) {
            return Err(wrong(CHAT_TEMPLATE, "is not a text"));
        }
        let length = bytes.end - bytes.start;
        if length > LONGEST_TEMPLATE {
            return Err(wrong(CHAT_TEMPLATE, &format!("has {length} bytes, more than {LONGEST_TEMPLATE}")));
        }
        let part = || format!("the value of key {CHAT_TEMPLATE:?}");
        let mut source = self.source.from(bytes.start);
        let text = std::str::from_utf8(source.take(length, &part)?).map(str::to_owned);
        text.map(Some).map_err(|error| Defect::not_utf8(&error, &part))
    }

    /// Id of a token; `None`: the file has none.
    fn id(&self, key: &str) -> Result<Option<u64>, Defect> {
        let Some(Value { kind, count, bytes }) = self.kept.get(key) else { return Ok(None) };
        let mut source = self.source.from(bytes.start);
        let part = || format!("the value of key {key:?}");
        let number = match count {
            None if *kind != Kind::Text => kind.integer(source.take(bytes.end - bytes.start, &part)?),
            _ => None,
        };
        // An id beyond the vocabulary is that of no token.
        number.map(|number| u64::try_from(number).ok()).ok_or_else(|| wrong(key, "is not a whole number"))
    }

    /// Texts of the control tokens and of those with names, found in one pass over the vocabulary.
    fn tokens(&self) -> Result<SpecialTokens, Defect> {
        let mut tokens = SpecialTokens::default();
        let Some(Value { kind, count, bytes }) = self.kept.get(TOKENS) else { return Ok(tokens) };
        let Some(count) = count.filter(|_| *kind == Kind::Text) else {
            return Err(wrong(TOKENS, "is not an array of texts"));
        };
        let named = NAMED.map(|(name, key)| self.id(key).map(|id| id.map(|id| (name, id))));
        let named: Vec<(&str, u64)> = named.into_iter().collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect();
        let framing = FRAMING.map(|key| self.id(key)).into_iter().collect::<Result<Vec<_>, _>>()?;
        let mut types = Types::of(self)?;
        let mut source = self.source.from(bytes.start);
        let part = || format!("the value of key {TOKENS:?}");
        let mut held = 0;
        for id in 0..count {
            let is_control = types.next()?.is_some_and(|kind| CONTROL.contains(&kind)) || framing.contains(&Some(id));
            if !is_control && named.iter().all(|(_, named)| *named != id) {
                let length = source.u64(&part)?;
                source.pass_text(length, &part)?;
                continue;
            }
            let text = source.text(LONGEST_TOKEN, &|| format!("token {id} of key {TOKENS:?}"))?;
            if text.is_empty() {
                continue;
            }
            held += text.len();
            let of_name = named.iter().filter(|(_, named)| *named == id);
            tokens.named.extend(of_name.map(|(name, _)| (*name, text.clone())));
            if let Ok(id) = u32::try_from(id)
                && is_control
            {
                tokens.control.push((id, text));
            }
            if tokens.control.len() > MOST_CONTROL.0 || held > MOST_CONTROL.1 {
                let (count, bytes) = MOST_CONTROL;
                return Err(wrong(TOKENS, &format!("has more than {count} control tokens, or {bytes} bytes of them")));
            }
        }
        Ok(tokens)
    }
}

/// Types of the tokens, one after the other.
struct Types<'a> {
    source: FileSource<'a>,
    kind: Kind,
    left: u64,
}

impl<'a> Types<'a> {
    fn of(wanted: &Wanted<'a>) -> Result<Self, Defect> {
        let Some(Value { kind, count, bytes }) = wanted.kept.get(TYPES) else {
            return Ok(Self { source: wanted.source.from(0), kind: Kind::I32, left: 0 });
        };
        match (count, kind) {
            (Some(_), Kind::F32 | Kind::F64 | Kind::Bool | Kind::Text) | (None, _) => {
                Err(wrong(TYPES, "is not an array of whole numbers"))
            }
            (Some(count), _) => Ok(Self { source: wanted.source.from(bytes.start), kind: *kind, left: *count }),
        }
    }

    /// Type of the next token; `None`: the file has none.
    fn next(&mut self) -> Result<Option<i128>, Defect> {
        let Some(left) = self.left.checked_sub(1) else { return Ok(None) };
        self.left = left;
        let size = self.kind.size().unwrap_or(1);
        Ok(self.kind.integer(self.source.take(size, &|| format!("the value of key {TYPES:?}"))?))
    }
}

fn wrong(key: &str, what: &str) -> Defect {
    Defect(format!("has a value of {key:?} that {what}"))
}
