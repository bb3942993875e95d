//! Kinds of values: each turns a TOML value into a checked one, or describes the value it expected.
//!
//! Called by [`crate::reader`] with kinds chosen by the manifest and the node's configuration.
//!
//! Invariants: every number and every text has a bound, and every refusal names its bounds or an acceptable example.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use toml::de::{DeInteger, DeValue};

use crate::duration;
use crate::size::ByteSize;

/// Longest text of one value, in bytes.
const STRING_LIMIT: usize = 32 * 1024;
/// Longest part of a refused text that is repeated in a message, in characters.
const SHOWN: usize = 60;

/// Hint for a text without its quotes.
const QUOTES: &str = "write it in quotes";

/// A mismatch: the expected value, and how to repair it.
pub(crate) struct Mismatch {
    pub(crate) expected: String,
    pub(crate) hint: Option<String>,
}

impl Mismatch {
    pub(crate) fn expected(what: impl Into<String>) -> Self {
        Self { expected: what.into(), hint: None }
    }

    pub(crate) fn hint(self, hint: &(impl Display + ?Sized)) -> Self {
        Self { hint: Some(hint.to_string()), ..self }
    }
}

/// A value as messages show it: by its type, texts and numbers up to a bounded length.
pub(crate) fn found(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => quote(text),
        DeValue::Integer(number) => format!("the number {}", excerpt(number.as_str()).escape_debug()),
        DeValue::Float(number) => format!("the number {}", excerpt(number.as_str()).escape_debug()),
        DeValue::Boolean(value) => value.to_string(),
        DeValue::Datetime(_) => "a date".to_owned(),
        DeValue::Array(_) => "a list".to_owned(),
        DeValue::Table(_) => "a table".to_owned(),
    }
}

/// A key as messages show it: as it is, in quotes only where TOML needs them.
pub(crate) fn shown_key(key: &str) -> String {
    let bare = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    if !key.is_empty() && key.len() <= SHOWN && key.bytes().all(bare) { key.to_owned() } else { quote(key) }
}

fn quote(text: &str) -> String {
    let beginning = excerpt(text);
    let more = if beginning.len() < text.len() { "…" } else { "" };
    format!("{beginning:?}{more}")
}

/// The beginning of a text, at most [`SHOWN`] characters of it.
fn excerpt(text: &str) -> &str {
    let end = text.char_indices().nth(SHOWN).map_or(text.len(), |(end, _)| end);
    &text[..end]
}

/// A keyword out of a few.
pub(crate) fn choice<T: Copy>(choices: &[(&str, T)]) -> impl Fn(&DeValue<'_>) -> Result<T, Mismatch> {
    move |value| {
        let chosen = value.as_str().and_then(|text| choices.iter().find(|(name, _)| *name == text));
        chosen.map(|(_, choice)| *choice).ok_or_else(|| {
            let names: Vec<_> = choices.iter().map(|(name, _)| format!("{name:?}")).collect();
            Mismatch::expected(names.join(" or "))
        })
    }
}

/// Yes or no.
pub(crate) fn boolean(value: &DeValue<'_>) -> Result<bool, Mismatch> {
    value.as_bool().ok_or_else(|| Mismatch::expected("true or false"))
}

/// A text parsed by a type of its own, such as a model's name.
pub(crate) fn parsed<T>(expected: &str) -> impl Fn(&DeValue<'_>) -> Result<T, Mismatch>
where
    T: FromStr<Err: Display>,
{
    move |value| {
        let text = value.as_str().ok_or_else(|| unquoted(value, Mismatch::expected(expected), QUOTES))?;
        text.parse().map_err(|error| Mismatch::expected(expected).hint(&error))
    }
}

/// A text of bounded length without a NUL, as environments and arguments need it.
pub(crate) fn string(value: &DeValue<'_>) -> Result<String, Mismatch> {
    let expected = || Mismatch::expected("a text such as \"value\"");
    let text = value.as_str().ok_or_else(|| unquoted(value, expected(), QUOTES))?;
    if text.contains('\0') {
        return Err(expected().hint("it must not contain a NUL byte"));
    }
    if text.len() > STRING_LIMIT {
        return Err(expected().hint(&format!("it has {} bytes, at most {STRING_LIMIT} are allowed", text.len())));
    }
    Ok(text.to_owned())
}

/// The values of `kind`, or `""` for nothing.
pub(crate) fn optional<T>(
    kind: impl Fn(&DeValue<'_>) -> Result<T, Mismatch>,
) -> impl Fn(&DeValue<'_>) -> Result<Option<T>, Mismatch> {
    move |value| if value.as_str() == Some("") { Ok(None) } else { kind(value).map(Some) }
}

/// An absolute path without `.` and `..`, so that it means the same wherever it is used.
pub(crate) fn absolute_path(value: &DeValue<'_>) -> Result<PathBuf, Mismatch> {
    let wrong = || Mismatch::expected("an absolute path: it begins with `/` and has no `..` in it");
    let text = string(value).map_err(|other| Mismatch { expected: wrong().expected, ..other })?;
    let plain = text.split('/').all(|part| part != "." && part != "..");
    if text.starts_with('/') && plain { Ok(text.into()) } else { Err(wrong()) }
}

/// An address that begins with one of the schemes, such as `https://`, and has something behind it.
pub(crate) fn url(schemes: &'static [&'static str]) -> impl Fn(&DeValue<'_>) -> Result<String, Mismatch> {
    move |value| {
        let text = value.as_str().filter(|text| text.len() <= STRING_LIMIT && !text.contains(char::is_control));
        let begins = |text: &&str| schemes.iter().any(|scheme| text.len() > scheme.len() && text.starts_with(scheme));
        text.filter(begins)
            .map(str::to_owned)
            .ok_or_else(|| Mismatch::expected(format!("an address that begins with {}", schemes.join(" or "))))
    }
}

/// A size within bounds.
pub(crate) fn size(range: RangeInclusive<ByteSize>) -> impl Fn(&DeValue<'_>) -> Result<ByteSize, Mismatch> {
    move |value| {
        let wrong = || Mismatch::expected(format!("a size from \"{}\" to \"{}\"", range.start(), range.end()));
        let text = value.as_str().ok_or_else(|| match integer(value) {
            Some(0) if range.start().bytes() == 0 => wrong().hint("write \"0B\""),
            Some(_) | None => unquoted(value, wrong(), "write it in quotes with a unit, such as \"2GiB\""),
        })?;
        let size = text.parse().map_err(|error| wrong().hint(&error))?;
        if range.contains(&size) { Ok(size) } else { Err(wrong()) }
    }
}

/// A duration from one millisecond to a year: long enough for everything, short enough that a clock never overflows.
pub(crate) fn duration(value: &DeValue<'_>) -> Result<Duration, Mismatch> {
    let range = Duration::from_millis(1)..=Duration::from_hours(24 * 365);
    let wrong = || Mismatch::expected("a duration from \"1ms\" to \"365d\"");
    let text =
        value.as_str().ok_or_else(|| unquoted(value, wrong(), "write it in quotes with a unit, such as \"30s\""))?;
    let duration = duration::parse(text).map_err(|error| wrong().hint(&error))?;
    if range.contains(&duration) { Ok(duration) } else { Err(wrong()) }
}

/// A whole number within bounds.
pub(crate) fn number(range: RangeInclusive<u32>) -> impl Fn(&DeValue<'_>) -> Result<u32, Mismatch> {
    move |value| {
        let number = integer(value).and_then(|number| u32::try_from(number).ok());
        number.filter(|number| range.contains(number)).ok_or_else(|| {
            quoted(value, Mismatch::expected(format!("a whole number from {} to {}", range.start(), range.end())))
        })
    }
}

/// A number, with a fraction or without, within bounds; infinities and "not a number" are in no bounds.
pub(crate) fn fraction(range: RangeInclusive<f64>) -> impl Fn(&DeValue<'_>) -> Result<f64, Mismatch> {
    move |value| {
        let number = match value {
            DeValue::Float(float) => float.as_str().parse().ok(),
            DeValue::Integer(whole) => integer_of(whole).and_then(|whole| i32::try_from(whole).ok()).map(f64::from),
            DeValue::String(_) | DeValue::Boolean(_) | DeValue::Datetime(_) | DeValue::Array(_) | DeValue::Table(_) => {
                None
            }
        };
        number.filter(|number| range.contains(number)).ok_or_else(|| {
            let (least, most) = (range.start(), range.end());
            let example = [2.0, 0.5].into_iter().find(|number| range.contains(number)).unwrap_or(*least);
            quoted(value, Mismatch::expected(format!("a number from {least} to {most}, such as {example:?}")))
        })
    }
}

/// The value of an integer, where there is one and it fits.
pub(crate) fn integer(value: &DeValue<'_>) -> Option<i64> {
    value.as_integer().and_then(integer_of)
}

fn integer_of(integer: &DeInteger<'_>) -> Option<i64> {
    i64::from_str_radix(integer.as_str(), integer.radix()).ok()
}

/// Adds the hint to a number or a truth value, which most likely only lacks its quotes.
fn unquoted(value: &DeValue<'_>, wrong: Mismatch, hint: &str) -> Mismatch {
    let bare = value.is_integer() || value.is_float() || value.is_bool();
    if bare { wrong.hint(hint) } else { wrong }
}

/// Adds a hint to a number that has quotes too many.
fn quoted(value: &DeValue<'_>, wrong: Mismatch) -> Mismatch {
    let number = value.as_str().is_some_and(|text| text.parse::<f64>().is_ok());
    if number { wrong.hint("write it without quotes") } else { wrong }
}
