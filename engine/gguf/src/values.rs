//! Header and metadata: named values, each with its type and its place in the file.

use crate::kind::Kind;
use crate::source::{Defect, Part, Source};
use std::ops::Range;

/// First bytes of a file.
const MAGIC: &[u8] = b"GGUF";
/// Most values of a file.
const MOST_VALUES: u64 = 1 << 16;
/// Longest key, in bytes: the limit of the format.
const LONGEST_KEY: u64 = (1 << 16) - 1;
/// Number of the type "array".
const ARRAY: u32 = 9;

/// Counts at the beginning of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Number of tensors.
    pub tensors: u64,
    /// Number of values of metadata.
    pub values: u64,
}

/// Value of a key: type and place in the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Value {
    /// Type of the value, or of the elements of an array.
    pub kind: Kind,
    /// Number of elements of an array, `None` for a single value.
    pub count: Option<u64>,
    /// Bytes of the value: the content of a string, all elements of an array.
    pub bytes: Range<u64>,
}

/// Reads the beginning of a file.
///
/// # Errors
/// The file is none of GGUF, or of a version that is not supported.
pub fn header(source: &mut impl Source) -> Result<Header, Defect> {
    let length = (MAGIC.len() as u64).min(source.left());
    if source.take(length, &|| "the magic number".to_owned())? != MAGIC {
        return Err(Defect::new("is not a GGUF file: it does not begin with \"GGUF\""));
    }
    check_version(source.u32(&|| "the version".to_owned())?)?;
    let tensors = source.u64(&|| "the number of tensors".to_owned())?;
    let values = source.u64(&|| "the number of values of metadata".to_owned())?;
    Ok(Header { tensors, values })
}

fn check_version(version: u32) -> Result<(), Defect> {
    match version {
        2 | 3 => Ok(()),
        _ if matches!(version.swap_bytes(), 1..=3) => {
            Err(Defect::new("is a GGUF file of a big-endian machine, which is not supported"))
        }
        _ => Err(Defect(format!("is a GGUF file of version {version}; versions 2 and 3 are supported"))),
    }
}

/// Reads `count` values, those of the header. `found` gets each with its key.
///
/// # Errors
/// A value is broken or not supported, or `found` refuses it.
pub fn values(
    source: &mut impl Source,
    count: u64,
    mut found: impl FnMut(String, Value) -> Result<(), Defect>,
) -> Result<(), Defect> {
    if count > MOST_VALUES {
        return Err(Defect(format!("says that it has {count} values of metadata, more than {MOST_VALUES}")));
    }
    for number in 0..count {
        let key = source.text(LONGEST_KEY, &|| format!("the key of value {number} of the metadata"))?;
        let value = Value::read(source, &key)?;
        found(key, value)?;
    }
    Ok(())
}

impl Value {
    fn read(source: &mut impl Source, key: &str) -> Result<Self, Defect> {
        let part = || format!("the value of key {:?}", beginning(key));
        let number = source.u32(&part)?;
        if number != ARRAY {
            return Self::single(source, number, &part);
        }
        let number = source.u32(&part)?;
        let count = source.u64(&part)?;
        if number == ARRAY {
            return Err(Defect(format!("has arrays of arrays in {}: not supported", part())));
        }
        let kind = of_number(number, &part)?;
        let start = source.at();
        if kind == Kind::Text {
            for _ in 0..count {
                // Each takes bytes of the file: the count is bounded by them.
                let length = source.u64(&part)?;
                source.pass_text(length, &part)?;
            }
        } else {
            source.pass_numbers(kind, count, &part)?;
        }
        Ok(Self { kind, count: Some(count), bytes: start..source.at() })
    }

    fn single(source: &mut impl Source, number: u32, part: Part<'_>) -> Result<Self, Defect> {
        let kind = of_number(number, part)?;
        let start = if kind == Kind::Text {
            let length = source.u64(part)?;
            let start = source.at();
            source.pass_text(length, part)?;
            start
        } else {
            let start = source.at();
            source.pass_numbers(kind, 1, part)?;
            start
        };
        Ok(Self { kind, count: None, bytes: start..source.at() })
    }
}

fn of_number(number: u32, part: Part<'_>) -> Result<Kind, Defect> {
    Kind::of(number).ok_or_else(|| Defect(format!("has the unknown type {number} in {}", part())))
}

/// Beginning of a foreign text, for messages.
#[must_use]
pub fn beginning(text: &str) -> &str {
    text.char_indices().nth(200).map_or(text, |(end, _)| &text[..end])
}
