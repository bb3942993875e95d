//! Random choices from a seed, the same on every machine.

/// `SplitMix64`.
#[derive(Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Number below a limit, which is not zero.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() >> 32).expect("32 bits") % limit
    }

    /// True once in `times`.
    pub(crate) fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    pub(crate) fn pick<'a, T: ?Sized>(&mut self, list: &[&'a T]) -> &'a T {
        list[self.below(list.len())]
    }

    /// Position between two characters of a text, its ends among them.
    pub(crate) fn place(&mut self, text: &str) -> usize {
        text.floor_char_boundary(self.below(text.len() + 1))
    }

    /// Cuts a text into pieces. `tokens`: marks stay whole, as they do where they are tokens of their own.
    pub(crate) fn pieces<'a>(&mut self, text: &'a str, tokens: bool) -> Vec<&'a str> {
        let longest = if tokens { 8 } else { [1, 3, 8, 40][self.below(4)] };
        let (mut pieces, mut rest) = (Vec::new(), text);
        while !rest.is_empty() {
            let mut length = rest.ceil_char_boundary(1 + self.below(longest));
            if tokens {
                let begins = rest.find(['<', '[', '◁']).unwrap_or(rest.len());
                length = if begins == 0 { mark(rest).unwrap_or(1) } else { length.min(begins) };
            }
            let (piece, after) = rest.split_at(rest.ceil_char_boundary(length));
            pieces.push(piece);
            rest = after;
        }
        pieces
    }
}

/// Length of a mark at the beginning of a text.
fn mark(text: &str) -> Option<usize> {
    let close = text.find(['>', ']', '▷'])?;
    let close = close + text[close..].chars().next()?.len_utf8();
    (close < 60 && !text[..close].contains(['\n', '"', '{', '('])).then_some(close)
}
