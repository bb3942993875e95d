//! Choice of the functions of a level.

use super::form::{Form, Grouped, Int4, Int4Offset, Int5, Int5Offset, Int6Halves, Int8, Int8Halves, Int8Offset};
use super::line::Line;
use super::scalar;
use super::tile::{self, InputKind, Tile};
#[cfg(target_arch = "x86_64")]
use super::{simd_amx, simd_avx2, simd_avx512, simd_avx512_input};
use crate::level::Level;

/// Product of a panel and a tile of activations with so many rows.
///
/// Unsafe to call where the processor does not have the instructions.
pub(super) type Kernel = unsafe fn(panel: &[Line], tile: &[u32], rows: usize, out: &mut Tile);

/// Chooses the kernel of a form of integers, by the module of a level.
macro_rules! choose_grouped {
    ($level:ident, $grouped:expr) => {
        match $grouped {
            Grouped::Int4 => $level::grouped::<Int4>,
            Grouped::Int4Offset => $level::grouped::<Int4Offset>,
            Grouped::Int5 => $level::grouped::<Int5>,
            Grouped::Int5Offset => $level::grouped::<Int5Offset>,
            Grouped::Int6Halves => $level::grouped::<Int6Halves>,
            Grouped::Int8 => $level::grouped::<Int8>,
            Grouped::Int8Offset => $level::grouped::<Int8Offset>,
            Grouped::Int8Halves => $level::grouped::<Int8Halves>,
        }
    };
}

/// Chooses the kernel of a form, by the module of a level.
macro_rules! choose {
    ($level:ident, $form:expr) => {
        match $form {
            Form::F32 => $level::f32,
            Form::F16 => $level::f16,
            Form::Bf16 => $level::bf16,
            Form::Grouped(grouped) => choose_grouped!($level, grouped),
        }
    };
}

/// Chooses the kernel of a level and a form.
pub(super) fn kernel(level: Level, form: Form) -> Kernel {
    match (level, form) {
        #[cfg(target_arch = "x86_64")]
        (Level::Avx2, form) => choose!(simd_avx2, form),
        #[cfg(target_arch = "x86_64")]
        (Level::Avx512Bf16, Form::Bf16) => simd_avx512::bf16_pairs,
        #[cfg(target_arch = "x86_64")]
        (Level::Amx, Form::Bf16) => simd_amx::bf16,
        #[cfg(target_arch = "x86_64")]
        (Level::Amx, Form::Grouped(grouped)) => choose_grouped!(simd_amx, grouped),
        #[cfg(target_arch = "x86_64")]
        (Level::Avx512 | Level::Avx512Bf16 | Level::Amx, form) => choose!(simd_avx512, form),
        (_, form) => choose!(scalar, form),
    }
}

/// Function that packs rows of activations.
#[derive(Debug, Clone, Copy)]
pub(super) struct Packer(unsafe fn(values: &[f32], width: usize, tile: &mut [u32]));

impl Packer {
    /// Packs rows of `width` values.
    #[allow(unsafe_code, reason = "calls a function that is compiled for instructions found at run time")]
    pub(super) fn pack(self, values: &[f32], width: usize, tile: &mut [u32]) {
        // SAFETY: an input has a level only that the processor has, or that is tried in a process of its own.
        unsafe { (self.0)(values, width, tile) }
    }
}

/// Chooses the function that packs activations. Every level gives the same bits, but for bf16 of the
/// least numbers, which instructions take as 0.
pub(super) fn packer(level: Level, kind: InputKind) -> Packer {
    Packer(match (level, kind) {
        #[cfg(target_arch = "x86_64")]
        (Level::Avx2, InputKind::F32) => simd_avx2::pack_f32,
        #[cfg(target_arch = "x86_64")]
        (Level::Avx2, InputKind::Bf16) => simd_avx2::pack_bf16,
        #[cfg(target_arch = "x86_64")]
        (Level::Avx2, InputKind::Int8) => simd_avx2::pack_int8,
        #[cfg(target_arch = "x86_64")]
        (Level::Avx512 | Level::Avx512Bf16 | Level::Amx, InputKind::F32) => simd_avx512_input::pack_f32,
        #[cfg(target_arch = "x86_64")]
        (Level::Avx512Bf16 | Level::Amx, InputKind::Bf16) => simd_avx512_input::pack_bf16,
        #[cfg(target_arch = "x86_64")]
        (Level::Avx512Bf16 | Level::Amx, InputKind::Bf16Blocks) => simd_avx512_input::pack_bf16_blocks,
        #[cfg(target_arch = "x86_64")]
        (Level::Avx512 | Level::Avx512Bf16 | Level::Amx, InputKind::Int8) => simd_avx512_input::pack_int8,
        (_, InputKind::F32) => tile::pack_f32,
        (_, InputKind::Bf16) => tile::pack_bf16,
        (_, InputKind::Bf16Blocks) => tile::pack_bf16_blocks,
        (_, InputKind::Int8) => tile::pack_int8,
    })
}
