//! External memory: made by another interface (Vulkan, for one), and handed over as a descriptor.
//!
//! Backed by any file that can be mapped. It counts on the current device's card from its import until it is destroyed,
//! because here nothing else counts it; memory handles that come back this way are counted by their maker.

use crate::abi::{Handle, In, Out, api};
use crate::arrays::{self, Shape};
use crate::backing::Region;
use crate::error::{Answer, Error};
use crate::memory::allocation::{Allocation, Kind};
use crate::memory::residency;
use crate::objects::objects;
use crate::sharable::Sharable;
use crate::time;
use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

api! {
    fn cuImportExternalMemory(memory: Out<Handle>, description: In<Imported>) = import;
    fn cuExternalMemoryGetMappedBuffer(pointer: Out<u64>, memory: Handle, description: In<Buffer>) = buffer;
    fn cuExternalMemoryGetMappedMipmappedArray(mipmap: Out<Handle>, memory: Handle, description: In<Levels>) = levels;
    fn cuDestroyExternalMemory(memory: Handle) = destroy;
}

/// `CUDA_EXTERNAL_MEMORY_HANDLE_DESC`; of the union, the descriptor.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct Imported {
    kind: u32,
    _padding: u32,
    descriptor: i32,
    _rest: [u32; 3],
    bytes: u64,
    flags: u32,
    _reserved: [u32; 17],
}

/// `CUDA_EXTERNAL_MEMORY_BUFFER_DESC`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct Buffer {
    offset: u64,
    bytes: u64,
    flags: u32,
    _reserved: [u32; 17],
}

/// `CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct Levels {
    offset: u64,
    shape: Shape,
    levels: u32,
    _reserved: [u32; 17],
}

const _: () = assert!(size_of::<Imported>() == 104 && size_of::<Buffer>() == 88 && size_of::<Levels>() == 120);

/// `CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD`, and the last of the types.
const OPAQUE_DESCRIPTOR: u32 = 1;
const LAST_TYPE: u32 = 9;
/// `CUDA_EXTERNAL_MEMORY_DEDICATED`: accepted, without any effect.
const DEDICATED: u32 = 1;
const PAGE: u64 = 4096;

/// Memory that was imported.
#[derive(Debug)]
struct External {
    file: Sharable,
    bytes: u64,
    device: usize,
    charged: u64,
}

static TABLE: LazyLock<Mutex<HashMap<Handle, External>>> = LazyLock::new(Mutex::default);

/// Taken after the lock of [`crate::objects`].
fn table() -> MutexGuard<'static, HashMap<Handle, External>> {
    TABLE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn import(memory: Out<Handle>, description: In<Imported>) -> Answer {
    memory.check()?;
    let Imported { kind, descriptor, bytes, flags, .. } = description.get()?;
    let mut objects = objects()?;
    let (_, device) = objects.current()?;
    if kind == 0 || kind > LAST_TYPE || bytes == 0 || flags & !DEDICATED != 0 {
        return Err(Error::INVALID_VALUE);
    }
    if kind != OPAQUE_DESCRIPTOR {
        return Err(Error::NOT_SUPPORTED);
    }
    let file = Sharable::of(descriptor)?;
    if file.bytes() < bytes {
        return Err(Error::INVALID_VALUE);
    }
    let charged = if file.is_ours() { 0 } else { bytes };
    let ready = residency::charge(&mut objects.allocations, device, charged)?;
    // The descriptor is the driver's now: the program must not use or close it any more.
    Sharable::close(descriptor);
    let handle = objects.handle();
    table().insert(handle, External { file, bytes, device, charged });
    drop(objects);
    time::wait(ready);
    memory.put(handle)
}

/// A part of it as mapped memory.
fn map(memory: Handle, offset: u64, bytes: u64) -> Result<(Region, usize), Error> {
    let table = table();
    let External { file, bytes: all, device, .. } = table.get(&memory).ok_or(Error::INVALID_HANDLE)?;
    let inside = offset.checked_add(bytes).is_some_and(|end| end <= *all);
    if bytes == 0 || !inside || !offset.is_multiple_of(PAGE) {
        return Err(Error::INVALID_VALUE);
    }
    Ok((Region::at(file.map(offset, bytes)?), *device))
}

/// Buffer that the program frees with `cuMemFree`, as documented.
fn buffer(pointer: Out<u64>, memory: Handle, description: In<Buffer>) -> Answer {
    pointer.check()?;
    let Buffer { offset, bytes, flags, .. } = description.get()?;
    let mut objects = objects()?;
    let (context, _) = objects.current()?;
    if flags != 0 {
        return Err(Error::INVALID_VALUE);
    }
    let (region, device) = map(memory, offset, bytes)?;
    let (base, region, kind) = (region.base(), Some(region), Kind::Device);
    pointer.put(objects.allocations.add(Allocation { base, bytes, context, device, charged: 0, id: 0, region, kind }))
}

/// Mipmap that the program destroys with `cuMipmappedArrayDestroy`.
fn levels(mipmap: Out<Handle>, memory: Handle, description: In<Levels>) -> Answer {
    mipmap.check()?;
    let Levels { offset, shape, levels, .. } = description.get()?;
    let mut objects = objects()?;
    objects.current()?;
    let (region, _) = map(memory, offset, arrays::bytes(shape, levels)?)?;
    mipmap.put(arrays::adopt(&mut objects, shape, levels, region)?)
}

fn destroy(memory: Handle) -> Answer {
    let _objects = objects()?;
    let gone = table().remove(&memory).ok_or(Error::INVALID_HANDLE)?;
    residency::release(gone.device, gone.charged);
    Ok(())
}
