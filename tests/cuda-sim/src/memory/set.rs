//! Filling device memory.

use crate::abi::{Handle, api};
use crate::error::{Answer, Error};
use crate::objects::Objects;
use crate::{backing, stream};

api! {
    fn cuMemsetD8_v2 | cuMemsetD8_v2_ptds(to: u64, value: u8, count: usize) = set_8;
    fn cuMemsetD16_v2 | cuMemsetD16_v2_ptds(to: u64, value: u16, count: usize) = set_16;
    fn cuMemsetD32_v2 | cuMemsetD32_v2_ptds(to: u64, value: u32, count: usize) = set_32;
    fn cuMemsetD8Async | cuMemsetD8Async_ptsz(to: u64, value: u8, count: usize, stream: Handle) = set_8_async;
    fn cuMemsetD16Async | cuMemsetD16Async_ptsz(to: u64, value: u16, count: usize, stream: Handle) = set_16_async;
    fn cuMemsetD32Async | cuMemsetD32Async_ptsz(to: u64, value: u32, count: usize, stream: Handle) = set_32_async;
    fn cuMemsetD2D8_v2 | cuMemsetD2D8_v2_ptds(to: u64, pitch: usize, value: u8, width: usize, height: usize) = rows_8;
    fn cuMemsetD2D16_v2 | cuMemsetD2D16_v2_ptds(to: u64, pitch: usize, value: u16, width: usize, height: usize)
        = rows_16;
    fn cuMemsetD2D32_v2 | cuMemsetD2D32_v2_ptds(to: u64, pitch: usize, value: u32, width: usize, height: usize)
        = rows_32;
    fn cuMemsetD2D8Async | cuMemsetD2D8Async_ptsz(
        to: u64, pitch: usize, value: u8, width: usize, height: usize, stream: Handle,
    ) = rows_8_async;
    fn cuMemsetD2D16Async | cuMemsetD2D16Async_ptsz(
        to: u64, pitch: usize, value: u16, width: usize, height: usize, stream: Handle,
    ) = rows_16_async;
    fn cuMemsetD2D32Async | cuMemsetD2D32Async_ptsz(
        to: u64, pitch: usize, value: u32, width: usize, height: usize, stream: Handle,
    ) = rows_32_async;
}

/// Rows of a value; one row is any length.
#[derive(Debug, Clone, Copy)]
struct Rows<'a> {
    to: u64,
    /// Bytes from row to row.
    pitch: usize,
    value: &'a [u8],
    /// Values in a row.
    width: usize,
    height: usize,
}

impl Objects {
    fn set(&mut self, device: usize, rows: Rows<'_>, start: u64) -> Result<u64, Error> {
        let size = rows.value.len();
        let row = rows.width.checked_mul(size).ok_or(Error::INVALID_VALUE)?;
        let is_aligned = rows.to.is_multiple_of(size as u64) && (rows.height < 2 || rows.pitch.is_multiple_of(size));
        if !is_aligned || (rows.height > 1 && rows.pitch < row) {
            return Err(Error::INVALID_VALUE);
        }
        let mut done = start;
        if row == 0 {
            return Ok(done);
        }
        for number in 0..rows.height as u64 {
            let skip = number.checked_mul(rows.pitch as u64).ok_or(Error::INVALID_VALUE)?;
            let at = rows.to.checked_add(skip).ok_or(Error::INVALID_VALUE)?;
            done = self.device_uses(device, (at, row as u64), true, done)?;
            backing::fill(at, rows.value, rows.width as u64);
        }
        Ok(done)
    }
}

fn submit(rows: Rows<'_>, stream: Handle) -> Answer {
    stream::submit(stream, |objects, device, start| objects.set(device, rows, start))
}

fn run(rows: Rows<'_>) -> Answer {
    stream::run(|objects, device, start| objects.set(device, rows, start))
}

fn line(to: u64, value: &[u8], count: usize) -> Rows<'_> {
    Rows { to, pitch: 0, value, width: count, height: 1 }
}

pub(super) fn set_8(to: u64, value: u8, count: usize) -> Answer {
    run(line(to, &[value], count))
}

pub(super) fn set_16(to: u64, value: u16, count: usize) -> Answer {
    run(line(to, &value.to_le_bytes(), count))
}

pub(super) fn set_32(to: u64, value: u32, count: usize) -> Answer {
    run(line(to, &value.to_le_bytes(), count))
}

fn set_8_async(to: u64, value: u8, count: usize, stream: Handle) -> Answer {
    submit(line(to, &[value], count), stream)
}

fn set_16_async(to: u64, value: u16, count: usize, stream: Handle) -> Answer {
    submit(line(to, &value.to_le_bytes(), count), stream)
}

fn set_32_async(to: u64, value: u32, count: usize, stream: Handle) -> Answer {
    submit(line(to, &value.to_le_bytes(), count), stream)
}

pub(super) fn rows_8(to: u64, pitch: usize, value: u8, width: usize, height: usize) -> Answer {
    run(Rows { to, pitch, value: &[value], width, height })
}

pub(super) fn rows_16(to: u64, pitch: usize, value: u16, width: usize, height: usize) -> Answer {
    run(Rows { to, pitch, value: &value.to_le_bytes(), width, height })
}

pub(super) fn rows_32(to: u64, pitch: usize, value: u32, width: usize, height: usize) -> Answer {
    run(Rows { to, pitch, value: &value.to_le_bytes(), width, height })
}

fn rows_8_async(to: u64, pitch: usize, value: u8, width: usize, height: usize, stream: Handle) -> Answer {
    submit(Rows { to, pitch, value: &[value], width, height }, stream)
}

fn rows_16_async(to: u64, pitch: usize, value: u16, width: usize, height: usize, stream: Handle) -> Answer {
    submit(Rows { to, pitch, value: &value.to_le_bytes(), width, height }, stream)
}

fn rows_32_async(to: u64, pitch: usize, value: u32, width: usize, height: usize, stream: Handle) -> Answer {
    submit(Rows { to, pitch, value: &value.to_le_bytes(), width, height }, stream)
}
