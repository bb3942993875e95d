//! Header and metadata: named values, each with its type and its place in the file.

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

/// Type of a value, by its number in the format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Whole number of 8 bits.
    U8,
    /// Whole number of 8 bits with a sign.
    I8,
    /// Whole number of 16 bits.
    U16,
    /// Whole number of 16 bits with a sign.
    I16,
    /// Whole number of 32 bits.
    U32,
    /// Whole number of 32 bits with a sign.
    I32,
    /// Floating-point number of 32 bits.
    F32,
    /// Truth value.
    Bool,
    /// String.
    Text,
    /// Whole number of 64 bits.
    U64,
    /// Whole number of 64 bits with a sign.
    I64,
    /// Floating-point number of 64 bits.
    F64,
}

impl Kind {
    /// Type of this number; `None`: there is none.
    #[must_use]
    pub fn of(number: u32) -> Option<Self> {
        Some(match number {
            0 => Self::U8,
            1 => Self::I8,
            2 => Self::U16,
            3 => Self::I16,
            4 => Self::U32,
            5 => Self::I32,
            6 => Self::F32,
            7 => Self::Bool,
            8 => Self::Text,
            10 => Self::U64,
            11 => Self::I64,
            12 => Self::F64,
            _ => return None,
        })
    }

    /// Bytes of a value, `None` for strings.
    #[must_use]
    pub fn size(self) -> Option<u64> {
        match self {
            Self::U8 | Self::I8 | Self::Bool => Some(1),
            Self::U16 | Self::I16 => Some(2),
            Self::U32 | Self::I32 | Self::F32 => Some(4),
            Self::U64 | Self::I64 | Self::F64 => Some(8),
            Self::Text => None,
        }
    }

    /// Whole number of the bytes of a value.
    #[must_use]
    pub fn integer(self, bytes: &[u8]) -> Option<i128> {
        Some(match self {
            Self::U8 => i128::from(*bytes.first()?),
            Self::I8 => i128::from(bytes.first()?.cast_signed()),
            Self::U16 => i128::from(u16::from_le_bytes(bytes.try_into().ok()?)),
            Self::I16 => i128::from(i16::from_le_bytes(bytes.try_into().ok()?)),
            Self::U32 => i128::from(u32::from_le_bytes(bytes.try_into().ok()?)),
            Self::I32 => i128::from(i32::from_le_bytes(bytes.try_into().ok()?)),
            Self::U64 => i128::from(u64::from_le_bytes(bytes.try_into().ok()?)),
            Self::I64 => i128::from(i64::from_le_bytes(bytes.try_into().ok()?)),
            Self::F32 | Self::F64 | Self::Bool | Self::Text => return None,
        })
    }
}

/// Reads the beginning of a file.
///
/// # Errors
/// It is no GGUF file, or one of a version that is not supported.
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
