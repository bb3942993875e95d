//! Metadata of a GGUF file: named values, read where they lie.

use super::cursor::Cursor;
use crate::error::Defect;
use crate::map::MappedFile;
use omni_gguf::{Defect as Reason, Kind, Value, beginning, values};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

/// Metadata of a GGUF file. A look-up gives `None` for a key that is not there and for one whose value has another type,
/// [`Metadata::has`] tells them apart.
#[derive(Debug)]
pub struct Metadata {
    file: Arc<MappedFile>,
    values: BTreeMap<String, Value>,
}

impl Metadata {
    /// Reads `count` values. Everything is checked here; look-ups read again what they want.
    pub(super) fn parse(file: &Arc<MappedFile>, cursor: &mut Cursor<'_>, count: u64) -> Result<Self, Defect> {
        let mut found = BTreeMap::new();
        values(cursor, count, |key, value| match found.entry(key) {
            Entry::Vacant(entry) => {
                entry.insert(value);
                Ok(())
            }
            Entry::Occupied(entry) => Err(Reason(format!("has the key {:?} twice", beginning(entry.key())))),
        })?;
        Ok(Self { file: file.clone(), values: found })
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
        float(kind, bytes)
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
        self.numbers(key, float)
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
        Some((value, usize::try_from(value.count?).ok()?))
    }

    fn bytes(&self, value: &Value) -> &[u8] {
        // Places were checked against the file, so they fit.
        &self.file.bytes()[value.bytes.start as usize..value.bytes.end as usize]
    }
}

/// Floating-point number of the bytes of a value. One of 64 bits is rounded.
fn float(kind: Kind, bytes: &[u8]) -> Option<f32> {
    match kind {
        Kind::F32 => bytes.try_into().ok().map(f32::from_le_bytes),
        Kind::F64 => bytes.try_into().ok().map(|bytes| f64::from_le_bytes(bytes) as f32),
        _ => None,
    }
}
