//! Copies of boxes: rows of bytes between host memory, device memory and arrays.

use super::table::{Rows, rows};
use crate::abi::Handle;
use crate::backing;
use crate::error::{Answer, Error};
use crate::memory::access;
use crate::objects::Objects;
use omni_cuda_card::Direction;

/// End of a copy.
#[derive(Debug, Clone, Copy)]
pub(crate) struct End {
    pub(crate) place: Place,
    /// Beginning of the box: bytes, rows, slices.
    pub(crate) x: u64,
    pub(crate) y: u64,
    pub(crate) z: u64,
}

/// Memory in rows.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Place {
    /// Any address, which the driver resolves.
    Linear {
        address: u64,
        /// Bytes from one row to the next; 0 where there is one row only.
        pitch: u64,
        /// Rows from one slice to the next; 0 where there is one slice only.
        height: u64,
    },
    Array(Handle),
}

/// Bytes of a row, rows, slices.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Extent {
    pub(crate) width: u64,
    pub(crate) height: u64,
    pub(crate) depth: u64,
}

/// An end with everything looked up.
#[derive(Debug, Clone, Copy)]
struct Span {
    first: u64,
    row: u64,
    slice: u64,
    /// The card that it is on.
    device: Option<usize>,
    /// Memory of the table of allocations, and so subject to residency.
    is_linear: bool,
}

/// Copies; answers when it is over.
///
/// # Errors
/// An end does not hold the box.
pub(crate) fn copy(
    objects: &mut Objects,
    device: usize,
    start: u64,
    (to, from, extent): (End, End, Extent),
) -> Result<u64, Error> {
    let Extent { width, height, depth } = extent;
    if width == 0 || height == 0 || depth == 0 {
        return Ok(start);
    }
    let (to, from) = (find(objects, to, extent)?, find(objects, from, extent)?);
    let mut done = start;
    for (end, writes) in [(from, false), (to, true)] {
        if let (Some(_), true) = (end.device, end.is_linear) {
            done = objects.device_uses(device, (end.first, end.reach(extent)?), writes, done)?;
        }
    }
    let bytes = width.saturating_mul(height).saturating_mul(depth);
    done = match (from.device, to.device) {
        (None, Some(device)) => access::link(device, done, bytes, Direction::ToDevice)?,
        (Some(device), None) => access::link(device, done, bytes, Direction::ToHost)?,
        (None, None) | (Some(_), Some(_)) => done,
    };
    for slice in 0..depth {
        for row in 0..height {
            let at = |end: Span| end.first + slice * end.slice + row * end.row;
            backing::copy(at(to), at(from), width);
        }
    }
    Ok(done)
}

impl Span {
    /// Bytes from the first of the box to behind its last.
    fn reach(&self, extent: Extent) -> Result<u64, Error> {
        let slices = (extent.depth - 1).checked_mul(self.slice);
        let rows = (extent.height - 1).checked_mul(self.row);
        let all = slices.zip(rows).and_then(|(slices, rows)| slices.checked_add(rows)?.checked_add(extent.width));
        all.ok_or(Error::INVALID_VALUE)
    }
}

fn find(objects: &Objects, end: End, extent: Extent) -> Result<Span, Error> {
    match end.place {
        Place::Array(array) => in_array(rows(array)?, end, extent),
        Place::Linear { address, pitch, height } => in_memory(objects, (address, pitch, height), end, extent),
    }
}

fn in_array(rows: Rows, end: End, extent: Extent) -> Result<Span, Error> {
    let fits = |from: u64, length: u64, most: u64| from.checked_add(length).is_some_and(|to| to <= most);
    let inside = fits(end.x, extent.width, rows.width)
        && fits(end.y, extent.height, rows.height)
        && fits(end.z, extent.depth, rows.slices);
    if !inside || !end.x.is_multiple_of(rows.element) {
        return Err(Error::INVALID_VALUE);
    }
    let slice = rows.pitch * rows.height;
    let first = rows.base + end.z * slice + end.y * rows.pitch + end.x;
    Ok(Span { first, row: rows.pitch, slice, device: Some(rows.device), is_linear: false })
}

fn in_memory(
    objects: &Objects,
    (address, pitch, height): (u64, u64, u64),
    end: End,
    extent: Extent,
) -> Result<Span, Error> {
    let rows = end.y + extent.height;
    let (one_row, one_slice) = (rows == 1, end.z + extent.depth == 1);
    let long = pitch >= end.x.saturating_add(extent.width) || (pitch == 0 && one_row);
    let high = one_slice || height >= rows;
    if address == 0 || !long || !high || (!one_slice && pitch == 0) {
        return Err(Error::INVALID_VALUE);
    }
    let offset = |slice: u64| {
        let rows = end.y.checked_mul(pitch)?;
        address.checked_add(end.z.checked_mul(slice)?)?.checked_add(rows)?.checked_add(end.x)
    };
    let slice = pitch.checked_mul(height).ok_or(Error::INVALID_VALUE)?;
    let first = offset(slice).ok_or(Error::INVALID_VALUE)?;
    let allocation = objects.allocations.at(first).filter(|allocation| !allocation.is_host());
    let device = allocation.map(|allocation| allocation.device);
    Ok(Span { first, row: pitch, slice, device, is_linear: true })
}

/// Checks an end that claims to be on a device: there is memory of this driver.
///
/// # Errors
/// When it is not.
pub(super) fn check_device(objects: &Objects, address: u64) -> Answer {
    objects.allocations.at(address).map(|_| ()).ok_or(Error::INVALID_VALUE)
}
