//! Shape of an array: `CUDA_ARRAY3D_DESCRIPTOR`, the allowed extents, and their bytes. Pure.

use super::format::{NV12, Unit};
use crate::error::Error;

/// `CUDA_ARRAY3D_DESCRIPTOR`, extents in elements.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) width: usize,
    pub(crate) height: usize,
    pub(crate) depth: usize,
    pub(crate) format: u32,
    pub(crate) channels: u32,
    pub(crate) flags: u32,
}

/// `CUDA_ARRAY_DESCRIPTOR`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct Flat {
    pub(super) width: usize,
    pub(super) height: usize,
    pub(super) format: u32,
    pub(super) channels: u32,
}

/// The first form of `CUDA_ARRAY3D_DESCRIPTOR`, with 32 bits.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct ShortShape {
    pub(super) width: u32,
    pub(super) height: u32,
    pub(super) depth: u32,
    pub(super) format: u32,
    pub(super) channels: u32,
    pub(super) flags: u32,
}

/// The first form of `CUDA_ARRAY_DESCRIPTOR`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct ShortFlat {
    pub(super) width: u32,
    pub(super) height: u32,
    pub(super) format: u32,
    pub(super) channels: u32,
}

const _: () = assert!(size_of::<Shape>() == 40 && size_of::<Flat>() == 24);

pub(super) const LAYERED: u32 = 0x01;
pub(super) const CUBEMAP: u32 = 0x04;
const GATHER: u32 = 0x08;
pub(super) const SPARSE: u32 = 0x40;
pub(super) const DEFERRED: u32 = 0x80;
/// Flags that the documentation names.
const FLAGS: u32 = 0x1ff;

/// The longest extents, as the simulated devices say in their attributes.
const LINE: usize = 131_072;
const PLANE: (usize, usize) = (131_072, 65_536);
const SOLID: usize = 16_384;
const LAYERS: usize = 2_048;
const SIDE: usize = 32_768;

impl Shape {
    /// # Errors
    /// When there are no such arrays.
    pub(super) fn check(&self) -> Result<Unit, Error> {
        let Self { width, height, depth, flags, .. } = *self;
        let (layered, cube) = (flags & LAYERED != 0, flags & CUBEMAP != 0);
        let within = |extent: usize, most: usize| (1..=most).contains(&extent);
        let fits = match (height, depth) {
            (0, 0) => !layered && !cube && within(width, LINE),
            (_, 0) => !layered && !cube && within(width, PLANE.0) && height <= PLANE.1,
            (0, layers) => layered && !cube && within(width, SIDE) && layers <= LAYERS,
            (_, faces) if cube => {
                let whole = if layered { faces % 6 == 0 && faces <= LAYERS } else { faces == 6 };
                whole && width == height && within(width, SIDE)
            }
            (_, layers) if layered => within(width, SIDE) && height <= SIDE && layers <= LAYERS,
            _ => within(width, SOLID) && height <= SOLID && depth <= SOLID,
        };
        let gather = flags & GATHER != 0 && (depth != 0 || height == 0 || width > SIDE || height > SIDE);
        let planes = self.format == NV12 && (depth != 0 || width % 2 != 0 || height % 2 != 0);
        if !fits || gather || planes || flags & !FLAGS != 0 {
            return Err(Error::INVALID_VALUE);
        }
        Unit::of(self.format, self.channels)
    }

    /// The array has memory of its own.
    pub(super) fn has_memory(&self) -> bool {
        self.flags & (SPARSE | DEFERRED) == 0
    }

    /// Bytes of a row of elements or blocks, rows of a slice, slices.
    pub(super) fn rows(&self, unit: Unit) -> (u64, u64, u64) {
        let across = |extent: usize| (extent.max(1) as u64).div_ceil(unit.block);
        let rows = across(self.height);
        // The second plane follows the first: half as many rows of the same length.
        let rows = if self.format == NV12 { rows + rows / 2 } else { rows };
        (across(self.width) * unit.bytes, rows, self.depth.max(1) as u64)
    }

    pub(super) fn bytes(&self, unit: Unit) -> u64 {
        let (row, rows, slices) = self.rows(unit);
        row * rows * slices
    }

    /// Level `level` of its mipmap. Layers stay as many.
    pub(super) fn level(&self, level: u32) -> Self {
        let half = |extent: usize| if extent == 0 { 0 } else { (extent >> level).max(1) };
        let depth = if self.flags & (LAYERED | CUBEMAP) == 0 { half(self.depth) } else { self.depth };
        Self { width: half(self.width), height: half(self.height), depth, ..*self }
    }

    /// Most levels: down to one element.
    pub(super) fn most_levels(&self) -> u32 {
        let depth = if self.flags & (LAYERED | CUBEMAP) == 0 { self.depth } else { 0 };
        1 + self.width.max(self.height).max(depth).checked_ilog2().unwrap_or(0)
    }
}

#[test]
fn extents_and_bytes() {
    let shape = |width, height, depth, flags| Shape { width, height, depth, format: 0x20, channels: 2, flags };
    let bytes = |shape: Shape| shape.check().map(|unit| shape.bytes(unit));
    assert_eq!(bytes(shape(100, 0, 0, 0)), Ok(800));
    assert_eq!(bytes(shape(100, 10, 0, 0)), Ok(8000));
    assert_eq!(bytes(shape(100, 10, 3, 0)), Ok(24000));
    assert_eq!(bytes(shape(100, 0, 3, LAYERED)), Ok(2400));
    assert_eq!(bytes(shape(10, 10, 6, CUBEMAP)), Ok(4800));
    assert_eq!(bytes(shape(10, 10, 12, CUBEMAP | LAYERED)), Ok(9600));
    let blocks = Shape { width: 9, height: 5, depth: 0, format: 0x91, channels: 4, flags: 0 };
    assert_eq!(bytes(blocks), Ok(3 * 2 * 8));
    let planes = Shape { width: 8, height: 4, depth: 0, format: NV12, channels: 3, flags: 0 };
    assert_eq!(bytes(planes), Ok(48));
    for bad in [
        shape(0, 0, 0, 0),
        shape(100, 0, 3, 0),
        shape(100, 0, 0, LAYERED),
        shape(10, 11, 6, CUBEMAP),
        shape(10, 10, 7, CUBEMAP),
        shape(LINE + 1, 0, 0, 0),
        shape(10, 0, 0, GATHER),
        shape(10, 0, 0, 0x200),
        Shape { channels: 3, ..shape(10, 0, 0, 0) },
        Shape { format: 0x77, ..shape(10, 0, 0, 0) },
        Shape { channels: 1, ..blocks },
    ] {
        assert_eq!(bytes(bad), Err(Error::INVALID_VALUE), "{bad:?}");
    }
}

#[test]
fn levels() {
    let shape = Shape { width: 20, height: 8, depth: 0, format: 0x01, channels: 1, flags: 0 };
    assert_eq!(shape.most_levels(), 5);
    let extents: Vec<_> = (0..5).map(|level| (shape.level(level).width, shape.level(level).height)).collect();
    assert_eq!(extents, [(20, 8), (10, 4), (5, 2), (2, 1), (1, 1)]);
    let layers = Shape { depth: 100, flags: LAYERED, ..shape };
    assert_eq!((layers.most_levels(), layers.level(2).depth), (5, 100));
}
