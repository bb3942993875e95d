//! Ids of tool calls: one maker per dialect, for streamed and whole answers alike (vllm#10821).

/// Form of ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IdForm {
    /// `call_` and 20 alphanumerics.
    Call,
    /// Nine alphanumerics: templates of Mistral refuse others.
    Nine,
    /// `functions.NAME:NUMBER`; the template of Kimi K2 prints it.
    Numbered,
}

/// Alphanumerics.
const ALPHABET: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

impl IdForm {
    /// Id of call `number` of the conversation. `seed`: random number of the choice.
    pub(crate) fn make(self, seed: u64, number: usize, name: &str) -> String {
        let mixed = mix(seed ^ mix(number as u64));
        match self {
            Self::Call => format!("call_{}{}", alphanumerics(mixed, 10), alphanumerics(mix(mixed), 10)),
            Self::Nine => alphanumerics(mixed, 9),
            Self::Numbered => format!("functions.{name}:{number}"),
        }
    }
}

/// Ten digits of base 62 hold 59 bits.
fn alphanumerics(mut bits: u64, count: usize) -> String {
    let mut next = || {
        let digit = usize::try_from(bits % 62).unwrap_or_default();
        bits /= 62;
        ALPHABET.get(digit).copied().map_or('0', char::from)
    };
    (0..count).map(|_| next()).collect()
}

/// `SplitMix64`.
fn mix(seed: u64) -> u64 {
    let z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
