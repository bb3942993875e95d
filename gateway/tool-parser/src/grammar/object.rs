//! Calls as JSON objects: `{"name": …, "arguments": …}`.

use super::{Body, Header, Opening};
use crate::call::WholeCall;
use crate::cursor::{Cursor, Parsed, Stop};
use crate::json::valid;
use crate::tools::CompiledTools;
use serde_json::value::RawValue;
use std::collections::BTreeMap;

/// Kinds of keys in the object of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Key {
    Name,
    Arguments,
    Id,
    /// Says that the call is one.
    Type,
    Other,
}

impl Key {
    fn of(key: &str) -> Self {
        match key {
            "name" | "function" | "tool_name" => Self::Name,
            "arguments" | "parameters" => Self::Arguments,
            "id" | "tool_call_id" => Self::Id,
            "type" => Self::Type,
            _ => Self::Other,
        }
    }
}

/// Beginning of an object up to its arguments. `{"function": {"name": …}}` counts as well. Without arguments there is
/// nothing else in it either: members that would be lost may be the arguments.
pub(crate) fn object(cursor: &mut Cursor<'_>) -> Parsed<Opening> {
    let start = cursor.clone();
    cursor.literal("{")?;
    let (mut name, mut id, mut nesting, mut others) = (None, None, 1, false);
    loop {
        cursor.blank();
        let key = cursor.string()?;
        cursor.blank();
        cursor.literal(":")?;
        cursor.blank();
        match (Key::of(&key), cursor.peek()?) {
            (Key::Name, b'{') if nesting == 1 && key == "function" => {
                cursor.literal("{")?;
                nesting += 1;
                continue;
            }
            (Key::Name, _) => name = Some(cursor.string().and_then(checked)?),
            (Key::Arguments, _) => {
                let Some(name) = name else {
                    *cursor = start;
                    return Ok(Opening::Object);
                };
                return Ok(Opening::Call(Header { name, id, body: Body::Value(nesting) }));
            }
            (Key::Id, _) => id = Some(scalar(cursor)?),
            (Key::Type | Key::Other, _) => {
                scalar(cursor)?;
                others |= Key::of(&key) == Key::Other;
            }
        }
        nesting = after_member(cursor, nesting)?;
        if nesting == 0 {
            let name = name.filter(|_| !others).ok_or(Stop::No)?;
            return Ok(Opening::Call(Header { name, id, body: Body::Empty }));
        }
    }
}

/// Rest of `nesting` objects behind the arguments.
pub(crate) fn tail(cursor: &mut Cursor<'_>, nesting: u8) -> Parsed<()> {
    let mut nesting = after_member(cursor, nesting)?;
    while nesting > 0 {
        cursor.blank();
        cursor.string()?;
        cursor.blank();
        cursor.literal(":")?;
        cursor.blank();
        scalar(cursor)?;
        nesting = after_member(cursor, nesting)?;
    }
    Ok(())
}

/// Passes a comma, or brackets that close. Returns the number of objects that are still open.
fn after_member(cursor: &mut Cursor<'_>, mut nesting: u8) -> Parsed<u8> {
    loop {
        cursor.blank();
        if cursor.optional(&[","])? {
            return Ok(nesting);
        }
        cursor.literal("}")?;
        nesting = nesting.saturating_sub(1);
        if nesting == 0 {
            return Ok(0);
        }
    }
}

/// String, number, `true`, `false` or `null`, as text.
fn scalar(cursor: &mut Cursor<'_>) -> Parsed<String> {
    if cursor.peek()? == b'"' {
        return cursor.string();
    }
    cursor.name().map(str::to_owned)
}

fn checked(name: String) -> Parsed<String> {
    let valid = !name.is_empty() && name.len() <= 256 && !name.contains(char::is_control);
    if valid { Ok(name) } else { Err(Stop::No) }
}

/// First object of an answer without markers: the function must be offered (llama.cpp#18183).
pub(crate) fn bare(cursor: &mut Cursor<'_>, tools: &CompiledTools) -> Parsed<()> {
    match object(cursor)? {
        Opening::Call(header) if !tools.offers(&header.name) => Err(Stop::No),
        Opening::Call(_) | Opening::Object | Opening::List | Opening::Gemma => Ok(()),
    }
}

/// A whole object, its keys in any order.
pub(crate) fn whole(text: &str) -> Option<WholeCall> {
    let object: BTreeMap<String, &RawValue> = serde_json::from_str(text).ok()?;
    let inner = object.get("function").and_then(|inner| serde_json::from_str(inner.get()).ok());
    let inner: BTreeMap<String, &RawValue> = inner.unwrap_or_default();
    let members = || inner.iter().chain(&object);
    let string = |value: &RawValue| serde_json::from_str::<String>(value.get()).ok();
    let found = |kind: Key| members().filter(move |(key, _)| Key::of(key) == kind).map(|(_, value)| *value);
    let name = found(Key::Name).find_map(string).and_then(|name| checked(name).ok())?;
    let arguments = match found(Key::Arguments).next() {
        None if found(Key::Other).next().is_some() => return None,
        None => String::new(),
        Some(value) => string(value).or_else(|| valid(value.get()).map(str::to_owned))?,
    };
    Some(WholeCall { name, id: found(Key::Id).find_map(string), arguments })
}
