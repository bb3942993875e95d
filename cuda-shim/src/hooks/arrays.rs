//! Arrays and mipmapped arrays: limited by the bytes that their format and extent need. They are never moved.
//!
//! Sparse arrays and those whose memory is mapped later have no memory of their own.

use super::entry::hooks;
use super::ledger::{free, keep};
use super::reclaim::allocate;
use crate::abi::{CUresult, Handle, In, Out, SUCCESS};
use crate::ranges::Kind;

/// `CUDA_ARRAY_DESCRIPTOR` of CUDA 2.
#[repr(C)]
#[derive(Clone, Copy)]
struct Short {
    width: u32,
    height: u32,
    format: i32,
    channels: u32,
}

/// `CUDA_ARRAY_DESCRIPTOR`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Flat {
    width: usize,
    height: usize,
    format: i32,
    channels: u32,
}

/// `CUDA_ARRAY3D_DESCRIPTOR` of CUDA 2.
#[repr(C)]
#[derive(Clone, Copy)]
struct ShortSolid {
    width: u32,
    height: u32,
    depth: u32,
    format: i32,
    channels: u32,
    flags: u32,
}

/// `CUDA_ARRAY3D_DESCRIPTOR`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Solid {
    width: usize,
    height: usize,
    depth: usize,
    format: i32,
    channels: u32,
    flags: u32,
}

/// Layered array: its depth is the number of layers, which is the same at every mipmap level.
const LAYERED: u32 = 0x01;
const CUBEMAP: u32 = 0x04;
const WITHOUT_MEMORY: u32 = 0x40 | 0x80;

hooks! {
    fn cuArrayCreate(array: Out<Handle>, shape: In<Short>) |real| {
        let shape_of = |short: Short| Solid::from(Flat {
            width: short.width as usize, height: short.height as usize, format: short.format, channels: short.channels,
        });
        created(array, shape.get().map(shape_of), 1, || real(array, shape))
    };
    fn cuArrayCreate_v2(array: Out<Handle>, shape: In<Flat>) |real| {
        created(array, shape.get().map(Solid::from), 1, || real(array, shape))
    };
    fn cuArray3DCreate(array: Out<Handle>, shape: In<ShortSolid>) |real| {
        let shape_of = |short: ShortSolid| Solid {
            width: short.width as usize, height: short.height as usize, depth: short.depth as usize,
            format: short.format, channels: short.channels, flags: short.flags,
        };
        created(array, shape.get().map(shape_of), 1, || real(array, shape))
    };
    fn cuArray3DCreate_v2(array: Out<Handle>, shape: In<Solid>) |real| created(array, shape.get(), 1, || real(array, shape));
    fn cuMipmappedArrayCreate(array: Out<Handle>, shape: In<Solid>, levels: u32) |real| {
        created(array, shape.get(), levels, || real(array, shape, levels))
    };
    fn cuArrayDestroy(array: Handle) |real| free(array, || real(array));
    fn cuMipmappedArrayDestroy(array: Handle) |real| free(array, || real(array));
}

impl From<Flat> for Solid {
    fn from(Flat { width, height, format, channels }: Flat) -> Self {
        Self { width, height, depth: 0, format, channels, flags: 0 }
    }
}

fn created(array: Out<Handle>, shape: Option<Solid>, levels: u32, call: impl FnOnce() -> CUresult) -> CUresult {
    let (Some(shape), false) = (shape, array.is_null()) else { return call() };
    let bytes = bytes(&shape, levels);
    if bytes == 0 {
        return call();
    }
    let result = allocate(Kind::Device, bytes, call);
    if let (SUCCESS, Some(array)) = (result, array.get()) {
        keep(array, bytes, Kind::Device);
    }
    result
}

/// Bytes of all levels; `u64::MAX` where the product overflows.
fn bytes(shape: &Solid, levels: u32) -> u64 {
    if shape.flags & WITHOUT_MEMORY != 0 {
        return 0;
    }
    let has_layers = shape.flags & (LAYERED | CUBEMAP) != 0;
    // Arrays of one dimension with layers have no height.
    let extent = |length: usize, level: u32| (length as u64).checked_shr(level).unwrap_or(0).max(1);
    let level = |level| {
        let depth = if has_layers { extent(shape.depth, 0) } else { extent(shape.depth, level) };
        let (unit, block) = element(shape.format, shape.channels);
        let across = |length| extent(length, level).div_ceil(block);
        across(shape.width).saturating_mul(across(shape.height)).saturating_mul(depth).saturating_mul(unit)
    };
    // No extent has more than 64 levels: the driver refuses more.
    (0..levels.clamp(1, 64)).fold(0, |sum: u64, number| sum.saturating_add(level(number)))
}

/// Bytes of a unit, and its width and height in elements: a block in compressed formats, else one element. Formats of
/// several planes are rounded up to whole bytes; an unknown format counts as the largest.
fn element(format: i32, channels: u32) -> (u64, u64) {
    let channels = u64::from(channels.max(1));
    match format {
        0x01 | 0x08 => (channels, 1),            // 8 bits
        0x02 | 0x09 | 0x10 => (2 * channels, 1), // 16 bits
        0x03 | 0x0a | 0x20 => (4 * channels, 1), // 32 bits
        0xc0 | 0xc6 => (1, 1),                   // normalised, 8 bits: 1, 2, 4 channels
        0xc1 | 0xc3 | 0xc7 | 0xc9 => (2, 1),     // and 16 bits
        0xc2 | 0xc4 | 0xc8 | 0xca | 0x50 => (4, 1),
        0xc5 | 0xcb => (8, 1),
        0x91 | 0x92 | 0x97 | 0x98 => (8, 4),  // BC1 and BC4
        0x93..=0x96 | 0x99..=0x9e => (16, 4), // the other block formats
        0xb0 | 0xa2 | 0xa5 | 0x51 | 0x53 | 0x55 | 0x59 | 0x5b => (2, 1), // 8 bits, chroma by halves and quarters
        0x9f | 0xa1 | 0xa3 | 0xa4 | 0xa6 | 0xa7 | 0x54 | 0x56 | 0x5a | 0x5c => (4, 1), // the same with 16
        0xa8 | 0xa9 | 0x52 | 0x57 | 0x5d | 0xb2 => (4, 1), // 8 bits, chroma in full
        _ => (16, 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(width: usize, height: usize, depth: usize, flags: u32) -> Solid {
        Solid { width, height, depth, format: 0x20, channels: 4, flags }
    }

    #[test]
    fn an_array_needs_its_extent_times_its_element_size() {
        assert_eq!(bytes(&shape(100, 0, 0, 0), 1), 1600);
        assert_eq!(bytes(&shape(100, 50, 0, 0), 1), 80_000);
        assert_eq!(bytes(&shape(100, 50, 2, 0), 1), 160_000);
        assert_eq!(bytes(&shape(100, 50, 2, LAYERED), 1), 160_000);
        let compressed = Solid { format: 0x91, channels: 4, ..shape(10, 10, 0, 0) };
        assert_eq!(bytes(&compressed, 1), 9 * 8, "three blocks of four by four each way");
    }

    #[test]
    fn levels_halve_and_layers_stay() {
        assert_eq!(bytes(&shape(8, 8, 0, 0), 4), (64 + 16 + 4 + 1) * 16);
        assert_eq!(bytes(&shape(8, 8, 4, 0), 2), (64 * 4 + 16 * 2) * 16);
        assert_eq!(bytes(&shape(8, 8, 4, LAYERED), 2), (64 + 16) * 4 * 16);
        assert_eq!(bytes(&shape(1, 1, 1, 0), u32::MAX), 64 * 16);
    }

    #[test]
    fn sparse_arrays_need_no_memory_and_impossible_ones_need_all() {
        assert_eq!([bytes(&shape(8, 8, 8, 0x40), 1), bytes(&shape(8, 8, 8, 0x80), 3)], [0, 0]);
        assert_eq!(bytes(&shape(usize::MAX, usize::MAX, 2, 0), 9), u64::MAX);
    }
}
