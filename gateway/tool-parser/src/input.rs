//! Text that has come and is not yet decided.

/// Use of a text that leaves the input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    /// Text of the answer.
    Content,
    /// Text of the reasoning.
    Reasoning,
    /// Arguments of a call, as they are or converted to JSON.
    Arguments,
    /// Whole call that was held until its end.
    Call,
    /// Markers, names of functions and parameters, white space around them.
    Marker,
    /// Calls after the first when only one may be made.
    Dropped,
}

/// Text between the part that has left and the end so far.
#[derive(Debug, Default)]
pub(crate) struct Input {
    text: String,
    at: usize,
    /// Uses of all the text, for tests of conservation.
    #[cfg(test)]
    pub(crate) ledger: Vec<(Use, String)>,
}

impl Input {
    /// Adds text. Amortised cost: linear in all the text.
    pub(crate) fn push(&mut self, text: &str) {
        if self.at > 0 && self.at * 2 >= self.text.len() {
            self.text.drain(..self.at);
            self.at = 0;
        }
        self.text.push_str(text);
    }

    /// Text that is not yet decided.
    pub(crate) fn rest(&self) -> &str {
        self.text.get(self.at..).unwrap_or_default()
    }

    /// Removes text from the beginning; `length` ends a character.
    pub(crate) fn take(&mut self, length: usize, used: Use) -> &str {
        let from = self.at;
        self.at = self.text.len().min(from.saturating_add(length));
        #[cfg(test)]
        self.ledger.push((used, self.text[from..self.at].to_owned()));
        #[cfg(not(test))]
        let _ = used;
        self.text.get(from..self.at).unwrap_or_default()
    }
}
