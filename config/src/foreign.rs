//! Text of a model or a client, escaped for omnictl's output and for the daemons' logs.

use std::fmt::{self, Write as _};

/// Untrusted text for a terminal. Characters that could control the terminal, or change the order in which a line is
/// read, become visible escapes; JSON alone escapes no control characters beyond ASCII. Line ends and tabs stay.
#[derive(Debug, Clone, Copy)]
pub struct Foreign<'a>(pub &'a str);

impl fmt::Display for Foreign<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_order = |c| matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        self.0.chars().try_for_each(|character| {
            if (character.is_control() && !matches!(character, '\t' | '\n')) || is_order(character) {
                write!(f, "{}", character.escape_default())
            } else {
                f.write_char(character)
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_text_cannot_control_a_terminal() {
        let told = Foreign("a\tb\nc \u{1b}[2J\r\u{9b}31m \u{202e}é").to_string();
        assert_eq!(told, "a\tb\nc \\u{1b}[2J\\r\\u{9b}31m \\u{202e}é");
    }
}
