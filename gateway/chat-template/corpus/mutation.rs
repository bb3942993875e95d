//! Templates that nobody wrote: pieces of real ones, cut, doubled and put together.

/// Numbers by a linear congruence: the same for the same seed.
pub(crate) struct Numbers(pub(crate) u64);

impl Numbers {
    /// Number below a limit.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap_or(0) % limit.max(1)
    }
}

/// Pieces of a template: tags, and the texts between them.
fn pieces(source: &str) -> Vec<&str> {
    source.split_inclusive('}').flat_map(|piece| piece.split_inclusive(' ')).collect()
}

/// A template made of two.
pub(crate) fn mutated(numbers: &mut Numbers, one: &str, other: &str) -> String {
    let mut mutant = pieces(one);
    let donor = pieces(other);
    for _ in 0..=numbers.below(4) {
        let at = numbers.below(mutant.len());
        let end = (at + 1 + numbers.below(6)).min(mutant.len());
        match numbers.below(4) {
            0 => drop(mutant.drain(at..end)),
            1 => {
                let copy: Vec<&str> = mutant[at..end].to_vec();
                mutant.splice(at..at, copy);
            }
            2 => {
                let from = numbers.below(donor.len());
                let to = (from + 1 + numbers.below(6)).min(donor.len());
                mutant.splice(at..end, donor[from..to].iter().copied());
            }
            _ => {
                let word = ["[", "]", "(", ")", "*", "~", "+", "-", "|", "loop", "ns", "messages", "99999", "''", "."];
                mutant.insert(at, word[numbers.below(word.len())]);
            }
        }
        if mutant.is_empty() {
            break;
        }
    }
    mutant.concat()
}
