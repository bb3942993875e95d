//! Calls of Gemma 4 and FunctionGemma: `call:f{a:<|"|>x<|"|>,b:[1,true]}`.

use crate::call::WholeCall;
use crate::json::{quoted, valid};

/// Marks around strings.
pub(crate) const QUOTES: &[&str] = &["<|\"|>", "<escape>"];

/// Marks of the end of a call.
pub(crate) const ENDS: &[&str] = &["<tool_call|>", "<end_function_call>"];

/// Deepest nesting of values.
const DEPTH: usize = 64;

/// A whole call.
pub(crate) fn call(text: &str) -> Option<WholeCall> {
    let rest = text.trim().strip_prefix("call:")?;
    let (name, _) = rest.split_once('{')?;
    let mut reader = Reader { rest: rest.get(name.len()..)? };
    let mut arguments = String::new();
    reader.value(&mut arguments, DEPTH)?;
    reader.rest.is_empty().then(|| WholeCall { name: name.trim().to_owned(), id: None, arguments })
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

    /// Text between marks.
    fn string(&mut self) -> Option<&'a str> {
        let quote = QUOTES.iter().find(|quote| self.rest.starts_with(**quote))?;
        let (text, rest) = self.rest.strip_prefix(quote)?.split_once(quote)?;
        self.rest = rest.trim_start();
        Some(text)
    }

    /// Text up to the end of a key or a value.
    fn word(&mut self, ends: &[char]) -> Option<&'a str> {
        let (word, rest) = self.rest.split_at(self.rest.find(ends)?);
        self.rest = rest;
        Some(word.trim()).filter(|word| !word.is_empty() && !word.contains(['<', '{', '[']))
    }

    fn value(&mut self, json: &mut String, depth: usize) -> Option<()> {
        let depth = depth.checked_sub(1)?;
        if let Some(text) = self.string() {
            json.push_str(&quoted(text));
        } else if self.eat("{") {
            self.members("}", json, |reader, json| {
                let key = reader.string().or_else(|| reader.word(&[':']))?;
                json.push_str(&quoted(key));
                json.push_str(": ");
                reader.eat(":").then_some(())?;
                reader.value(json, depth)
            })?;
        } else if self.eat("[") {
            self.members("]", json, |reader, json| reader.value(json, depth))?;
        } else {
            let word = self.word(&[',', '}', ']'])?;
            json.push_str(&valid(word).map_or_else(|| quoted(word), str::to_owned));
        }
        Some(())
    }

    /// Members up to a bracket, with commas between them.
    fn members(
        &mut self,
        close: &str,
        json: &mut String,
        mut member: impl FnMut(&mut Self, &mut String) -> Option<()>,
    ) -> Option<()> {
        json.push_str(if close == "}" { "{" } else { "[" });
        let mut first = true;
        while !self.eat(close) {
            if !first {
                json.push_str(", ");
            }
            first = false;
            member(self, json)?;
            if !self.eat(",") && !self.rest.starts_with(close) {
                return None;
            }
        }
        json.push_str(close);
        Some(())
    }
}
