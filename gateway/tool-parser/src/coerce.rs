//! Conversion of raw arguments to JSON by the types of their parameters.

use crate::json::{quoted, valid};
use crate::python;
use crate::tools::Types;

/// JSON text of a raw argument. A text that has none of the types stays a string, as the model wrote it.
pub(crate) fn coerce(raw: &str, types: Types) -> String {
    typed(raw.trim(), types).unwrap_or_else(|| quoted(raw))
}

/// Types other than strings come first: a union of object and string takes an object for an object (vllm#36032).
fn typed(text: &str, types: Types) -> Option<String> {
    let is = |word: &str| text.eq_ignore_ascii_case(word);
    if types.has(Types::NULL) && (text == "null" || text == "None") {
        return Some("null".to_owned());
    }
    if types.has(Types::BOOLEAN) && (is("true") || is("false")) {
        return Some(text.to_ascii_lowercase());
    }
    match text.bytes().next()? {
        b'{' if types.has(Types::OBJECT) => structured(text),
        b'[' if types.has(Types::ARRAY) => structured(text),
        b'-' | b'0'..=b'9' => number(text, types),
        _ => None,
    }
}

fn number(text: &str, types: Types) -> Option<String> {
    let number = valid(text)?;
    let digits = number.strip_prefix('-').unwrap_or(number);
    let is_integer = digits.bytes().all(|byte| byte.is_ascii_digit());
    if types.has(Types::NUMBER) || (types.has(Types::INTEGER) && is_integer) {
        return Some(number.to_owned());
    }
    let whole = number.split_once('.').filter(|(_, fraction)| fraction.bytes().all(|byte| byte == b'0'));
    whole.filter(|_| types.has(Types::INTEGER)).map(|(whole, _)| whole.to_owned())
}

/// JSON, or a literal of Python, which models write where the template shows neither.
fn structured(text: &str) -> Option<String> {
    valid(text).map(str::to_owned).or_else(|| python::literal(text))
}
