//! Levels of instructions.

use std::fmt;

/// Level of instructions; each has those of the levels before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// Instructions of every processor: the definition that the others are compared with.
    Scalar,
    /// AVX2, FMA and F16C.
    Avx2,
    /// AVX-512 with F, BW, DQ, VL and VNNI.
    Avx512,
    /// AVX-512 with BF16: products of bf16 with bf16.
    Avx512Bf16,
    /// Tiles of AMX, of bf16 and int8.
    Amx,
}

impl Level {
    /// All levels, scalar first.
    pub(crate) const ALL: [Self; 5] = [Self::Scalar, Self::Avx2, Self::Avx512, Self::Avx512Bf16, Self::Amx];
}

impl fmt::Display for Level {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Scalar => "scalar",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
            Self::Avx512Bf16 => "avx512-bf16",
            Self::Amx => "amx",
        })
    }
}
