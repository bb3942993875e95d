//! Random numbers by counter: Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011).
//!
//! The number of a position is computed from (seed, choice, position) alone, with no state that other requests or
//! discarded drafts could move.

use std::hash::{BuildHasher, RandomState};

/// Random numbers of one choice of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RandomStream {
    seed: u64,
    choice: u32,
}

impl RandomStream {
    /// Stream of a choice, by its number within the request.
    #[must_use]
    pub fn new(seed: u64, choice: u32) -> Self {
        Self { seed, choice }
    }

    /// Number of a position, from 0 and below 1, with 53 random bits.
    #[must_use]
    pub fn uniform(&self, position: u64) -> f64 {
        let counter = [low(position), high(position), self.choice, 0];
        let [first, second, ..] = philox(counter, [low(self.seed), high(self.seed)]);
        let bits = (u64::from(first) << 32 | u64::from(second)) >> 11;
        bits as f64 * (1.0 / (1u64 << 53) as f64)
    }
}

/// Seed for a request without one: unpredictable, and another at each call.
#[must_use]
pub fn fresh_seed() -> u64 {
    RandomState::new().hash_one(0)
}

fn low(value: u64) -> u32 {
    (value & u64::from(u32::MAX)) as u32
}

fn high(value: u64) -> u32 {
    (value >> 32) as u32
}

/// Ten rounds of Philox 4x32.
fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..10 {
        let even = 0xD251_1F53 * u64::from(counter[0]);
        let odd = 0xCD9E_8D57 * u64::from(counter[2]);
        counter = [high(odd) ^ counter[1] ^ key[0], low(odd), high(even) ^ counter[3] ^ key[1], low(even)];
        key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
    }
    counter
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn philox_agrees_with_the_published_vectors() {
        let all = u32::MAX;
        assert_eq!(philox([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(philox([all; 4], [all; 2]), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        assert_eq!(
            philox([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344], [0xa409_3822, 0x299f_31d0]),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    /// Chi-square of 64 bins over each of seed, choice and position, the others fixed; and of pairs of neighbours.
    #[test]
    fn numbers_are_uniform_along_seed_choice_and_position() {
        const DRAWS: u32 = 64_000;
        let along: [&dyn Fn(u32) -> f64; 4] = [
            &|at| RandomStream::new(u64::from(at), 3).uniform(5),
            &|at| RandomStream::new(11, at).uniform(5),
            &|at| RandomStream::new(11, 3).uniform(at.into()),
            &|at| {
                let stream = RandomStream::new(12, 0);
                let (first, second) = (stream.uniform(u64::from(at) * 2), stream.uniform(u64::from(at) * 2 + 1));
                ((first * 8.0).floor() * 8.0 + (second * 8.0).floor()) / 64.0
            },
        ];
        for draw in along {
            let mut bins = [0u32; 64];
            (0..DRAWS).for_each(|at| bins[(draw(at) * 64.0) as usize] += 1);
            let expected = f64::from(DRAWS) / 64.0;
            let chi: f64 = bins.iter().map(|&count| (f64::from(count) - expected).powi(2) / expected).sum();
            // 63 degrees of freedom: mean 63, and 99.99 % of sums are below 112.
            assert!((25.0..112.0).contains(&chi), "{chi}");
        }
    }

    #[test]
    fn fresh_seeds_differ() {
        let seeds: HashSet<u64> = (0..10_000).map(|_| fresh_seed()).collect();
        assert_eq!(seeds.len(), 10_000);
    }
}
