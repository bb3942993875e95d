//! JSON indented for reading, with its tokens unchanged.
//!
//! Used wherever an answer is printed as JSON. A parser in between would sort keys and round long numbers; here only
//! white space changes. Invariant: given valid JSON, the result is the same tokens in the same order.

use std::iter::Peekable;
use std::str::Chars;

/// The text of a JSON value with one member or element to a line; empty objects and arrays stay together.
pub(crate) fn indent(json: &str) -> String {
    let mut text = String::with_capacity(json.len() + json.len() / 4);
    let mut depth = 0_usize;
    let mut rest = json.chars().peekable();
    while let Some(character) = rest.next() {
        match character {
            '"' => copy_string(&mut rest, &mut text),
            '{' | '[' => {
                text.push(character);
                skip_space(&mut rest);
                if let Some(end) = rest.next_if(|next| matches!(next, '}' | ']')) {
                    text.push(end);
                } else {
                    depth += 1;
                    new_line(depth, &mut text);
                }
            }
            '}' | ']' => {
                depth = depth.saturating_sub(1);
                new_line(depth, &mut text);
                text.push(character);
            }
            ',' => {
                text.push(',');
                new_line(depth, &mut text);
            }
            ':' => text.push_str(": "),
            space if space.is_ascii_whitespace() => {}
            other => text.push(other),
        }
    }
    text
}

fn copy_string(rest: &mut Peekable<Chars<'_>>, text: &mut String) {
    text.push('"');
    while let Some(character) = rest.next() {
        text.push(character);
        match character {
            '"' => return,
            '\\' => text.extend(rest.next()),
            _ => {}
        }
    }
}

fn skip_space(rest: &mut Peekable<Chars<'_>>) {
    while rest.next_if(char::is_ascii_whitespace).is_some() {}
}

fn new_line(depth: usize, text: &mut String) {
    text.push('\n');
    text.extend(std::iter::repeat_n("  ", depth));
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn the_form_is_that_of_serde_json() {
        for value in [
            json!(null),
            json!("a \"quoted\", [bracketed] {braced}: \\ text"),
            json!([]),
            json!({"a": [], "b": {}, "c": [1, -2.5e10, true], "d": {"e": "f\n"}}),
        ] {
            for compact in [value.to_string(), format!("{value:#}"), format!(" {value} ")] {
                assert_eq!(indent(&compact), format!("{value:#}"));
                assert_eq!(serde_json::from_str::<Value>(&indent(&compact)).unwrap(), value);
            }
        }
    }

    #[test]
    fn order_and_digits_stay() {
        let text = indent(r#"{"z":123456789012345678901234567890,"a":1.50}"#);
        assert_eq!(text, "{\n  \"z\": 123456789012345678901234567890,\n  \"a\": 1.50\n}");
    }
}
