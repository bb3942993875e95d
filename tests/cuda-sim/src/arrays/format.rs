//! Element formats (`CUarray_format`). Pure.

use crate::error::Error;

/// Layout of elements in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Unit {
    /// Bytes of one element, or of one block of a compressed format.
    pub(super) bytes: u64,
    /// Elements that a block is wide and high; 1 without compression.
    pub(super) block: u64,
}

/// `CU_AD_FORMAT_UNSIGNED_INT8`.
pub(super) const BYTE: u32 = 0x01;
/// `CU_AD_FORMAT_NV12`: a plane of bytes, and one of half the width and height with two.
pub(super) const NV12: u32 = 0xb0;

impl Unit {
    /// # Errors
    /// No such format, or not with so many channels. The formats of several planes other than NV12 are not simulated.
    pub(super) fn of(format: u32, channels: u32) -> Result<Self, Error> {
        let plain = |bytes: u64| {
            let fits = matches!(channels, 1 | 2 | 4);
            let unit = Self { bytes: bytes * u64::from(channels), block: 1 };
            if fits { Ok(unit) } else { Err(Error::INVALID_VALUE) }
        };
        let fixed = |wanted: u32, bytes: u64, block: u64| {
            if channels == wanted { Ok(Self { bytes, block }) } else { Err(Error::INVALID_VALUE) }
        };
        match format {
            BYTE | 0x08 => plain(1),
            0x02 | 0x09 | 0x10 => plain(2),
            0x03 | 0x0a | 0x20 => plain(4),
            0xc0 | 0xc6 => fixed(1, 1, 1),
            0xc1 | 0xc7 => fixed(2, 2, 1),
            0xc2 | 0xc8 => fixed(4, 4, 1),
            0xc3 | 0xc9 => fixed(1, 2, 1),
            0xc4 | 0xca => fixed(2, 4, 1),
            0xc5 | 0xcb => fixed(4, 8, 1),
            0x50 => fixed(4, 4, 1),
            0x91 | 0x92 => fixed(4, 8, 4),  // BC1
            0x93..=0x96 => fixed(4, 16, 4), // BC2, BC3
            0x97 | 0x98 => fixed(1, 8, 4),  // BC4
            0x99 | 0x9a => fixed(2, 16, 4), // BC5
            0x9b | 0x9c => fixed(3, 16, 4), // BC6H
            0x9d | 0x9e => fixed(4, 16, 4), // BC7
            NV12 => fixed(3, 1, 1),
            0x51..=0x5d | 0x9f | 0xa1..=0xa9 | 0xb1..=0xb5 => Err(Error::NOT_SUPPORTED),
            _ => Err(Error::INVALID_VALUE),
        }
    }
}
