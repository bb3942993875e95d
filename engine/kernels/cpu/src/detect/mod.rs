//! Levels of instructions that the processor has.
//!
//! CPUID is not trusted alone: virtual machines advertise tiles and hide their description, and libraries have died of
//! that. A level counts as supported after its kernels gave the scalar ones' results in a process of their own.

mod trial;

use crate::level::Level;
use crate::matrix;
use std::sync::OnceLock;

impl Level {
    /// Returns the level that is fastest on this processor.
    #[must_use]
    pub fn detect() -> Self {
        let mut levels = Self::all_supported();
        // Intel's processors take four times as long for a product of bf16 as for one of f32.
        levels.retain(|level| *level != Self::Avx512Bf16 || fast_bf16());
        levels.last().copied().unwrap_or(Self::Scalar)
    }

    /// Returns all levels of this processor, scalar first.
    #[must_use]
    pub fn all_supported() -> Vec<Self> {
        static SUPPORTED: OnceLock<Vec<Level>> = OnceLock::new();
        let supported = SUPPORTED
            .get_or_init(|| Self::ALL.into_iter().filter(|level| level.is_advertised() && level.works()).collect());
        supported.clone()
    }

    /// Returns true if the kernels of the level give what those of the scalar level give.
    fn works(self) -> bool {
        let agrees = || matrix::agrees(self);
        self == Self::Scalar || trial::passes(agrees).unwrap_or_else(|| self < Self::Amx && agrees())
    }

    /// Returns true if this processor has the level.
    #[must_use]
    pub fn is_supported(self) -> bool {
        Self::all_supported().contains(&self)
    }

    /// Returns what CPUID and the state that the system saves say of the level.
    #[cfg(target_arch = "x86_64")]
    fn is_advertised(self) -> bool {
        let avx2 =
            is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c");
        let avx512 = avx2
            && is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512vnni");
        match self {
            Self::Scalar => true,
            Self::Avx2 => avx2,
            Self::Avx512 => avx512,
            Self::Avx512Bf16 => avx512 && is_x86_feature_detected!("avx512bf16"),
            Self::Amx => avx512 && is_x86_feature_detected!("avx512bf16") && has_tiles(),
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn is_advertised(self) -> bool {
        self == Self::Scalar
    }
}

/// Returns true if the processor and the system have tiles of bf16 and int8. The system gives them to those who ask.
#[cfg(target_arch = "x86_64")]
fn has_tiles() -> bool {
    const BF16_TILE_INT8: u32 = 1 << 22 | 1 << 24 | 1 << 25;
    let features = std::arch::x86_64::__cpuid_count(7, 0).edx;
    features & BF16_TILE_INT8 == BF16_TILE_INT8 && matrix::request_tiles()
}

/// Returns true if a product of bf16 takes no longer than one of f32.
#[cfg(target_arch = "x86_64")]
fn fast_bf16() -> bool {
    let vendor = std::arch::x86_64::__cpuid(0);
    [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes).concat() == b"AuthenticAMD"
}

#[cfg(not(target_arch = "x86_64"))]
fn fast_bf16() -> bool {
    false
}
