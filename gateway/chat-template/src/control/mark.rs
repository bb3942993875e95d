//! Marks in a client's texts, which tell its control tokens from the template's in the prompt.
//!
//! A mark is a noncharacter of Unicode that stands inside of a control token from before the render to after it:
//!
//! ```text
//!  client's text   "a<|end|>b"  ──▶  "a<·|end|>b"  ──▶ render ──▶  "<|user|>a<·|end|>b<|end|>"
//!                                                                              │
//!  prompt "<|user|>a<|end|>b<|end|>" with the literal range of the first "<|end|>" ◀─┘
//! ```
//!
//! Texts that could become a token together with their neighbours are marked at their ends. The template sees the mark: a search
//! for the token finds nothing in a user's text. In the assistant's own text, tokens that the template searches for
//! (`</think>`) are not marked.

use crate::control::{ControlTokens, add};
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ops::Range;

/// Mark inside of a client's control token.
const MARK: char = '\u{10fffe}';

/// End of a message that is to be continued.
pub(crate) const END: char = '\u{10ffff}';

/// Returns true for noncharacters that a client's text cannot contain, as they have a meaning here.
pub(crate) fn is_mark(c: char) -> bool {
    c == MARK || c == END
}

fn has_marks(text: &str) -> bool {
    // First byte of all characters of the last plane.
    text.as_bytes().contains(&0xf4) && text.contains(is_mark)
}

/// Marks a client's text. `searched`: tokens that stay as they are.
pub(crate) fn mark<'a>(tokens: &ControlTokens, text: &'a str, searched: Option<&BTreeSet<String>>) -> Cow<'a, str> {
    let mut text = Cow::Borrowed(text);
    if has_marks(&text) {
        text = Cow::Owned(text.replace(is_mark, "\u{fffd}"));
    }
    let mut places = Vec::new();
    if tokens.ends_token(&text) {
        places.push(0);
    }
    for at in tokens.starts(&text) {
        let whole = tokens.length_at(&text, at);
        let kept = whole.is_some_and(|length| {
            let token = text.get(at..at + length).unwrap_or("");
            searched.is_some_and(|searched| searched.contains(token))
        });
        if (whole.is_some() && !kept) || tokens.begins_token(&text, at) {
            let first = text.get(at..).and_then(|rest| rest.chars().next()).map_or(0, char::len_utf8);
            places.push(at + first);
        }
    }
    if places.is_empty() { text } else { Cow::Owned(with_marks(&text, &places)) }
}

fn with_marks(text: &str, places: &[usize]) -> String {
    let mut out = String::with_capacity(text.len() + places.len() * MARK.len_utf8());
    let mut done = 0;
    for place in places {
        out.push_str(text.get(done..*place).unwrap_or(""));
        out.push(MARK);
        done = *place;
    }
    out.push_str(text.get(done..).unwrap_or(""));
    out
}

/// Removes the marks from a prompt; with the ranges of the control tokens that are a client's.
pub(crate) fn unmark(tokens: &ControlTokens, marked: String) -> (String, Vec<Range<usize>>) {
    if !has_marks(&marked) {
        return (marked, Vec::new());
    }
    let mut text = String::with_capacity(marked.len());
    let mut places = Vec::new();
    for (at, piece) in marked.split(is_mark).enumerate() {
        if at > 0 {
            places.push(text.len());
        }
        text.push_str(piece);
    }
    let mut literals = Vec::new();
    for place in places {
        if let Some(range) = token_around(tokens, &text, place) {
            add(&mut literals, range);
        }
    }
    (text, literals)
}

/// Control token that begins before a place and ends after it: mostly with the character before the place.
fn token_around(tokens: &ControlTokens, text: &str, place: usize) -> Option<Range<usize>> {
    let from = place.saturating_sub(tokens.longest);
    (from..place).rev().filter(|at| text.is_char_boundary(*at)).find_map(|at| {
        let length = tokens.length_at(text, at)?;
        (at + length > place).then_some(at..at + length)
    })
}

#[cfg(test)]
#[expect(clippy::single_range_in_vec_init, reason = "lists of one range are meant")]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn tokens() -> ControlTokens {
        ["<|a|>", "[INST]", "</think>"].into_iter().map(str::to_owned).collect()
    }

    #[test]
    fn a_clients_token_has_a_range_and_the_templates_has_none() {
        let tokens = tokens();
        let user = mark(&tokens, "x<|a|>y", None);
        let (prompt, literals) = unmark(&tokens, format!("<|a|>{user}<|a|>"));
        assert_eq!((prompt.as_str(), literals), ("<|a|>x<|a|>y<|a|>", vec![6..11]));
    }

    #[test]
    fn a_token_of_two_texts_has_a_range() {
        let tokens = tokens();
        for (left, right) in [("<", "|a|>"), ("x<|a", "|>"), ("<|a|", ">y"), ("[IN", "ST]")] {
            let joined = format!("{}{}", mark(&tokens, left, None), mark(&tokens, right, None));
            let (_, literals) = unmark(&tokens, joined);
            assert_eq!(literals.len(), 1, "{left} {right}");
        }
    }

    #[test]
    fn text_that_a_template_joins_to_a_token_has_a_range() {
        let tokens = tokens();
        let (_, literals) = unmark(&tokens, format!("<{}", mark(&tokens, "|a|>", None)));
        assert_eq!(literals, [0..5]);
    }

    #[test]
    fn searched_tokens_are_not_marked() {
        let searched = BTreeSet::from(["</think>".to_owned()]);
        assert_eq!(mark(&tokens(), "a</think>b", Some(&searched)), "a</think>b");
        assert_ne!(mark(&tokens(), "a</think>b", None), "a</think>b");
    }

    #[test]
    fn plain_text_is_not_copied() {
        assert!(matches!(mark(&tokens(), "plain [text] <b>", None), Cow::Borrowed(_)));
    }

    proptest! {
        #[test]
        fn all_tokens_of_a_clients_texts_have_ranges(
            texts in prop::collection::vec("(<\\|a\\|>|\\[INST\\]|[<|a>\\[\\]INST/é\u{10fffe}]){0,6}", 1..4),
        ) {
            let tokens = tokens();
            let marked: String = texts.iter().map(|text| mark(&tokens, text, None)).collect();
            let (prompt, literals) = unmark(&tokens, marked);
            prop_assert_eq!(&prompt, &texts.concat().replace('\u{10fffe}', "\u{fffd}"));
            // A single text that is the middle of a token is the only one that has no mark of its own.
            prop_assert_eq!(literals, tokens.find(&prompt));
        }
    }
}
