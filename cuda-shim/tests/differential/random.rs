//! Pseudo-random numbers, the same for the same seed.

/// splitmix64.
pub(crate) struct Random(pub u64);

impl Random {
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31) % end
    }

    pub(crate) fn of<T: Copy>(&mut self, of: &[T]) -> Option<T> {
        let number = self.below(u64::try_from(of.len().max(1)).unwrap());
        of.get(usize::try_from(number).unwrap()).copied()
    }
}
