//! Stop strings in text that comes in pieces: for each of them the automaton of Knuth, Morris and Pratt.

/// Matcher of all stop strings of a request.
#[derive(Debug)]
pub(super) struct StopMatcher {
    patterns: Vec<Pattern>,
    /// Text that may be the beginning of a stop string.
    held: String,
}

#[derive(Debug)]
struct Pattern {
    text: String,
    /// Length of the longest proper prefix of `text` that ends at each of its bytes.
    fallback: Vec<usize>,
    /// Number of bytes that match at the end of the text so far.
    matched: usize,
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
        Self { text, fallback, matched: 0 }
    }

    /// Goes on by one byte. Returns true if the pattern is complete.
    fn advance(&mut self, byte: u8) -> bool {
        let bytes = self.text.as_bytes();
        while self.matched > 0 && bytes.get(self.matched) != Some(&byte) {
            self.matched = self.fallback.get(self.matched - 1).copied().unwrap_or(0);
        }
        if bytes.get(self.matched) == Some(&byte) {
            self.matched += 1;
        }
        self.matched == bytes.len()
    }
}

impl StopMatcher {
    pub(super) fn new(stop: Vec<String>) -> Self {
        let patterns = stop.into_iter().filter(|text| !text.is_empty()).map(Pattern::new).collect();
        Self { patterns, held: String::new() }
    }

    /// Takes text: what may leave, and the stop string that it completes. Of several that end at the same byte the longest counts.
    pub(super) fn push(&mut self, text: &str) -> (String, Option<String>) {
        if self.patterns.is_empty() {
            return (text.to_owned(), None);
        }
        let before = self.held.len();
        self.held.push_str(text);
        for (at, byte) in text.bytes().enumerate() {
            let complete =
                self.patterns.iter_mut().filter_map(|pattern| pattern.advance(byte).then_some(&pattern.text));
            if let Some(sequence) = complete.max_by_key(|text| text.len()).cloned() {
                let mut text = std::mem::take(&mut self.held);
                text.truncate((before + at + 1).saturating_sub(sequence.len()));
                return (text, Some(sequence));
            }
        }
        // A match begins with the first byte of a stop string, which begins a character.
        let matched = self.patterns.iter().map(|pattern| pattern.matched).max().unwrap_or(0);
        let held = self.held.split_off(self.held.len().saturating_sub(matched));
        (std::mem::replace(&mut self.held, held), None)
    }

    /// Ends the text: what was held back.
    pub(super) fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}
