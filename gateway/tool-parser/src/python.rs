//! Python calls and literals: `[f(a=1, b="x"), g()]`.

use crate::call::WholeCall;
use crate::json::{self, quoted};

/// Deepest nesting of literals.
const DEPTH: usize = 64;

/// All of a list of calls, with or without its brackets.
pub(crate) fn calls(text: &str) -> Option<Vec<WholeCall>> {
    let mut reader = Reader { rest: text.trim() };
    let list = reader.eat("[");
    let mut calls = vec![reader.call()?];
    while reader.eat(",") && !reader.rest.starts_with(']') {
        calls.push(reader.call()?);
    }
    ((!list || reader.eat("]")) && reader.rest.is_empty()).then_some(calls)
}

/// JSON text of a literal.
pub(crate) fn literal(text: &str) -> Option<String> {
    let mut reader = Reader { rest: text.trim() };
    let mut json = String::new();
    reader.literal(&mut json, DEPTH)?;
    reader.rest.is_empty().then_some(json)
}

struct Reader<'a> {
    rest: &'a str,
}

impl<'a> Reader<'a> {
    /// Takes a token and the white space after it.
    fn eat(&mut self, token: &str) -> bool {
        let found = self.rest.strip_prefix(token);
        self.rest = found.map_or(self.rest, str::trim_start);
        found.is_some()
    }

    fn take(&mut self, length: usize) -> Option<&'a str> {
        let (word, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest.trim_start();
        Some(word)
    }

    fn word(&mut self, also: &str) -> Option<&'a str> {
        let is_word = |c: char| c.is_alphanumeric() || c == '_' || also.contains(c);
        let length = self.rest.find(|c| !is_word(c)).unwrap_or(self.rest.len());
        self.take(length).filter(|word| !word.is_empty())
    }

    fn call(&mut self) -> Option<WholeCall> {
        let name = self.word(".-")?;
        let name = name.strip_suffix(".call").unwrap_or(name).to_owned(); // built-in tools of Llama 3
        let mut arguments = String::from("{");
        self.eat("(").then_some(())?;
        while !self.eat(")") {
            let key = self.word("")?;
            self.eat("=").then_some(())?;
            if arguments.len() > 1 {
                arguments.push_str(", ");
            }
            arguments.push_str(&quoted(key));
            arguments.push_str(": ");
            self.literal(&mut arguments, DEPTH)?;
            if !self.eat(",") && !self.rest.starts_with(')') {
                return None;
            }
        }
        arguments.push('}');
        Some(WholeCall { name, id: None, arguments })
    }

    fn literal(&mut self, json: &mut String, depth: usize) -> Option<()> {
        let depth = depth.checked_sub(1)?;
        match self.rest.bytes().next()? {
            b'[' => self.list("[", "]", json, depth),
            b'(' => self.list("(", ")", json, depth),
            b'{' => self.dictionary(json, depth),
            b'"' | b'\'' => {
                let text = self.string()?;
                json.push_str(&quoted(&text));
                Some(())
            }
            _ => {
                let word = self.word("+-.")?;
                json.push_str(match word {
                    "True" | "true" => "true",
                    "False" | "false" => "false",
                    "None" | "null" => "null",
                    number => json::valid(number)?,
                });
                Some(())
            }
        }
    }

    fn list(&mut self, open: &str, close: &str, json: &mut String, depth: usize) -> Option<()> {
        self.eat(open);
        json.push('[');
        let mut first = true;
        while !self.eat(close) {
            if !first {
                json.push_str(", ");
            }
            first = false;
            self.literal(json, depth)?;
            if !self.eat(",") && !self.rest.starts_with(close) {
                return None;
            }
        }
        json.push(']');
        Some(())
    }

    fn dictionary(&mut self, json: &mut String, depth: usize) -> Option<()> {
        self.eat("{");
        json.push('{');
        let mut first = true;
        while !self.eat("}") {
            if !first {
                json.push_str(", ");
            }
            first = false;
            let key = self.string()?;
            json.push_str(&quoted(&key));
            self.eat(":").then_some(())?;
            json.push_str(": ");
            self.literal(json, depth)?;
            if !self.eat(",") && !self.rest.starts_with('}') {
                return None;
            }
        }
        json.push('}');
        Some(())
    }

    fn string(&mut self) -> Option<String> {
        let quote = self.rest.chars().next().filter(|c| matches!(c, '"' | '\''))?;
        let mut text = String::new();
        let mut chars = self.rest.char_indices().skip(1);
        while let Some((at, c)) = chars.next() {
            match c {
                '\\' => match chars.next()?.1 {
                    'n' => text.push('\n'),
                    't' => text.push('\t'),
                    'r' => text.push('\r'),
                    '\n' => {}
                    'u' => {
                        let digits: String = chars.by_ref().take(4).map(|(_, digit)| digit).collect();
                        text.push(char::from_u32(u32::from_str_radix(&digits, 16).ok()?)?);
                    }
                    c @ ('\\' | '\'' | '"') => text.push(c),
                    other => text.extend(['\\', other]),
                },
                _ if c == quote => {
                    self.take(at + 1)?;
                    return Some(text);
                }
                _ => text.push(c),
            }
        }
        None
    }
}
