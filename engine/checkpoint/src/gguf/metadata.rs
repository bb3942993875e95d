//! Metadata of a GGUF file: named values, read where they lie.

use super::cursor::Cursor;
use crate::error::Defect;
use crate::map::MappedFile;
use crate::tensor::beginning;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Range;
use std::sync::Arc;

/// Most values of a file.
const MOST_VALUES: u64 = 1 << 16;
/// Longest key, in bytes: the limit of the format.
const LONGEST_KEY: usize = (1 << 16) - 1;

/// Metadata of a GGUF file. A look-up gives `None` for a key that is not there and for one whose value has another type,
/// [`Metadata::has`] tells them apart.
#[derive(Debug)]
pub struct Metadata {
    file: Arc<MappedFile>,
    values: BTreeMap<String, Value>,
}

/// Value of a key: type and place in the file.
#[derive(Debug, Clone)]
struct Value {
    kind: Kind,
    /// Number of elements of an array, `None` for a single value.
    count: Option<usize>,
    bytes: Range<usize>,
}

/// Type of a value, by its number in the format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    Text,
    U64,
    I64,
    F64,
}

/// Number of the type "array".
const ARRAY: u32 = 9;

impl Kind {
    fn of(number: u32) -> Option<Self> {
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
    fn size(self) -> Option<u64> {
        match self {
            Self::U8 | Self::I8 | Self::Bool => Some(1),
            Self::U16 | Self::I16 => Some(2),
            Self::U32 | Self::I32 | Self::F32 => Some(4),
            Self::U64 | Self::I64 | Self::F64 => Some(8),
            Self::Text => None,
        }
    }

    /// Whole number of the bytes of a value.
    fn integer(self, bytes: &[u8]) -> Option<i128> {
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

    /// Floating-point number of the bytes of a value. One of 64 bits is rounded.
    fn float(self, bytes: &[u8]) -> Option<f32> {
        match self {
            Self::F32 => bytes.try_into().ok().map(f32::from_le_bytes),
            Self::F64 => bytes.try_into().ok().map(|bytes| f64::from_le_bytes(bytes) as f32),
            _ => None,
        }
    }
}

impl Metadata {
    /// Reads `count` values. Everything is checked here; look-ups read again what they want.
    pub(super) fn parse(file: &Arc<MappedFile>, cursor: &mut Cursor<'_>, count: u64) -> Result<Self, Defect> {
        if count > MOST_VALUES {
            return Err(Defect::file(format!("says that it has {count} values of metadata, more than {MOST_VALUES}")));
        }
        let mut values = BTreeMap::new();
        for number in 0..count {
            let key = cursor.string(&|| format!("the key of value {number} of the metadata"))?;
            if key.len() > LONGEST_KEY {
                return Err(Defect::file(format!("has a key of {} bytes, more than {LONGEST_KEY}", key.len())));
            }
            let value = Value::parse(cursor, key)?;
            match values.entry(key.to_owned()) {
                Entry::Vacant(entry) => entry.insert(value),
                Entry::Occupied(_) => return Err(Defect::file(format!("has the key {:?} twice", beginning(key)))),
            };
        }
        Ok(Self { file: file.clone(), values })
    }

    /// Keys, in the order of the alphabet.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.values.keys().map(String::as_str)
    }

    /// Tells if there is a value of this key, of whatever type.
    pub fn has(&self, key: &str) -> bool {
        self.values.contains_key(key)
    }

    /// String.
    pub fn text(&self, key: &str) -> Option<&str> {
        let (kind, bytes) = self.single(key)?;
        (kind == Kind::Text).then(|| std::str::from_utf8(bytes).ok()).flatten()
    }

    /// Whole number that is not negative, of any integer type.
    pub fn u64(&self, key: &str) -> Option<u64> {
        let (kind, bytes) = self.single(key)?;
        u64::try_from(kind.integer(bytes)?).ok()
    }

    /// Floating-point number. One of 64 bits is rounded.
    pub fn f32(&self, key: &str) -> Option<f32> {
        let (kind, bytes) = self.single(key)?;
        kind.float(bytes)
    }

    /// Truth value.
    pub fn bool(&self, key: &str) -> Option<bool> {
        let (kind, bytes) = self.single(key)?;
        (kind == Kind::Bool).then_some(bytes == [1])
    }

    /// Array of strings.
    pub fn texts(&self, key: &str) -> Option<Vec<&str>> {
        let (value, count) = self.array(key)?;
        if value.kind != Kind::Text {
            return None;
        }
        let mut bytes = self.bytes(value);
        let mut texts = Vec::with_capacity(count);
        for _ in 0..count {
            let (length, rest) = bytes.split_first_chunk()?;
            let (text, rest) = rest.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)?;
            texts.push(std::str::from_utf8(text).ok()?);
            bytes = rest;
        }
        Some(texts)
    }

    /// Array of floating-point numbers.
    pub fn f32s(&self, key: &str) -> Option<Vec<f32>> {
        self.numbers(key, Kind::float)
    }

    /// Array of whole numbers, of any integer type, that all fit.
    pub fn i32s(&self, key: &str) -> Option<Vec<i32>> {
        self.numbers(key, |kind, bytes| i32::try_from(kind.integer(bytes)?).ok())
    }

    fn numbers<T>(&self, key: &str, number: impl Fn(Kind, &[u8]) -> Option<T>) -> Option<Vec<T>> {
        let (value, _) = self.array(key)?;
        let size = usize::try_from(value.kind.size()?).ok()?;
        self.bytes(value).chunks_exact(size).map(|bytes| number(value.kind, bytes)).collect()
    }

    fn single(&self, key: &str) -> Option<(Kind, &[u8])> {
        let value = self.values.get(key).filter(|value| value.count.is_none())?;
        Some((value.kind, self.bytes(value)))
    }

    fn array(&self, key: &str) -> Option<(&Value, usize)> {
        let value = self.values.get(key)?;
        Some((value, value.count?))
    }

    fn bytes(&self, value: &Value) -> &[u8] {
        &self.file.bytes()[value.bytes.clone()]
    }
}

impl Value {
    fn parse(cursor: &mut Cursor<'_>, key: &str) -> Result<Self, Defect> {
        let part = || format!("the value of key {:?}", beginning(key));
        let number = cursor.u32(&part)?;
        if number != ARRAY {
            return Self::single(cursor, number, &part);
        }
        let number = cursor.u32(&part)?;
        let count = cursor.u64(&part)?;
        if number == ARRAY {
            return Err(Defect::file(format!("has arrays of arrays in {}: not supported", part())));
        }
        let kind = Self::kind(number, &part)?;
        let start = cursor.at();
        if let Some(size) = kind.size() {
            // A product that does not fit is beyond the file, as is the greatest number.
            let bytes = cursor.take(count.saturating_mul(size), &part)?;
            if kind == Kind::Bool && bytes.iter().any(|byte| *byte > 1) {
                return Err(Defect::file(format!("holds a byte that is neither true nor false in {}", part())));
            }
        } else {
            for _ in 0..count {
                cursor.string(&part)?; // every one takes bytes of the file: the count is bounded by them
            }
        }
        let count = usize::try_from(count).map_err(|_| Defect::file(format!("has too many elements in {}", part())))?;
        Ok(Self { kind, count: Some(count), bytes: start..cursor.at() })
    }

    fn single(cursor: &mut Cursor<'_>, number: u32, part: &dyn Fn() -> String) -> Result<Self, Defect> {
        let kind = Self::kind(number, part)?;
        let mut start = cursor.at();
        match kind.size() {
            Some(size) => {
                let bytes = cursor.take(size, part)?;
                if kind == Kind::Bool && bytes > [1].as_slice() {
                    return Err(Defect::file(format!("holds a byte that is neither true nor false in {}", part())));
                }
            }
            None => {
                cursor.string(part)?;
                start += size_of::<u64>();
            }
        }
        Ok(Self { kind, count: None, bytes: start..cursor.at() })
    }

    fn kind(number: u32, part: &dyn Fn() -> String) -> Result<Kind, Defect> {
        Kind::of(number).ok_or_else(|| Defect::file(format!("has the unknown type {number} in {}", part())))
    }
}
