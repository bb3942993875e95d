//! JSON of clients as values of templates: the order of keys is kept, and integers stay integers up to 128 bits.

use minijinja::value::Value;

/// Deepest nesting.
const MAX_DEPTH: usize = 128;

/// Text that is no JSON, or is nested too deep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Malformed;

/// Parses a document. `text`: makes a value of each text, names in objects included.
pub(crate) fn parse(json: &str, text: &mut dyn FnMut(&str) -> Value) -> Result<Value, Malformed> {
    let mut parser = Parser { rest: json, text };
    let value = parser.value(0)?;
    parser.skip();
    if parser.rest.is_empty() { Ok(value) } else { Err(Malformed) }
}

struct Parser<'a, 'b> {
    rest: &'a str,
    text: &'b mut dyn FnMut(&str) -> Value,
}

impl<'a> Parser<'a, '_> {
    fn value(&mut self, depth: usize) -> Result<Value, Malformed> {
        if depth > MAX_DEPTH {
            return Err(Malformed);
        }
        self.skip();
        match self.rest.bytes().next() {
            Some(b'{') => self.object(depth),
            Some(b'[') => self.array(depth),
            Some(b'"') => self.string(),
            Some(b't') => self.word("true", Value::from(true)),
            Some(b'f') => self.word("false", Value::from(false)),
            Some(b'n') => self.word("null", Value::from(())),
            Some(b'-' | b'0'..=b'9') => self.number(),
            _ => Err(Malformed),
        }
    }

    fn skip(&mut self) {
        self.rest = self.rest.trim_start_matches([' ', '\t', '\n', '\r']);
    }

    fn take(&mut self, sign: char) -> bool {
        self.skip();
        let rest = self.rest.strip_prefix(sign);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn word(&mut self, word: &str, value: Value) -> Result<Value, Malformed> {
        self.rest = self.rest.strip_prefix(word).ok_or(Malformed)?;
        Ok(value)
    }

    fn cut(&mut self, at: usize) -> Result<&'a str, Malformed> {
        let (piece, rest) = self.rest.split_at_checked(at).ok_or(Malformed)?;
        self.rest = rest;
        Ok(piece)
    }

    fn object(&mut self, depth: usize) -> Result<Value, Malformed> {
        self.take('{');
        let mut pairs: Vec<(Value, Value)> = Vec::new();
        if self.take('}') {
            return Ok(Value::from_pairs(pairs));
        }
        loop {
            self.skip();
            let key = self.string()?;
            if !self.take(':') {
                return Err(Malformed);
            }
            pairs.push((key, self.value(depth + 1)?));
            if self.take('}') {
                return Ok(Value::from_pairs(pairs));
            }
            if !self.take(',') {
                return Err(Malformed);
            }
        }
    }

    fn array(&mut self, depth: usize) -> Result<Value, Malformed> {
        self.take('[');
        let mut items = Vec::new();
        if self.take(']') {
            return Ok(Value::from(items));
        }
        loop {
            items.push(self.value(depth + 1)?);
            if self.take(']') {
                return Ok(Value::from(items));
            }
            if !self.take(',') {
                return Err(Malformed);
            }
        }
    }

    fn string(&mut self) -> Result<Value, Malformed> {
        let bytes = self.rest.as_bytes();
        if bytes.first() != Some(&b'"') {
            return Err(Malformed);
        }
        let (mut end, mut escaped) = (1, false);
        loop {
            match bytes.get(end) {
                Some(b'"') => break,
                Some(b'\\') => (end, escaped) = (end + 2, true),
                Some(0x20..) => end += 1,
                Some(_) | None => return Err(Malformed),
            }
        }
        let quoted = self.cut(end + 1)?;
        if escaped {
            let text: String = serde_json::from_str(quoted).map_err(|_| Malformed)?;
            Ok((self.text)(&text))
        } else {
            Ok((self.text)(quoted.get(1..end).ok_or(Malformed)?))
        }
    }

    fn number(&mut self) -> Result<Value, Malformed> {
        let end = self.rest.find(|c: char| !matches!(c, '0'..='9' | '+' | '-' | '.' | 'e' | 'E'));
        let text = self.cut(end.unwrap_or(self.rest.len()))?;
        let number: serde_json::Number = serde_json::from_str(text).map_err(|_| Malformed)?;
        if let Some(value) = number.as_i64() {
            return Ok(Value::from(value));
        }
        if !text.contains(['.', 'e', 'E']) {
            if let Ok(value) = text.parse::<u64>() {
                return Ok(Value::from(value));
            }
            if let Ok(value) = text.parse::<i128>() {
                return Ok(Value::from(value));
            }
        }
        number.as_f64().map(Value::from).ok_or(Malformed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn plain(json: &str) -> Result<Value, Malformed> {
        parse(json, &mut |text| Value::from(text))
    }

    #[test]
    fn keys_keep_their_order() {
        let keys = |value: Value| value.try_iter().unwrap().map(|key| key.to_string()).collect::<Vec<_>>();
        assert_eq!(keys(plain(r#"{"z": 1, "a": 2, "m": 3, "a": 4}"#).unwrap()), ["z", "a", "m"]);
    }

    #[test]
    fn integers_stay_integers() {
        for text in ["0", "-1", "18446744073709551615", "123456789012345678901234567890"] {
            let value = plain(text).unwrap();
            assert!(value.is_integer(), "{text}");
            assert_eq!(value.to_string(), text);
        }
        assert!(!plain("1.0").unwrap().is_integer());
    }

    #[test]
    fn texts_are_unescaped() {
        assert_eq!(plain(r#""a\n\u00e9\ud83d\ude00\"""#).unwrap().as_str(), Some("a\né😀\""));
    }

    #[test]
    fn malformed_documents_are_refused() {
        let deep = format!("{}{}", "[".repeat(200), "]".repeat(200));
        for bad in ["", "{", "[1,]", "{\"a\"}", "tru", "01", "1e", "\"a", "\"\u{1}\"", "[1] 2", "nul", deep.as_str()] {
            assert_eq!(plain(bad), Err(Malformed), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn documents_are_those_of_serde_json(text in r#"[\[\]{}:,"\\a0-9.eE+ tru-]{0,24}"#) {
            let known: Result<serde_json::Value, _> = serde_json::from_str(&text);
            // serde_json refuses numbers beyond a float, which are refused here too.
            prop_assert_eq!(plain(&text).is_ok(), known.is_ok(), "{}", text);
        }
    }
}
