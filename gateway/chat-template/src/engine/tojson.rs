//! Filter `tojson`: Python's `json.dumps(value, ensure_ascii=False)`, without HTML escapes.

use crate::control::mark;
use crate::engine::number::{as_float, write_float};
use crate::engine::text::{exhausted, remaining};
use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Error, ErrorKind, State};
use std::borrow::Cow;

/// Deepest value.
const MAX_DEPTH: usize = 256;

/// Output bytes for one fuel.
const BYTES: u64 = 32;

/// `tojson(ensure_ascii=False, indent=None, separators=None, sort_keys=False)`.
#[expect(clippy::needless_pass_by_value, reason = "minijinja gives the arguments of filters as values")]
pub(crate) fn filter(
    state: &State,
    value: &Value,
    ensure_ascii: Option<Value>,
    indent: Option<Value>,
    options: Kwargs,
) -> Result<Value, Error> {
    let given = |name: &str, positional: Option<Value>| match positional {
        Some(value) => Ok(Some(value)),
        None => options.get::<Option<Value>>(name),
    };
    let indent = given("indent", indent)?.filter(|indent| !indent.is_none());
    let indent = indent.map(|indent| match (indent.as_str(), indent.as_i64()) {
        (Some(text), _) => text.to_owned(),
        // As in Python, where `True` is 1 and a negative width is none.
        (None, Some(width)) => " ".repeat(usize::try_from(width).unwrap_or(0).min(256)),
        (None, None) => " ".repeat(usize::from(indent.is_true())),
    });
    let separators = options.get::<Option<Value>>("separators")?.filter(|separators| !separators.is_none());
    let (comma, colon) = match separators {
        None => (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned()),
        Some(pair) => {
            let part = |at: usize| pair.get_item_by_index(at)?.as_str().map(str::to_owned).ok_or_else(bad_separators);
            (part(0)?, part(1)?)
        }
    };
    let mut writer = Writer {
        state,
        out: String::new(),
        ascii: given("ensure_ascii", ensure_ascii)?.is_some_and(|value| value.is_true()),
        sort: options.get::<Option<Value>>("sort_keys")?.is_some_and(|value| value.is_true()),
        indent,
        comma,
        colon,
        limit: usize::try_from(remaining(state)).unwrap_or(usize::MAX),
    };
    writer.value(value, 0)?;
    state.consume_fuel(writer.out.len() as u64 / BYTES)?;
    Ok(Value::from(writer.out))
}

fn bad_separators() -> Error {
    Error::new(ErrorKind::InvalidOperation, "separators are not two texts")
}

fn unserializable(what: &str) -> Error {
    Error::new(ErrorKind::BadSerialization, format!("{what} is not JSON serializable"))
}

struct Writer<'a, 'b, 'c> {
    state: &'a State<'b, 'c>,
    out: String,
    ascii: bool,
    sort: bool,
    indent: Option<String>,
    comma: String,
    colon: String,
    limit: usize,
}

impl Writer<'_, '_, '_> {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if self.out.len() > self.limit {
            return Err(exhausted(self.state));
        }
        if depth > MAX_DEPTH {
            return Err(Error::new(ErrorKind::BadSerialization, format!("nested more than {MAX_DEPTH} deep")));
        }
        match value.kind() {
            ValueKind::Undefined => return Err(unserializable("an undefined value")),
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number if as_float(value).is_some() => {
                self.float(as_float(value).unwrap_or(0.0));
            }
            ValueKind::Number => self.out.push_str(&value.to_string()),
            ValueKind::String => self.string(value.as_str().unwrap_or("")),
            ValueKind::Seq => self.list(value, depth)?,
            ValueKind::Map => self.map(value, depth)?,
            ValueKind::Iterable if value.is_tuple() => self.list(value, depth)?,
            ValueKind::Iterable => return Err(unserializable("an iterator")),
            kind => return Err(unserializable(&kind.to_string())),
        }
        Ok(())
    }

    fn float(&mut self, value: f64) {
        if value.is_nan() {
            self.out.push_str("NaN");
        } else if value.is_infinite() {
            self.out.push_str(if value > 0.0 { "Infinity" } else { "-Infinity" });
        } else {
            write_float(&mut self.out, value);
        }
    }

    fn list(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        self.out.push('[');
        let mut empty = true;
        for item in value.try_iter()? {
            self.between(empty, depth + 1);
            empty = false;
            self.value(&item, depth + 1)?;
        }
        self.close(']', empty, depth);
        Ok(())
    }

    fn map(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        let Some(object) = value.as_object().filter(|object| !is_callable(object.type_name())) else {
            return Err(unserializable("this object"));
        };
        let mut pairs: Vec<(Value, Value)> = object.try_iter_pairs().into_iter().flatten().collect();
        if self.sort {
            pairs.sort_by(|(a, _), (b, _)| a.cmp(b));
        }
        self.out.push('{');
        let empty = pairs.is_empty();
        for (at, (key, item)) in pairs.iter().enumerate() {
            self.between(at == 0, depth + 1);
            self.key(key)?;
            self.out.push_str(&self.colon);
            self.value(item, depth + 1)?;
        }
        self.close('}', empty, depth);
        Ok(())
    }

    fn key(&mut self, key: &Value) -> Result<(), Error> {
        match key.kind() {
            ValueKind::String => self.string(key.as_str().unwrap_or("")),
            ValueKind::None | ValueKind::Bool | ValueKind::Number => {
                self.out.push('"');
                self.value(key, 0)?;
                self.out.push('"');
            }
            _ => return Err(Error::new(ErrorKind::BadSerialization, "a key is no text, number, boolean or none")),
        }
        Ok(())
    }

    /// Separator before an item, and the start of its line.
    fn between(&mut self, first: bool, depth: usize) {
        if !first {
            self.out.push_str(&self.comma);
        }
        self.line(depth);
    }

    fn close(&mut self, bracket: char, empty: bool, depth: usize) {
        if !empty {
            self.line(depth);
        }
        self.out.push(bracket);
    }

    fn line(&mut self, depth: usize) {
        if let Some(indent) = &self.indent {
            self.out.push('\n');
            for _ in 0..depth {
                self.out.push_str(indent);
            }
        }
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        let mut done = 0;
        for (at, c) in text.char_indices() {
            let Some(escape) = self.escape(c) else { continue };
            self.out.push_str(text.get(done..at).unwrap_or(""));
            self.out.push_str(&escape);
            done = at + c.len_utf8();
        }
        self.out.push_str(text.get(done..).unwrap_or(""));
        self.out.push('"');
    }

    fn escape(&self, c: char) -> Option<Cow<'static, str>> {
        let fixed = match c {
            '"' => "\\\"",
            '\\' => "\\\\",
            '\n' => "\\n",
            '\r' => "\\r",
            '\t' => "\\t",
            '\u{8}' => "\\b",
            '\u{c}' => "\\f",
            '\0'..='\u{1f}' => return Some(Cow::Owned(format!("\\u{:04x}", u32::from(c)))),
            '\u{7f}'.. if self.ascii && !mark::is_mark(c) => {
                let mut units = [0; 2];
                let escaped = c.encode_utf16(&mut units).iter().map(|unit| format!("\\u{unit:04x}"));
                return Some(Cow::Owned(escaped.collect()));
            }
            _ => return None,
        };
        Some(Cow::Borrowed(fixed))
    }
}

fn is_callable(name: &str) -> bool {
    name.ends_with("::Macro") || name.ends_with("::Loop") || name.contains("BoxedFunction")
}
