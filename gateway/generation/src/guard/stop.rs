//! Stop strings in text that comes in pieces: for each of them the automaton of Knuth, Morris and Pratt.

use std::sync::Arc;

/// Stop strings of a request, compiled for all its choices.
#[derive(Debug, Clone, Default)]
pub struct StopStrings(Arc<[Pattern]>);

/// Matcher of all stop strings in the text of one choice.
#[derive(Debug)]
pub(super) struct StopMatcher {
    patterns: Arc<[Pattern]>,
    /// Number of bytes of each stop string that match at the end of the text so far.
    matched: Vec<usize>,
    /// Text that may be the beginning of a stop string.
    held: String,
}

#[derive(Debug)]
struct Pattern {
    text: String,
    /// Length of the longest proper prefix of `text` that ends at each of its bytes.
    fallback: Vec<usize>,
}

impl StopStrings {
    /// Compiles stop strings; empty ones are ignored.
    #[must_use]
    pub fn new(stop: &[String]) -> Self {
        Self(stop.iter().filter(|text| !text.is_empty()).cloned().map(Pattern::new).collect())
    }

    /// Bytes of memory that they take, roughly.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let of = |pattern: &Pattern| (size_of::<Pattern>() + pattern.text.len() * (1 + size_of::<usize>())) as u64;
        self.0.iter().map(of).sum()
    }
}

impl Pattern {
    fn new(text: String) -> Self {
        let bytes = text.as_bytes();
        let mut fallback = vec![0; bytes.len()];
        let mut length = 0;
        for at in 1..bytes.len() {
            while length > 0 && bytes.get(length) != bytes.get(at) {
                length = fallback.get(length - 1).copied().unwrap_or(0);
            }
            if bytes.get(length) == bytes.get(at) {
                length += 1;
            }
            if let Some(entry) = fallback.get_mut(at) {
                *entry = length;
            }
        }
        Self { text, fallback }
    }

    /// Goes on by one byte after so many that match. Returns true if the pattern is complete.
    fn advance(&self, matched: &mut usize, byte: u8) -> bool {
        let bytes = self.text.as_bytes();
        while *matched > 0 && bytes.get(*matched) != Some(&byte) {
            *matched = self.fallback.get(*matched - 1).copied().unwrap_or(0);
        }
        if bytes.get(*matched) == Some(&byte) {
            *matched += 1;
        }
        *matched == bytes.len()
    }
}

impl StopMatcher {
    pub(super) fn new(stop: StopStrings) -> Self {
        let StopStrings(patterns) = stop;
        Self { matched: vec![0; patterns.len()], patterns, held: String::new() }
    }

    /// Takes text: what may leave, and the stop string that it completes. Of several that end at the same byte the longest counts.
    pub(super) fn push(&mut self, text: &str) -> (String, Option<String>) {
        if self.patterns.is_empty() {
            return (text.to_owned(), None);
        }
        let before = self.held.len();
        self.held.push_str(text);
        for (at, byte) in text.bytes().enumerate() {
            let patterns = self.patterns.iter().zip(&mut self.matched);
            let complete =
                patterns.filter_map(|(pattern, matched)| pattern.advance(matched, byte).then_some(&pattern.text));
            if let Some(sequence) = complete.max_by_key(|text| text.len()).cloned() {
                let mut text = std::mem::take(&mut self.held);
                text.truncate((before + at + 1).saturating_sub(sequence.len()));
                return (text, Some(sequence));
            }
        }
        // A match begins with the first byte of a stop string, which begins a character.
        let matched = self.matched.iter().copied().max().unwrap_or(0);
        let held = self.held.split_off(self.held.len().saturating_sub(matched));
        (std::mem::replace(&mut self.held, held), None)
    }

    /// Ends the text: what was held back.
    pub(super) fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}
