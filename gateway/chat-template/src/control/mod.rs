//! Control tokens: texts that a tokenizer turns into one token with a meaning of its own, such as the end of a turn.
//!
//! A client's text that contains one must stay text. [`mark`] follows such texts through a render, and the prompt comes with
//! the ranges that the engine must encode as text. An engine that cannot do that gets the text of [`ControlTokens::neutralised`].

pub(crate) mod mark;
pub(crate) mod shape;

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ops::Range;

/// Longest token, in bytes; longer ones are no control tokens.
const MAX_LENGTH: usize = 128;

/// Inserted into control tokens that must be text: ZERO WIDTH SPACE.
const BREAK: char = '\u{200b}';

/// Set of control tokens.
#[derive(Debug, Clone)]
pub struct ControlTokens {
    /// First bytes of tokens.
    first: [bool; 256],
    forward: Trie,
    /// The tokens from their last byte to their first.
    backward: Trie,
    longest: usize,
}

impl FromIterator<String> for ControlTokens {
    /// Collects tokens. Those without punctuation (`USER`) and those of less than three bytes are left out: they are words.
    fn from_iter<I: IntoIterator<Item = String>>(tokens: I) -> Self {
        let tokens: BTreeSet<String> = tokens.into_iter().filter(|token| is_distinct(token)).collect();
        let (mut forward, mut backward) = (Trie::new(), Trie::new());
        let mut first = [false; 256];
        for token in &tokens {
            if let Some(byte) = token.bytes().next() {
                first[usize::from(byte)] = true;
            }
            forward.insert(token.bytes());
            backward.insert(token.bytes().rev());
        }
        Self { first, forward, backward, longest: tokens.iter().map(String::len).max().unwrap_or(0) }
    }
}

/// Returns true for a text that no prose contains by chance.
fn is_distinct(token: &str) -> bool {
    let punctuation = token.chars().any(|c| !c.is_alphanumeric() && !c.is_whitespace() && c != '\u{2581}');
    (3..=MAX_LENGTH).contains(&token.len()) && punctuation && token.trim() == token
}

impl ControlTokens {
    /// Ranges of the control tokens in a text, in their order; overlapping ones as one range.
    #[must_use]
    pub fn find(&self, text: &str) -> Vec<Range<usize>> {
        let mut found: Vec<Range<usize>> = Vec::new();
        for at in self.starts(text) {
            if let Some(length) = self.length_at(text, at) {
                add(&mut found, at..at + length);
            }
        }
        found
    }

    /// Returns the text with a zero-width space (U+200B) after the first character of each control token: it reads the same,
    /// and is encoded as text.
    #[must_use]
    pub fn neutralised<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let mut out = String::new();
        let mut done = 0;
        for at in self.starts(text) {
            if self.length_at(text, at).is_some() {
                let end = at + text.get(at..).and_then(|rest| rest.chars().next()).map_or(0, char::len_utf8);
                out.push_str(text.get(done..end).unwrap_or(""));
                out.push(BREAK);
                done = end;
            }
        }
        if done == 0 {
            return Cow::Borrowed(text);
        }
        out.push_str(text.get(done..).unwrap_or(""));
        Cow::Owned(out)
    }

    /// Places where a token may begin.
    fn starts<'a>(&'a self, text: &'a str) -> impl Iterator<Item = usize> + 'a {
        let bytes = text.bytes().enumerate();
        bytes.filter(|(at, byte)| self.first[usize::from(*byte)] && text.is_char_boundary(*at)).map(|(at, _)| at)
    }

    /// Length of the longest token that begins here.
    fn length_at(&self, text: &str, at: usize) -> Option<usize> {
        let rest = text.as_bytes().get(at..).unwrap_or(&[]);
        self.forward.longest(rest.iter().copied()).0
    }

    /// Returns true if the text from here on is the beginning of a token, and not the whole.
    fn begins_token(&self, text: &str, at: usize) -> bool {
        let rest = text.as_bytes().get(at..).unwrap_or(&[]);
        !rest.is_empty() && rest.len() < self.longest && self.forward.longest(rest.iter().copied()).1 == rest.len()
    }

    /// Returns true if a token ends somewhere in the text, and began before it.
    fn ends_token(&self, text: &str) -> bool {
        let most = text.len().min(self.longest.saturating_sub(1));
        (1..=most).any(|length| {
            let head = text.as_bytes().get(..length).unwrap_or(&[]);
            let (whole, walked) = self.backward.longest(head.iter().rev().copied());
            walked == length && whole != Some(length)
        })
    }
}

/// Adds a range that begins after all others, or overlaps the last.
fn add(found: &mut Vec<Range<usize>>, range: Range<usize>) {
    match found.last_mut() {
        Some(last) if range.start < last.end => last.end = last.end.max(range.end),
        _ => found.push(range),
    }
}

/// Set of byte strings by their common beginnings.
#[derive(Debug, Clone)]
struct Trie {
    nodes: Vec<Node>,
}

#[derive(Debug, Clone, Default)]
struct Node {
    /// Next nodes by their bytes, sorted.
    next: Vec<(u8, usize)>,
    /// A string ends here.
    end: bool,
}

impl Trie {
    fn new() -> Self {
        Self { nodes: vec![Node::default()] }
    }

    fn insert(&mut self, bytes: impl Iterator<Item = u8>) {
        let mut at = 0;
        for byte in bytes {
            let size = self.nodes.len();
            let Some(node) = self.nodes.get_mut(at) else { return };
            match node.next.binary_search_by_key(&byte, |(byte, _)| *byte) {
                Ok(place) => at = node.next.get(place).map_or(0, |(_, next)| *next),
                Err(place) => {
                    node.next.insert(place, (byte, size));
                    self.nodes.push(Node::default());
                    at = size;
                }
            }
        }
        if let Some(node) = self.nodes.get_mut(at) {
            node.end = true;
        }
    }

    fn step(&self, at: usize, byte: u8) -> Option<usize> {
        let next = &self.nodes.get(at)?.next;
        let place = next.binary_search_by_key(&byte, |(byte, _)| *byte).ok()?;
        next.get(place).map(|(_, next)| *next)
    }

    /// Length of the longest string that the bytes begin with, and number of bytes that begin some string.
    fn longest(&self, bytes: impl Iterator<Item = u8>) -> (Option<usize>, usize) {
        let (mut at, mut walked, mut whole) = (0, 0, None);
        for byte in bytes {
            let Some(next) = self.step(at, byte) else { break };
            at = next;
            walked += 1;
            if self.nodes.get(at).is_some_and(|node| node.end) {
                whole = Some(walked);
            }
        }
        (whole, walked)
    }
}

#[cfg(test)]
#[expect(clippy::single_range_in_vec_init, reason = "lists of one range are meant")]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn tokens() -> ControlTokens {
        ["<|a|>", "<|ab|>", "[X]", "</s>", "USER", "<s"].into_iter().map(str::to_owned).collect()
    }

    #[test]
    fn tokens_are_found() {
        let cases: [(&str, &[Range<usize>]); 6] = [
            ("a<|a|>b[X]", &[1..6, 7..10]),
            ("<|ab|>", &[0..6]),
            ("<<|a|>", &[1..6]),
            ("<|a", &[]),
            ("USER: hi <s", &[]),
            ("é</s></s>", &[2..6, 6..10]),
        ];
        for (text, ranges) in cases {
            assert_eq!(tokens().find(text), ranges, "{text}");
        }
    }

    #[test]
    fn neutralised_text_reads_the_same() {
        assert_eq!(tokens().neutralised("a<|a|>b"), "a<\u{200b}|a|>b");
        assert_eq!(tokens().neutralised("a<|b|>"), "a<|b|>");
    }

    proptest! {
        #[test]
        fn neutralised_text_has_no_tokens(text in "(<\\|a\\|>|<\\|ab\\|>|\\[X\\]|</s>|[<|ab>\\[é ])*") {
            let tokens = tokens();
            let safe = tokens.neutralised(&text);
            prop_assert!(tokens.find(&safe).is_empty());
            prop_assert_eq!(safe.replace('\u{200b}', ""), text);
        }
    }
}
