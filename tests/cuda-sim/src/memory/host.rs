//! Host memory that the driver hands out or registers: at its own address for the device, too.

use crate::abi::{Out, api};
use crate::backing::Region;
use crate::error::{Answer, Error};
use crate::memory::allocation::{Allocation, Kind};
use crate::objects::objects;

api! {
    fn cuMemAllocHost(pointer: Out<u64>, bytes: u32) = allocate_1;
    fn cuMemAllocHost_v2(pointer: Out<u64>, bytes: usize) = allocate_2;
    fn cuMemHostAlloc(pointer: Out<u64>, bytes: usize, flags: u32) = allocate;
    fn cuMemFreeHost(pointer: u64) = free;
    fn cuMemHostRegister(pointer: u64, bytes: usize, flags: u32) = register;
    fn cuMemHostRegister_v2(pointer: u64, bytes: usize, flags: u32) = register;
    fn cuMemHostUnregister(pointer: u64) = unregister;
    fn cuMemHostGetDevicePointer(device: Out<u32>, pointer: u64, flags: u32) = device_pointer_low;
    fn cuMemHostGetDevicePointer_v2(device: Out<u64>, pointer: u64, flags: u32) = device_pointer;
    fn cuMemHostGetFlags(flags: Out<u32>, pointer: u64) = flags_of;
}

/// Portable, mapped, write-combined.
const ALLOCATION_FLAGS: u32 = 7;
/// Portable, mapped, of devices, read-only.
const REGISTRATION_FLAGS: u32 = 15;

fn allocate_1(pointer: Out<u64>, bytes: u32) -> Answer {
    allocate(pointer, bytes as usize, 0)
}

fn allocate_2(pointer: Out<u64>, bytes: usize) -> Answer {
    allocate(pointer, bytes, 0)
}

fn allocate(pointer: Out<u64>, bytes: usize, flags: u32) -> Answer {
    let mut objects = objects()?;
    let (context, device) = objects.current()?;
    pointer.check()?;
    objects.refuse_unsafe_while_captured()?;
    if bytes == 0 || flags & !ALLOCATION_FLAGS != 0 {
        return Err(Error::INVALID_VALUE);
    }
    let region = Region::new(bytes as u64)?;
    let (base, bytes, region) = (region.base(), bytes as u64, Some(region));
    let kind = Kind::Host { flags, registered: false };
    objects.allocations.add(Allocation { base, bytes, context, device, charged: 0, id: 0, region, kind });
    pointer.put(base)
}

fn free(pointer: u64) -> Answer {
    let mut objects = objects()?;
    objects.current()?;
    match objects.allocations.exact(pointer).map(|allocation| &allocation.kind) {
        Some(Kind::Host { registered: false, .. }) => {}
        Some(_) | None => return Err(Error::INVALID_VALUE),
    }
    objects.refuse_unsafe_while_captured()?;
    objects.discard(pointer);
    Ok(())
}

fn register(pointer: u64, bytes: usize, flags: u32) -> Answer {
    let mut objects = objects()?;
    let (context, device) = objects.current()?;
    let (base, bytes) = (pointer, bytes as u64);
    if pointer == 0 || bytes == 0 || flags & !REGISTRATION_FLAGS != 0 || base.checked_add(bytes).is_none() {
        return Err(Error::INVALID_VALUE);
    }
    if objects.allocations.at(base).is_some() || objects.allocations.at(base + bytes - 1).is_some() {
        return Err(Error::HOST_MEMORY_ALREADY_REGISTERED);
    }
    let kind = Kind::Host { flags, registered: true };
    objects.allocations.add(Allocation { base, bytes, context, device, charged: 0, id: 0, region: None, kind });
    Ok(())
}

fn unregister(pointer: u64) -> Answer {
    let mut objects = objects()?;
    objects.current()?;
    match objects.allocations.exact(pointer).map(|allocation| &allocation.kind) {
        Some(Kind::Host { registered: true, .. }) => {}
        Some(_) | None => return Err(Error::HOST_MEMORY_NOT_REGISTERED),
    }
    objects.discard(pointer);
    Ok(())
}

/// The address of host memory, which is known here.
fn known(pointer: u64, flags: u32) -> Result<u64, Error> {
    let objects = objects()?;
    objects.current()?;
    let is_known = objects.allocations.at(pointer).is_some_and(Allocation::is_host);
    if flags == 0 && is_known { Ok(pointer) } else { Err(Error::INVALID_VALUE) }
}

fn device_pointer(device: Out<u64>, pointer: u64, flags: u32) -> Answer {
    device.check()?;
    device.put(known(pointer, flags)?)
}

fn device_pointer_low(device: Out<u32>, pointer: u64, flags: u32) -> Answer {
    device.check()?;
    device.put(u32::try_from(known(pointer, flags)?).map_err(|_| Error::INVALID_VALUE)?)
}

fn flags_of(flags: Out<u32>, pointer: u64) -> Answer {
    let objects = objects()?;
    objects.current()?;
    match objects.allocations.at(pointer).map(|allocation| &allocation.kind) {
        // All memory that is allocated is mapped.
        Some(Kind::Host { flags: given, registered: false }) => flags.put(given | 2),
        Some(_) | None => Err(Error::INVALID_VALUE),
    }
}
