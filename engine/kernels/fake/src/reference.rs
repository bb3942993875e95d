//! Tokens of a sequence that is computed alone, without blocks and steps.

/// Contents of the positions of one sequence.
#[derive(Debug, Clone, Default)]
pub struct Reference {
    contents: Vec<u64>,
}

impl Reference {
    /// Appends a token.
    pub fn push(&mut self, token: u32) {
        let content = content(token, self.contents.iter().copied());
        self.contents.push(content);
    }

    /// Token with the greatest logit after those that were pushed; 0 if none was.
    #[must_use]
    pub fn next(&self, vocabulary: usize) -> u32 {
        self.contents.last().map_or(0, |content| best(*content, vocabulary))
    }

    /// Tokens of the answer to a prompt, each the one with the greatest logit.
    #[must_use]
    pub fn answer(prompt: &[u32], tokens: usize, vocabulary: usize) -> Vec<u32> {
        let mut reference = Self::default();
        prompt.iter().for_each(|token| reference.push(*token));
        (0..tokens)
            .map(|_| {
                let next = reference.next(vocabulary);
                reference.push(next);
                next
            })
            .collect()
    }
}

/// Content of a position: a hash of its token and of the contents of all positions before it. Never 0.
pub(crate) fn content(token: u32, earlier: impl Iterator<Item = u64>) -> u64 {
    let mut hash = 0x243f_6a88_85a3_08d3;
    let mut count = 0_u64;
    for content in earlier {
        hash = mix(hash, content);
        count += 1;
    }
    mix(mix(hash, count), u64::from(token)).max(1)
}

/// Token with the greatest logit after a position.
pub(crate) fn best(content: u64, vocabulary: usize) -> u32 {
    (content % vocabulary.max(1) as u64) as u32
}

/// Logit of a token after a position: 2 for the best, between -8 and 0 for the others.
pub(crate) fn logit(content: u64, token: usize, vocabulary: usize) -> f32 {
    if token as u64 == u64::from(best(content, vocabulary)) {
        return 2.0;
    }
    let fraction = (mix(content, token as u64) >> 40) as f32 / (1 << 24) as f32;
    fraction * 8.0 - 8.0
}

/// Hash of two numbers.
fn mix(a: u64, b: u64) -> u64 {
    let product = u128::from(a ^ 0x9e37_79b9_7f4a_7c15) * u128::from(b ^ 0xa076_1d64_78bd_642f);
    ((product >> 64) as u64 ^ product as u64).rotate_left(29) ^ a
}
