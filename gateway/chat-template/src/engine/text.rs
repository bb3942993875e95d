//! Values as text: Python's `str()`, bounded by the fuel that is left.

use crate::engine::number::{as_float, write_float};
use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Error, ErrorKind, Output, State};
use std::fmt::{self, Write};

/// Bytes for one fuel.
const BYTES: u64 = 64;

/// Cost of an item of a container beside its text, in bytes.
const ITEM: u64 = 128;

/// Deepest container.
const MAX_DEPTH: usize = 256;

/// Bytes that the rest of the fuel could pay for.
pub(crate) fn remaining(state: &State) -> u64 {
    state.fuel_levels().map_or(u64::MAX, |(_, left)| left.saturating_mul(BYTES))
}

/// Uses up the fuel.
pub(crate) fn exhausted(state: &State) -> Error {
    let left = state.fuel_levels().map_or(0, |(_, left)| left);
    state.consume_fuel(left.saturating_add(1)).err().unwrap_or_else(|| Error::from(ErrorKind::OutOfFuel))
}

/// Prints a value.
pub(crate) fn print(out: &mut Output, state: &mut State, value: &Value) -> Result<(), Error> {
    if let Some(text) = value.as_str() {
        return out.write_str(text).map_err(Error::from);
    }
    let mut text = String::new();
    append(state, &mut text, value)?;
    out.write_str(&text).map_err(Error::from)
}

/// Appends a value's text.
pub(crate) fn append(state: &State, text: &mut String, value: &Value) -> Result<(), Error> {
    if let Some(value) = value.as_str() {
        if (text.len() + value.len()) as u64 > remaining(state) {
            return Err(exhausted(state));
        }
        text.push_str(value);
        return Ok(());
    }
    let mut bounded = Bounded { text, items: 0, limit: remaining(state) };
    let written = if is_container(value) { repr(&mut bounded, value, 0) } else { plain(&mut bounded, value) };
    written.map_err(|_| exhausted(state))?;
    state.consume_fuel(bounded.items / BYTES)
}

fn is_container(value: &Value) -> bool {
    let Some(object) = value.as_object() else { return false };
    let live = ["::Macro", "::Loop", "::Namespace"].iter().any(|name| object.type_name().ends_with(name));
    !live && matches!(value.kind(), ValueKind::Seq | ValueKind::Map)
}

fn plain(out: &mut Bounded<'_>, value: &Value) -> fmt::Result {
    match as_float(value) {
        Some(float) => {
            let mut text = String::new();
            write_float(&mut text, float);
            out.write_str(&text)
        }
        None => write!(out, "{value}"),
    }
}

/// Python's `repr`.
fn repr(out: &mut Bounded<'_>, value: &Value, depth: usize) -> fmt::Result {
    if let Some(text) = value.as_str() {
        return quoted(out, text);
    }
    let Some(object) = value.as_object().filter(|_| is_container(value)) else { return plain(out, value) };
    if depth > MAX_DEPTH {
        return Err(fmt::Error);
    }
    if value.kind() == ValueKind::Map {
        out.write_char('{')?;
        for (at, (key, item)) in object.try_iter_pairs().into_iter().flatten().enumerate() {
            out.next(at)?;
            repr(out, &key, depth + 1)?;
            out.write_str(": ")?;
            repr(out, &item, depth + 1)?;
        }
        return out.write_char('}');
    }
    let tuple = value.is_tuple();
    out.write_char(if tuple { '(' } else { '[' })?;
    let mut count = 0;
    for item in object.try_iter().into_iter().flatten() {
        out.next(count)?;
        repr(out, &item, depth + 1)?;
        count += 1;
    }
    out.write_str(match (tuple, count) {
        (true, 1) => ",)",
        (true, _) => ")",
        (false, _) => "]",
    })
}

fn quoted(out: &mut Bounded<'_>, text: &str) -> fmt::Result {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    let is_plain = |c: char| c != '\\' && c != quote && is_printable(c);
    out.write_char(quote)?;
    let mut rest = text;
    loop {
        let (plain, other) = rest.split_at(rest.find(|c| !is_plain(c)).unwrap_or(rest.len()));
        out.write_str(plain)?;
        let mut chars = other.chars();
        match chars.next() {
            None => break,
            Some('\n') => out.write_str("\\n")?,
            Some('\r') => out.write_str("\\r")?,
            Some('\t') => out.write_str("\\t")?,
            Some(c) if c == '\\' || c == quote => write!(out, "\\{c}")?,
            Some(c) => match u32::from(c) {
                code @ 0..=0xff => write!(out, "\\x{code:02x}")?,
                code @ 0x100..=0xffff => write!(out, "\\u{code:04x}")?,
                code => write!(out, "\\U{code:08x}")?,
            },
        }
        rest = chars.as_str();
    }
    out.write_char(quote)
}

/// Python's `str.isprintable`, without characters that Unicode has not assigned.
fn is_printable(c: char) -> bool {
    matches!(c, ' '..='~')
        || !c.is_control()
            && !matches!(c,
            '\u{a0}' | '\u{ad}' | '\u{600}'..='\u{605}' | '\u{61c}' | '\u{6dd}' | '\u{70f}' | '\u{1680}' | '\u{180e}'
            | '\u{2000}'..='\u{200f}' | '\u{2028}'..='\u{202f}' | '\u{205f}'..='\u{206f}' | '\u{3000}'
            | '\u{e000}'..='\u{f8ff}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0001}'..='\u{e007f}')
}

/// Text with a limit.
struct Bounded<'a> {
    text: &'a mut String,
    /// Cost of the items of containers so far.
    items: u64,
    /// Bytes of text and items together.
    limit: u64,
}

impl Bounded<'_> {
    /// Begins an item of a container that has `before` others before it.
    fn next(&mut self, before: usize) -> fmt::Result {
        self.items += ITEM;
        self.write_str(if before > 0 { ", " } else { "" })
    }
}

impl Write for Bounded<'_> {
    fn write_str(&mut self, piece: &str) -> fmt::Result {
        if (self.text.len() + piece.len()) as u64 + self.items > self.limit {
            return Err(fmt::Error);
        }
        self.text.push_str(piece);
        Ok(())
    }
}

/// Filter `string`.
pub(crate) fn string(state: &State, value: Value) -> Result<Value, Error> {
    if value.kind() == ValueKind::String {
        return Ok(value);
    }
    let mut text = String::new();
    append(state, &mut text, &value)?;
    Ok(Value::from(text))
}

/// Filter `join`.
#[expect(clippy::needless_pass_by_value, reason = "minijinja gives the arguments of filters as values")]
pub(crate) fn join(state: &State, value: &Value, joiner: Option<Value>, options: Kwargs) -> Result<Value, Error> {
    let joiner = joiner.map_or_else(|| options.get::<Option<Value>>("d"), |joiner| Ok(Some(joiner)))?;
    let attribute = options.get::<Option<&str>>("attribute")?;
    let mut between = String::new();
    if let Some(joiner) = joiner {
        append(state, &mut between, &joiner)?;
    }
    let item = |item: Value| match attribute {
        Some(name) => item.get_attr(name),
        None => Ok(item),
    };
    joined(state, value, &between, item)
}

/// Texts of the items of a value, with a text between them.
pub(crate) fn joined(
    state: &State,
    items: &Value,
    between: &str,
    map: impl Fn(Value) -> Result<Value, Error>,
) -> Result<Value, Error> {
    let mut text = String::new();
    for (at, item) in items.try_iter()?.enumerate() {
        if at % 64 == 63 {
            state.consume_fuel(1)?;
        }
        if at > 0 {
            append(state, &mut text, &Value::from(between))?;
        }
        append(state, &mut text, &map(item)?)?;
    }
    Ok(Value::from(text))
}

/// Filter `indent`: jinja2's, which keeps a newline at the end.
#[expect(clippy::needless_pass_by_value, reason = "minijinja gives the arguments of filters as values")]
pub(crate) fn indent(
    state: &State,
    value: &Value,
    width: Option<Value>,
    first: Option<bool>,
    options: Kwargs,
) -> Result<Value, Error> {
    let width = width.map_or_else(|| options.get::<Option<Value>>("width"), |width| Ok(Some(width)))?;
    let first = first.map_or_else(|| options.get::<Option<bool>>("first"), |first| Ok(Some(first)))?.unwrap_or(false);
    let blank = options.get::<Option<bool>>("blank")?.unwrap_or(false);
    let mut text = String::new();
    append(state, &mut text, value)?;
    text.push('\n');
    let lines = lines(&text);
    let margin = match width {
        None => "    ".to_owned(),
        Some(width) => match (width.as_str(), width.as_usize()) {
            (Some(text), _) => text.to_owned(),
            (None, Some(count)) if count as u64 <= remaining(state) => " ".repeat(count),
            (None, Some(_)) => return Err(exhausted(state)),
            (None, None) => return Err(Error::new(ErrorKind::InvalidOperation, "the width is no number and no text")),
        },
    };
    if (lines.len() as u64).saturating_mul(margin.len() as u64).saturating_add(text.len() as u64) > remaining(state) {
        return Err(exhausted(state));
    }
    let mut out = String::with_capacity(text.len() + margin.len());
    for (at, line) in lines.into_iter().enumerate() {
        if at > 0 {
            out.push('\n');
        }
        if if at == 0 { first } else { blank || !line.is_empty() } {
            out.push_str(&margin);
        }
        out.push_str(line);
    }
    Ok(Value::from(out))
}

/// Lines of a text without their ends, as Python's `splitlines` finds them: no empty one after the last end.
pub(crate) fn lines(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(is_line_end) {
        let (line, tail) = rest.split_at(at);
        found.push(line);
        let length = if tail.starts_with("\r\n") { 2 } else { tail.chars().next().map_or(0, char::len_utf8) };
        rest = tail.get(length..).unwrap_or("");
    }
    if !rest.is_empty() {
        found.push(rest);
    }
    found
}

fn is_line_end(c: char) -> bool {
    matches!(c, '\n' | '\r' | '\x0b' | '\x0c' | '\x1c'..='\x1e' | '\u{85}' | '\u{2028}' | '\u{2029}')
}
