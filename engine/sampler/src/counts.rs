//! Numbers of times that tokens are in the prompt and in the answer.

use std::collections::HashMap;

/// Occurrences of a token.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Occurrences {
    pub(crate) in_prompt: bool,
    pub(crate) generated: u32,
}

/// Occurrences of all tokens of a choice. The frequency and presence penalties count accepted tokens of the answer; the
/// repetition penalty also sees the prompt, as in Hugging Face's transformers and vLLM.
#[derive(Debug, Clone, Default)]
pub(crate) struct Counts(HashMap<u32, Occurrences>);

impl Counts {
    /// Counts of a prompt, with room for `generated` further tokens.
    pub(crate) fn new(prompt: &[u32], generated: usize, vocabulary: usize) -> Self {
        let room = prompt.len().saturating_add(generated).min(vocabulary);
        let mut counts = HashMap::with_capacity(room);
        for &token in prompt {
            counts.insert(token, Occurrences { in_prompt: true, generated: 0 });
        }
        Self(counts)
    }

    pub(crate) fn add(&mut self, token: u32) {
        let occurrences = self.0.entry(token).or_default();
        occurrences.generated = occurrences.generated.saturating_add(1);
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, Occurrences)> + '_ {
        self.0.iter().map(|(&token, &occurrences)| (token, occurrences))
    }
}
