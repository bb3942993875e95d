//! Files of safetensors: `length: u64 │ header: JSON │ tensors`.
//!
//! The header is `{"NAME": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]}, "__metadata__": {…}}` with
//! offsets from its end. As the format demands, tensors cover all bytes after the header: no overlap, no gap, no rest.
//! The reference implementation keeps the last of two tensors of one name; here they are refused.

use crate::error::Defect;
use crate::float::Float;
use crate::tensor::{Format, MOST_TENSORS, Tensor, beginning, check_name, check_places, elements};
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

/// Longest header, the limit of the reference implementation.
const LONGEST_HEADER: u64 = 100_000_000;
/// Bytes of the header's length.
const LENGTH: usize = 8;

/// Reads the header of a file, the `file`th of its checkpoint.
pub(crate) fn parse(bytes: &[u8], file: usize) -> Result<Vec<(String, Tensor)>, Defect> {
    let Some((length, rest)) = bytes.split_first_chunk::<LENGTH>() else {
        return Err(Defect::file(format!("has {} bytes, too few for a safetensors file", bytes.len())));
    };
    let length = u64::from_le_bytes(*length);
    if length > LONGEST_HEADER {
        return Err(Defect::file(format!("has a header of {length} bytes, more than {LONGEST_HEADER}")));
    }
    let header = usize::try_from(length).ok().and_then(|length| rest.get(..length));
    let Some(header) = header else {
        return Err(Defect::file(format!(
            "is cut short: its header should have {length} bytes, there are {}",
            rest.len()
        )));
    };
    let start = LENGTH + header.len();
    let entries: Pairs<&RawValue> = serde_json::from_slice(header)
        .map_err(|error| Defect::file(format!("has no header of safetensors: {}", beginning(&error.to_string()))))?;
    let mut tensors = Vec::with_capacity(entries.0.len());
    for (name, entry) in entries.0 {
        if name == "__metadata__" {
            continue;
        }
        check_name(&name)?;
        let tensor = tensor(&name, entry.get(), start, bytes.len(), file)?;
        tensors.push((name.into_owned(), tensor));
    }
    check_places(&tensors, start, false)?;
    let end = tensors.iter().map(|(_, tensor)| tensor.bytes.end).max().unwrap_or(start);
    if end < bytes.len() {
        return Err(Defect::file(format!("has {} bytes after its last tensor", bytes.len() - end)));
    }
    Ok(tensors)
}

/// Entry of the header.
#[derive(serde::Deserialize)]
struct Entry<'a> {
    #[serde(borrow)]
    dtype: Cow<'a, str>,
    shape: Vec<usize>,
    data_offsets: (usize, usize),
}

fn tensor(name: &str, entry: &str, start: usize, end: usize, file: usize) -> Result<Tensor, Defect> {
    let entry: Entry<'_> = serde_json::from_str(entry).map_err(|error| {
        Defect::tensor(
            name,
            format!("has an entry in the header that cannot be read: {}", beginning(&error.to_string())),
        )
    })?;
    let Some((bits, format)) = format(&entry.dtype) else {
        return Err(Defect::tensor(name, format!("has the unknown type {:?}", beginning(&entry.dtype))));
    };
    let elements = elements(name, &entry.shape)?;
    let size = elements.checked_mul(bits).filter(|bits| bits % 8 == 0).map(|bits| bits / 8);
    let (first, last) = entry.data_offsets;
    if last.checked_sub(first) != size {
        let reason = format!(
            "has the offsets {first} to {last}, which is not the size of {:?} numbers of type {}",
            entry.shape, entry.dtype
        );
        return Err(Defect::tensor(name, reason));
    }
    let Some(bytes) = start.checked_add(first).zip(start.checked_add(last)).filter(|(_, last)| *last <= end) else {
        let reason = format!("ends {last} bytes after the header, beyond the file's end at {}", end - start);
        return Err(Defect::tensor(name, reason));
    };
    Ok(Tensor { file, bytes: bytes.0..bytes.1, shape: entry.shape, format })
}

/// Bits of an element of a type, and its form.
fn format(dtype: &str) -> Option<(usize, Format)> {
    let bits = match dtype {
        "F32" => return Some((32, Format::Float(Float::F32))),
        "F16" => return Some((16, Format::Float(Float::F16))),
        "BF16" => return Some((16, Format::Float(Float::Bf16))),
        "I32" => return Some((32, Format::I32)),
        "F4" => 4,
        "F6_E2M3" | "F6_E3M2" => 6,
        "BOOL" | "U8" | "I8" | "F8_E5M2" | "F8_E4M3" | "F8_E8M0" | "F8_E4M3FNUZ" | "F8_E5M2FNUZ" => 8,
        "I16" | "U16" => 16,
        "U32" => 32,
        "F64" | "I64" | "U64" | "C64" => 64,
        _ => return None,
    };
    Some((bits, Format::Other(dtype.to_owned())))
}

/// Pairs of a JSON object in their order: names that occur twice stay visible.
pub(crate) struct Pairs<'a, T>(pub(crate) Vec<(Cow<'a, str>, T)>);

/// Name that is borrowed from the text where it has no escapes.
#[derive(serde::Deserialize)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'de: 'a, 'a, T: Deserialize<'de>> Deserialize<'de> for Pairs<'a, T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(PairsVisitor(PhantomData))
    }
}

struct PairsVisitor<'a, T>(PhantomData<(&'a str, T)>);

impl<'de: 'a, 'a, T: Deserialize<'de>> Visitor<'de> for PairsVisitor<'a, T> {
    type Value = Pairs<'a, T>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut pairs = Vec::new();
        while let Some((Name(name), value)) = map.next_entry::<Name<'de>, T>()? {
            if pairs.len() > MOST_TENSORS {
                return Err(serde::de::Error::custom(format!("there are more than {MOST_TENSORS} names")));
            }
            pairs.push((name, value));
        }
        Ok(Pairs(pairs))
    }
}
