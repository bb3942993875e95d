//! The copies of two and three dimensions, and those of arrays of one.

use super::table::rows;
use super::volume::{End, Extent, Place, check_device, copy};
use crate::abi::{Handle, In, api};
use crate::error::{Answer, Error};
use crate::objects::Objects;
use crate::stream::{run, submit};

api! {
    fn cuMemcpy2D_v2 | cuMemcpy2D_v2_ptds(copy: In<Flat>) = described;
    fn cuMemcpy2DUnaligned_v2 | cuMemcpy2DUnaligned_v2_ptds(copy: In<Flat>) = described;
    fn cuMemcpy2DAsync_v2 | cuMemcpy2DAsync_v2_ptsz(copy: In<Flat>, stream: Handle) = described_async;
    fn cuMemcpy3D_v2 | cuMemcpy3D_v2_ptds(copy: In<Solid>) = described;
    fn cuMemcpy3DAsync_v2 | cuMemcpy3DAsync_v2_ptsz(copy: In<Solid>, stream: Handle) = described_async;
    fn cuMemcpy3DPeer | cuMemcpy3DPeer_ptds(copy: In<Solid>) = described;
    fn cuMemcpy3DPeerAsync | cuMemcpy3DPeerAsync_ptsz(copy: In<Solid>, stream: Handle) = described_async;
    fn cuMemcpyAtoH_v2 | cuMemcpyAtoH_v2_ptds(to: u64, array: Handle, offset: usize, bytes: usize) = out_of_array;
    fn cuMemcpyAtoD_v2 | cuMemcpyAtoD_v2_ptds(to: u64, array: Handle, offset: usize, bytes: usize)
        = out_of_array_to_device;
    fn cuMemcpyAtoHAsync_v2 | cuMemcpyAtoHAsync_v2_ptsz(
        to: u64, array: Handle, offset: usize, bytes: usize, stream: Handle,
    ) = out_of_array_async;
    fn cuMemcpyHtoA_v2 | cuMemcpyHtoA_v2_ptds(array: Handle, offset: usize, from: u64, bytes: usize) = into_array;
    fn cuMemcpyDtoA_v2 | cuMemcpyDtoA_v2_ptds(array: Handle, offset: usize, from: u64, bytes: usize)
        = into_array_from_device;
    fn cuMemcpyHtoAAsync_v2 | cuMemcpyHtoAAsync_v2_ptsz(
        array: Handle, offset: usize, from: u64, bytes: usize, stream: Handle,
    ) = into_array_async;
    fn cuMemcpyAtoA_v2 | cuMemcpyAtoA_v2_ptds(
        to: Handle, to_offset: usize, from: Handle, from_offset: usize, bytes: usize,
    ) = between_arrays;
}

/// End of a copy in `CUDA_MEMCPY2D`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct FlatEnd {
    x: usize,
    y: usize,
    kind: u32,
    host: u64,
    device: u64,
    array: Handle,
    pitch: usize,
}

/// `CUDA_MEMCPY2D`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct Flat {
    from: FlatEnd,
    to: FlatEnd,
    width: usize,
    height: usize,
}

/// End of a copy in `CUDA_MEMCPY3D`, and in `CUDA_MEMCPY3D_PEER`, which has a context in the reserved place.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct SolidEnd {
    pub(super) x: usize,
    pub(super) y: usize,
    pub(super) z: usize,
    pub(super) level: usize,
    pub(super) kind: u32,
    pub(super) host: u64,
    pub(super) device: u64,
    pub(super) array: Handle,
    pub(super) reserved: u64,
    pub(super) pitch: usize,
    pub(super) height: usize,
}

/// `CUDA_MEMCPY3D`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Solid {
    pub(super) from: SolidEnd,
    pub(super) to: SolidEnd,
    pub(super) width: usize,
    pub(super) height: usize,
    pub(super) depth: usize,
}

const _: () = assert!(size_of::<Flat>() == 128 && size_of::<Solid>() == 200);

/// `CUmemorytype`.
const HOST: u32 = 1;
const DEVICE: u32 = 2;
const ARRAY: u32 = 3;
const UNIFIED: u32 = 4;

impl From<Flat> for Solid {
    fn from(flat: Flat) -> Self {
        let end = |end: FlatEnd| {
            let FlatEnd { x, y, kind, host, device, array, pitch } = end;
            SolidEnd { x, y, z: 0, level: 0, kind, host, device, array, reserved: 0, pitch, height: 0 }
        };
        Self { from: end(flat.from), to: end(flat.to), width: flat.width, height: flat.height, depth: 1 }
    }
}

impl SolidEnd {
    fn end(&self, objects: &Objects) -> Result<End, Error> {
        let linear = |address: u64| Place::Linear { address, pitch: self.pitch as u64, height: self.height as u64 };
        let place = match self.kind {
            HOST => linear(self.host),
            DEVICE => {
                check_device(objects, self.device)?;
                linear(self.device)
            }
            ARRAY => Place::Array(self.array),
            UNIFIED => linear(self.device),
            _ => return Err(Error::INVALID_VALUE),
        };
        if self.level != 0 {
            return Err(Error::INVALID_VALUE);
        }
        Ok(End { place, x: self.x as u64, y: self.y as u64, z: self.z as u64 })
    }
}

impl Solid {
    /// Does it; answers when it is over.
    ///
    /// # Errors
    /// An end does not hold the box, or is nowhere.
    pub(crate) fn run(&self, objects: &mut Objects, device: usize, start: u64) -> Result<u64, Error> {
        let ends = (self.to.end(objects)?, self.from.end(objects)?);
        let (width, height, depth) = (self.width as u64, self.height as u64, self.depth as u64);
        copy(objects, device, start, (ends.0, ends.1, Extent { width, height, depth }))
    }
}

/// A copy that is described in any of the forms, done at once.
pub(super) fn described<T: Copy + Into<Solid>>(copy: In<T>) -> Answer {
    let copy: Solid = copy.get()?.into();
    run(|objects, device, start| copy.run(objects, device, start))
}

/// Copies in the order of a stream.
pub(super) fn described_async<T: Copy + Into<Solid>>(copy: In<T>, stream: Handle) -> Answer {
    let copy: Solid = copy.get()?.into();
    submit(stream, |objects, device, start| copy.run(objects, device, start))
}

/// A place in an array of one dimension.
fn in_line(array: Handle, offset: usize) -> Result<End, Error> {
    let rows = rows(array)?;
    if rows.height > 1 || rows.slices > 1 {
        return Err(Error::INVALID_VALUE);
    }
    Ok(End { place: Place::Array(array), x: offset as u64, y: 0, z: 0 })
}

fn at(address: u64) -> End {
    End { place: Place::Linear { address, pitch: 0, height: 0 }, x: 0, y: 0, z: 0 }
}

fn line(bytes: usize) -> Extent {
    Extent { width: bytes as u64, height: 1, depth: 1 }
}

pub(super) fn out_of_array(to: u64, array: Handle, offset: usize, bytes: usize) -> Answer {
    run(|objects, device, start| copy(objects, device, start, (at(to), in_line(array, offset)?, line(bytes))))
}

pub(super) fn out_of_array_to_device(to: u64, array: Handle, offset: usize, bytes: usize) -> Answer {
    run(|objects, device, start| {
        check_device(objects, to)?;
        copy(objects, device, start, (at(to), in_line(array, offset)?, line(bytes)))
    })
}

pub(super) fn out_of_array_async(to: u64, array: Handle, offset: usize, bytes: usize, stream: Handle) -> Answer {
    submit(stream, |objects, device, start| {
        copy(objects, device, start, (at(to), in_line(array, offset)?, line(bytes)))
    })
}

pub(super) fn into_array(array: Handle, offset: usize, from: u64, bytes: usize) -> Answer {
    run(|objects, device, start| copy(objects, device, start, (in_line(array, offset)?, at(from), line(bytes))))
}

pub(super) fn into_array_from_device(array: Handle, offset: usize, from: u64, bytes: usize) -> Answer {
    run(|objects, device, start| {
        check_device(objects, from)?;
        copy(objects, device, start, (in_line(array, offset)?, at(from), line(bytes)))
    })
}

pub(super) fn into_array_async(array: Handle, offset: usize, from: u64, bytes: usize, stream: Handle) -> Answer {
    submit(stream, |objects, device, start| {
        copy(objects, device, start, (in_line(array, offset)?, at(from), line(bytes)))
    })
}

pub(super) fn between_arrays(to: Handle, to_offset: usize, from: Handle, from_offset: usize, bytes: usize) -> Answer {
    run(|objects, device, start| {
        copy(objects, device, start, (in_line(to, to_offset)?, in_line(from, from_offset)?, line(bytes)))
    })
}
