//! Kernels of AMX: tiles of 16 rows times 16 outputs, of palette 1. That palette is asked for by its number, as virtual
//! machines have tiles and hide their description.
//!
//! A kernel configures the tiles and releases them, so that a thread has none between two kernels.
#![allow(unsafe_code, reason = "tiles have no intrinsics in stable Rust")]

use super::form::{GROUP, Layout, PANEL};
use super::line::Line;
use super::simd_avx512::{self, Scales};
use super::tile::{GROUP_WORDS, TILE_ROWS, Tile};
use std::arch::asm;
use std::arch::x86_64::_mm512_add_epi32;

/// Rows of a tile.
const ROWS: usize = 16;
/// Bytes of a row of a tile, and of the activations of a row in a step of bf16.
const ROW_BYTES: usize = 64;
/// Lines of a step of bf16: 16 pairs of inputs of 32 outputs.
const STEP_LINES: usize = 32;
/// Bytes between the same outputs of one pair or quad of inputs and of the next one.
const WEIGHT_STRIDE: usize = 2 * ROW_BYTES;
/// Bytes between two rows of a tile of sums.
const SUM_STRIDE: usize = PANEL * size_of::<f32>();
/// Rows from which on a tile pays for integers. Both ways give the same bits.
const LEAST_ROWS: usize = 9;

/// Asks the system for the state of tiles, which it gives to processes that ask. Returns false if there is none.
pub(crate) fn request() -> bool {
    const ARCH_REQ_XCOMP_PERM: libc::c_ulong = 0x1023;
    const XFEATURE_XTILEDATA: libc::c_ulong = 18;
    // SAFETY: the request has numbers as arguments, and changes what the system saves of this process alone.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 }
}

/// Configuration of the tiles, as `ldtilecfg` reads it.
#[repr(C, align(64))]
struct Config {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    bytes: [u16; 16],
    rows: [u8; 16],
}

impl Config {
    /// Tiles of so many rows and bytes of a row; one without rows is not used.
    fn new(tiles: [(usize, usize); 8]) -> Self {
        let mut config = Self { palette: 1, start_row: 0, reserved: [0; 14], bytes: [0; 16], rows: [0; 16] };
        for (index, (rows, bytes)) in tiles.into_iter().enumerate() {
            if rows > 0 {
                (config.rows[index], config.bytes[index]) = (rows as u8, bytes as u16);
            }
        }
        config
    }
}

/// Products of weights in bf16 with activations in bf16.
#[target_feature(enable = "avx512f")]
pub(super) fn bf16(panel: &[Line], tile: &[u32], rows: usize, out: &mut Tile) {
    let steps = panel.len() / STEP_LINES;
    assert!((1..=TILE_ROWS).contains(&rows) && steps > 0, "{rows} rows, {steps} steps");
    assert_eq!(size_of_val(tile), steps * rows * ROW_BYTES, "activations of a tile");
    let (first, second) = (rows.min(ROWS), rows.saturating_sub(ROWS));
    let config = Config::new([first, first, second, second, first, second, ROWS, ROWS].map(|rows| (rows, ROW_BYTES)));
    let (values, weights, sums) = (tile.as_ptr(), panel.as_ptr(), out.as_mut_ptr());
    if second == 0 {
        // SAFETY: values and weights are read as far as the assertions say they reach; 16 rows of `out` are written.
        unsafe { bf16_low(&config, steps, values, rows * ROW_BYTES, weights, sums) };
    } else {
        // SAFETY: as above; 32 rows of `out` are written.
        unsafe { bf16_high(&config, steps, values, rows * ROW_BYTES, weights, sums) };
    }
}

/// Products of at most 16 rows.
///
/// # Safety
/// `values` has `steps` times `step_bytes`, `weights` `steps` times [`STEP_LINES`], `sums` 16 rows.
unsafe fn bf16_low(
    config: &Config,
    steps: usize,
    values: *const u32,
    step_bytes: usize,
    weights: *const Line,
    sums: *mut [f32; PANEL],
) {
    // SAFETY: the pointers reach as far as the caller says; no tile is in use.
    unsafe {
        asm!(
            "ldtilecfg [{config}]",
            "tilezero tmm0",
            "tilezero tmm1",
            "2:",
            "tileloadd tmm4, [{values} + {row}*1]",
            "tileloadd tmm6, [{weights} + {pair}*1]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tileloadd tmm7, [{weights} + {pair}*1 + 64]",
            "tdpbf16ps tmm1, tmm4, tmm7",
            // The weights of four steps further on: a step is 32 lines.
            ".irp line,0,64,128,192,256,320,384,448,512,576,640,704,768,832,896,960",
            "prefetcht0 [{weights} + 8192 + \\line]",
            "prefetcht0 [{weights} + 9216 + \\line]",
            ".endr",
            "add {values}, {step_bytes}",
            "add {weights}, 2048",
            "dec {steps}",
            "jnz 2b",
            "tilestored [{sums} + {sum}*1], tmm0",
            "tilestored [{sums} + {sum}*1 + 64], tmm1",
            "tilerelease",
            config = in(reg) config,
            values = inout(reg) values => _,
            row = in(reg) ROW_BYTES,
            weights = inout(reg) weights => _,
            pair = in(reg) WEIGHT_STRIDE,
            step_bytes = in(reg) step_bytes,
            steps = inout(reg) steps => _,
            sums = in(reg) sums,
            sum = in(reg) SUM_STRIDE,
            out("tmm0") _, out("tmm1") _, out("tmm4") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        );
    }
}

/// Products of 17 to 32 rows.
///
/// # Safety
/// As for [`bf16_low`]; `sums` has 32 rows.
unsafe fn bf16_high(
    config: &Config,
    steps: usize,
    values: *const u32,
    step_bytes: usize,
    weights: *const Line,
    sums: *mut [f32; PANEL],
) {
    // SAFETY: the pointers reach as far as the caller says; no tile is in use.
    unsafe {
        asm!(
            "ldtilecfg [{config}]",
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            "2:",
            "tileloadd tmm4, [{values} + {row}*1]",
            "tileloadd tmm6, [{weights} + {pair}*1]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tileloadd tmm7, [{weights} + {pair}*1 + 64]",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tileloadd tmm5, [{values} + {row}*1 + 1024]",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tdpbf16ps tmm3, tmm5, tmm7",
            "add {values}, {step_bytes}",
            "add {weights}, 2048",
            "dec {steps}",
            "jnz 2b",
            "tilestored [{sums} + {sum}*1], tmm0",
            "tilestored [{sums} + {sum}*1 + 64], tmm1",
            "add {sums}, 2048",
            "tilestored [{sums} + {sum}*1], tmm2",
            "tilestored [{sums} + {sum}*1 + 64], tmm3",
            "tilerelease",
            config = in(reg) config,
            values = inout(reg) values => _,
            row = in(reg) ROW_BYTES,
            weights = inout(reg) weights => _,
            pair = in(reg) WEIGHT_STRIDE,
            step_bytes = in(reg) step_bytes,
            steps = inout(reg) steps => _,
            sums = inout(reg) sums => _,
            sum = in(reg) SUM_STRIDE,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        );
    }
}

/// Dot products of the integers of a group: rows of the outputs of a panel.
#[repr(C, align(64))]
struct Dots([[i32; PANEL]; TILE_ROWS]);

/// Products of integers.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni,avx2")]
pub(super) fn grouped<L: Layout>(panel: &[Line], tile: &[u32], rows: usize, out: &mut Tile) {
    if rows < LEAST_ROWS || const { L::FORM.has_halves() } {
        return simd_avx512::grouped::<L>(panel, tile, rows, out);
    }
    assert!(rows <= TILE_ROWS, "{rows} rows");
    let (first, second) = (rows.min(ROWS), rows.saturating_sub(ROWS));
    let sums = [first, first, second, second].map(|rows| (rows, ROW_BYTES));
    let [a, b, c, d] = sums;
    let config =
        Config::new([a, b, c, d, (first, GROUP), (second, GROUP), (GROUP / 4, ROW_BYTES), (GROUP / 4, ROW_BYTES)]);
    // SAFETY: the configuration is one of palette 1, of 64 bytes.
    unsafe { asm!("ldtilecfg [{}]", in(reg) &config, options(nostack, readonly)) };
    let mut dots = Dots([[0; PANEL]; TILE_ROWS]);
    let mut unpacked = [Line([0; 64]); 16];
    let out = &mut out[..rows];
    out.fill([0.0; PANEL]);
    let (values, _) = tile.as_chunks::<GROUP_WORDS>();
    for (lines, values) in panel.chunks_exact(const { L::FORM.lines() }).zip(values.chunks_exact(rows)) {
        let quants = quants::<L>(&lines[const { L::FORM.first_quants() }..], &mut unpacked);
        multiply_group(values, quants, &mut dots);
        let scales = Scales::read::<L>(lines);
        for ((out, values), dots) in out.iter_mut().zip(values).zip(&dots.0) {
            add_dots::<L>(&scales, dots, values, out);
        }
    }
    // SAFETY: no tile is in use.
    unsafe { asm!("tilerelease", options(nostack, nomem)) };
}

/// Quants of 8 bits, unpacked where they have fewer.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn quants<'a, L: Layout>(lines: &'a [Line], unpacked: &'a mut [Line; 16]) -> &'a [Line; 16] {
    if const { L::FORM.bits() == 8 }
        && let Some(lines) = lines.first_chunk()
    {
        return lines;
    }
    for half in 0..2 {
        for (quad, weights) in simd_avx512::unpack::<L>(lines, half).into_iter().enumerate() {
            simd_avx512::store_line(weights, &mut unpacked[quad * 2 + half]);
        }
    }
    unpacked
}

/// Computes the dot products of a group; the tiles are configured.
fn multiply_group(values: &[[u32; GROUP_WORDS]], quants: &[Line; 16], dots: &mut Dots) {
    const VALUE_STRIDE: usize = GROUP_WORDS * size_of::<u32>();
    let (from, weights, to) = (values.as_ptr(), quants.as_ptr(), dots.0.as_mut_ptr());
    // SAFETY: a tile of activations has as many rows as there are values, of the first 32 of their 48 bytes; tiles of
    // weights have 8 rows of 128 bytes, and those of sums as many rows as there are values, at most 32.
    unsafe {
        asm!(
            "tilezero tmm0",
            "tilezero tmm1",
            "tileloadd tmm4, [{values} + {value}*1]",
            "tileloadd tmm6, [{weights} + {quad}*1]",
            "tdpbsud tmm0, tmm4, tmm6",
            "tileloadd tmm7, [{weights} + {quad}*1 + 64]",
            "tdpbsud tmm1, tmm4, tmm7",
            "tilestored [{sums} + {quad}*1], tmm0",
            "tilestored [{sums} + {quad}*1 + 64], tmm1",
            values = in(reg) from,
            value = in(reg) VALUE_STRIDE,
            weights = in(reg) weights,
            quad = in(reg) WEIGHT_STRIDE,
            sums = in(reg) to,
            out("tmm0") _, out("tmm1") _, out("tmm4") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        );
    }
    if values.len() > ROWS {
        let (from, to) = (values[ROWS..].as_ptr(), dots.0[ROWS..].as_mut_ptr());
        // SAFETY: as above, for the rows after the first 16.
        unsafe {
            asm!(
                "tilezero tmm2",
                "tilezero tmm3",
                "tileloadd tmm5, [{values} + {value}*1]",
                "tileloadd tmm6, [{weights} + {quad}*1]",
                "tdpbsud tmm2, tmm5, tmm6",
                "tileloadd tmm7, [{weights} + {quad}*1 + 64]",
                "tdpbsud tmm3, tmm5, tmm7",
                "tilestored [{sums} + {quad}*1], tmm2",
                "tilestored [{sums} + {quad}*1 + 64], tmm3",
                values = in(reg) from,
                value = in(reg) VALUE_STRIDE,
                weights = in(reg) weights,
                quad = in(reg) WEIGHT_STRIDE,
                sums = in(reg) to,
                out("tmm2") _, out("tmm3") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack),
            );
        }
    }
}

/// Adds the dot products of a row to its sums.
#[inline]
#[target_feature(enable = "avx512f")]
fn add_dots<L: Layout>(scales: &Scales, dots: &[i32; PANEL], values: &[u32; GROUP_WORDS], out: &mut [f32; PANEL]) {
    let dots = dots.as_chunks::<16>().0;
    let out = out.as_chunks_mut::<16>().0;
    let zero = Scales::zero::<L>(values);
    let dots = [&dots[0], &dots[1]].map(|dots| _mm512_add_epi32(simd_avx512::load_dots(dots), zero));
    let sums = [&out[0], &out[1]].map(|sums| simd_avx512::load_sums(sums));
    let sums = scales.add::<L>(dots, values, sums);
    simd_avx512::store_sums(sums[0], &mut out[0]);
    simd_avx512::store_sums(sums[1], &mut out[1]);
}
