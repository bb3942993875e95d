//! JSON, Python and the values of Gemma as models write them.

use crate::random::Random;
use serde_json::Value;

/// Style of JSON.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Style {
    /// White space after commas and colons.
    spaced: bool,
    /// Escapes of all characters beyond ASCII.
    ascii: bool,
}

impl Style {
    pub(crate) fn random(random: &mut Random) -> Self {
        Self { spaced: !random.once_in(3), ascii: random.once_in(4) }
    }

    pub(crate) fn json(self, value: &Value) -> String {
        let (comma, colon) = if self.spaced { (", ", ": ") } else { (",", ":") };
        match value {
            Value::Object(members) => {
                let member =
                    |(key, value): (&String, &Value)| format!("{}{colon}{}", self.string(key), self.json(value));
                format!("{{{}}}", members.iter().map(member).collect::<Vec<_>>().join(comma))
            }
            Value::Array(items) => {
                format!("[{}]", items.iter().map(|item| self.json(item)).collect::<Vec<_>>().join(comma))
            }
            Value::String(text) => self.string(text),
            other => other.to_string(),
        }
    }

    pub(crate) fn string(self, text: &str) -> String {
        let quoted = Value::from(text).to_string();
        if !self.ascii {
            return quoted;
        }
        let mut out = String::new();
        for c in quoted.chars() {
            if c.is_ascii() {
                out.push(c);
                continue;
            }
            for unit in c.encode_utf16(&mut [0; 2]) {
                out.push_str(&format!("\\u{unit:04x}"));
            }
        }
        out
    }
}

/// Literal of Python.
pub(crate) fn python(value: &Value) -> String {
    match value {
        Value::Object(members) => {
            let member = |(key, value): (&String, &Value)| format!("{}: {}", python_string(key), python(value));
            format!("{{{}}}", members.iter().map(member).collect::<Vec<_>>().join(", "))
        }
        Value::Array(items) => format!("[{}]", items.iter().map(python).collect::<Vec<_>>().join(", ")),
        Value::String(text) => python_string(text),
        Value::Bool(true) => "True".to_owned(),
        Value::Bool(false) => "False".to_owned(),
        Value::Null => "None".to_owned(),
        Value::Number(number) => number.to_string(),
    }
}

/// String of Python, in the quotes that its `repr` takes.
fn python_string(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    let mut out = String::from(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            c if c == quote => out.extend(['\\', c]),
            c => out.push(c),
        }
    }
    out.push(quote);
    out
}

/// Value of Gemma 4.
pub(crate) fn gemma(value: &Value) -> String {
    match value {
        Value::Object(members) => {
            let member = |(key, value): (&String, &Value)| format!("{key}:{}", gemma(value));
            format!("{{{}}}", members.iter().map(member).collect::<Vec<_>>().join(","))
        }
        Value::Array(items) => format!("[{}]", items.iter().map(gemma).collect::<Vec<_>>().join(",")),
        Value::String(text) => format!("<|\"|>{text}<|\"|>"),
        other => other.to_string(),
    }
}
