//! Arrays: made, asked about, destroyed.

use super::format::{BYTE, NV12};
use super::shape::{DEFERRED, Flat, SPARSE, Shape, ShortFlat, ShortShape};
use super::table::table;
use crate::abi::{Handle, In, Out, api};
use crate::error::{Answer, Error};
use crate::machine;
use crate::objects::objects;
use crate::time;

api! {
    fn cuArrayCreate(array: Out<Handle>, shape: In<ShortFlat>) = create_short_flat;
    fn cuArrayCreate_v2(array: Out<Handle>, shape: In<Flat>) = create_flat;
    fn cuArray3DCreate(array: Out<Handle>, shape: In<ShortShape>) = create_short;
    fn cuArray3DCreate_v2(array: Out<Handle>, shape: In<Shape>) = create;
    fn cuArrayGetDescriptor(shape: Out<ShortFlat>, array: Handle) = short_flat_of;
    fn cuArrayGetDescriptor_v2(shape: Out<Flat>, array: Handle) = flat_of;
    fn cuArray3DGetDescriptor(shape: Out<ShortShape>, array: Handle) = short_of;
    fn cuArray3DGetDescriptor_v2(shape: Out<Shape>, array: Handle) = shape_of;
    fn cuArrayGetPlane(plane: Out<Handle>, array: Handle, index: u32) = plane_of;
    fn cuArrayGetMemoryRequirements(needs: Out<Requirements>, array: Handle, device: i32) = requirements;
    fn cuArrayGetSparseProperties(properties: Out<Sparse>, array: Handle) = sparse;
    fn cuArrayDestroy(array: Handle) = destroy;
}

/// `CUDA_ARRAY_MEMORY_REQUIREMENTS`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct Requirements {
    bytes: usize,
    alignment: usize,
    reserved: [u32; 4],
}

/// `CUDA_ARRAY_SPARSE_PROPERTIES`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct Sparse {
    tile: [u32; 3],
    tail_level: u32,
    tail_bytes: u64,
    flags: u32,
    reserved: [u32; 4],
}

const _: () = assert!(size_of::<Requirements>() == 32 && size_of::<Sparse>() == 48);

/// Tiles of sparse arrays, and what memory for arrays is aligned to: a page of 64 KiB.
const TILE: usize = 64 << 10;

impl Requirements {
    pub(super) fn of(bytes: u64) -> Self {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX).next_multiple_of(TILE);
        Self { bytes, alignment: TILE, reserved: [0; 4] }
    }
}

impl Sparse {
    /// Tiles of one row of elements: nothing here depends on how they lie.
    pub(super) fn of(element: u64) -> Self {
        let width = u32::try_from(TILE as u64 / element.max(1)).unwrap_or(1);
        Self { tile: [width, 1, 1], tail_level: 0, tail_bytes: 0, flags: 0, reserved: [0; 4] }
    }
}

fn make(array: Out<Handle>, shape: Shape) -> Answer {
    let mut objects = objects()?;
    let (handle, ready) = table().create(&mut objects, shape)?;
    drop(objects);
    time::wait(ready);
    array.put(handle)
}

fn create(array: Out<Handle>, shape: In<Shape>) -> Answer {
    array.check()?;
    make(array, shape.get()?)
}

fn create_flat(array: Out<Handle>, shape: In<Flat>) -> Answer {
    array.check()?;
    let Flat { width, height, format, channels } = shape.get()?;
    make(array, Shape { width, height, depth: 0, format, channels, flags: 0 })
}

fn create_short(array: Out<Handle>, shape: In<ShortShape>) -> Answer {
    array.check()?;
    let ShortShape { width, height, depth, format, channels, flags } = shape.get()?;
    let (width, height, depth) = (width as usize, height as usize, depth as usize);
    make(array, Shape { width, height, depth, format, channels, flags })
}

fn create_short_flat(array: Out<Handle>, shape: In<ShortFlat>) -> Answer {
    array.check()?;
    let ShortFlat { width, height, format, channels } = shape.get()?;
    make(array, Shape { width: width as usize, height: height as usize, depth: 0, format, channels, flags: 0 })
}

fn found(array: Handle) -> Result<Shape, Error> {
    machine::all()?;
    table().array(array).map(|array| array.shape)
}

fn shape_of(shape: Out<Shape>, array: Handle) -> Answer {
    shape.put(found(array)?)
}

fn flat_of(shape: Out<Flat>, array: Handle) -> Answer {
    let Shape { width, height, format, channels, .. } = found(array)?;
    shape.put(Flat { width, height, format, channels })
}

fn short_of(shape: Out<ShortShape>, array: Handle) -> Answer {
    let Shape { width, height, depth, format, channels, flags } = found(array)?;
    let [width, height, depth] = [width, height, depth].map(|extent| u32::try_from(extent).unwrap_or(u32::MAX));
    shape.put(ShortShape { width, height, depth, format, channels, flags })
}

fn short_flat_of(shape: Out<ShortFlat>, array: Handle) -> Answer {
    let Shape { width, height, format, channels, .. } = found(array)?;
    let [width, height] = [width, height].map(|extent| u32::try_from(extent).unwrap_or(u32::MAX));
    shape.put(ShortFlat { width, height, format, channels })
}

/// NV12: the bytes, then the pairs, of half the extents.
fn plane_of(plane: Out<Handle>, array: Handle, index: u32) -> Answer {
    plane.check()?;
    let mut objects = objects()?;
    let mut table = table();
    let (whole, pitch) = table.array(array).map(|array| (array.shape, array.pitch))?;
    let bytes = Shape { format: BYTE, channels: 1, ..whole };
    let (shape, skip) = match index {
        _ if whole.format != NV12 => return Err(Error::INVALID_VALUE),
        0 => (bytes, 0),
        1 => (
            Shape { width: whole.width / 2, height: whole.height / 2, channels: 2, ..bytes },
            pitch * whole.height as u64,
        ),
        _ => return Err(Error::INVALID_VALUE),
    };
    let part = table.part(&mut objects, array, shape, skip)?;
    plane.put(part)
}

fn requirements(needs: Out<Requirements>, array: Handle, device: i32) -> Answer {
    needs.check()?;
    machine::device(device)?;
    let table = table();
    let array = table.array(array)?;
    if array.shape.flags & DEFERRED == 0 {
        return Err(Error::INVALID_VALUE);
    }
    needs.put(Requirements::of(array.shape.bytes(array.unit)))
}

fn sparse(properties: Out<Sparse>, array: Handle) -> Answer {
    properties.check()?;
    machine::all()?;
    let table = table();
    let array = table.array(array)?;
    if array.shape.flags & SPARSE == 0 || array.parent.is_some() {
        return Err(Error::INVALID_VALUE);
    }
    properties.put(Sparse::of(array.unit.bytes))
}

fn destroy(array: Handle) -> Answer {
    let objects = objects()?;
    objects.current()?;
    table().destroy(array)
}
