//! Tokens of an expression.

/// Kind of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Name or keyword.
    Name,
    /// Text in quotes.
    Text,
    /// Number.
    Number,
    /// Operator or bracket, one character each; `==`, `!=`, `<=`, `>=`, `//` and `**` are one token.
    Sign,
}

/// A token and the place where it stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Token<'a> {
    /// Kind.
    pub(crate) kind: Kind,
    /// Text, with its quotes.
    pub(crate) text: &'a str,
    /// Offset of its first byte.
    pub(crate) at: usize,
}

impl Token<'_> {
    /// Returns true for this name.
    pub(crate) fn is_name(&self, name: &str) -> bool {
        self.kind == Kind::Name && self.text == name
    }

    /// Returns true for this operator or bracket.
    pub(crate) fn is_sign(&self, sign: &str) -> bool {
        self.kind == Kind::Sign && self.text == sign
    }

    /// Contents of a text: escapes that matter for control tokens resolved, others as they stand.
    pub(crate) fn unquoted(&self) -> String {
        let inner = self.text.get(1..self.text.len().saturating_sub(1)).unwrap_or("");
        inner.replace("\\n", "\n").replace("\\'", "'").replace("\\\"", "\"")
    }
}

/// Offset after the text in quotes that begins at `at`.
pub(crate) fn string_end(text: &str, at: usize) -> usize {
    let bytes = text.as_bytes();
    let quote = bytes.get(at);
    let mut end = at + 1;
    while let Some(byte) = bytes.get(end) {
        match byte {
            b'\\' => end += 2,
            _ if Some(byte) == quote => return end + 1,
            _ => end += 1,
        }
    }
    bytes.len()
}

/// Cuts an expression into tokens; whitespace is left out.
pub(crate) fn tokens(text: &str) -> Vec<Token<'_>> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(first) = text.get(at..).and_then(|rest| rest.chars().next()) {
        let rest = text.get(at..).unwrap_or("");
        let span = |more: fn(char) -> bool| rest.find(|c| !more(c)).unwrap_or(rest.len());
        let (kind, length) = match first {
            _ if first.is_whitespace() => {
                at += first.len_utf8();
                continue;
            }
            '"' | '\'' => (Kind::Text, string_end(text, at) - at),
            '0'..='9' => (Kind::Number, span(|c| c.is_ascii_alphanumeric() || c == '_')),
            _ if first.is_alphabetic() || first == '_' => (Kind::Name, span(|c| c.is_alphanumeric() || c == '_')),
            _ => {
                let double = ["==", "!=", "<=", ">=", "//", "**"].iter().any(|sign| rest.starts_with(sign));
                (Kind::Sign, if double { 2 } else { first.len_utf8() })
            }
        };
        // A text that ends in a backslash is longer than the expression.
        let end = (at + length).min(text.len());
        let Some(piece) = text.get(at..end) else { break };
        found.push(Token { kind, text: piece, at });
        at = end;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_expression_is_cut_into_tokens() {
        let cases: [(&str, &[&str]); 4] = [
            ("a.b['c d'] == 1", &["a", ".", "b", "[", "'c d'", "]", "==", "1"]),
            (r#"x ~ "a\"b" "#, &["x", "~", r#""a\"b""#]),
            ("a//b**2", &["a", "//", "b", "**", "2"]),
            ("é1 <= 0x1f", &["é1", "<=", "0x1f"]),
        ];
        for (text, expected) in cases {
            assert_eq!(tokens(text).iter().map(|token| token.text).collect::<Vec<_>>(), expected, "{text}");
        }
    }

    proptest! {
        #[test]
        fn tokens_stand_where_they_say(text in r#"['"\\a1é.=*/ \[\]-]*"#) {
            for token in tokens(&text) {
                prop_assert_eq!(text.get(token.at..token.at + token.text.len()), Some(token.text));
            }
        }
    }
}
