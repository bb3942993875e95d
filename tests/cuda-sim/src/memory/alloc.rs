//! Plain and managed allocation, freeing, and what is free.

use crate::abi::{Out, api};
use crate::backing::Region;
use crate::error::{Answer, Error};
use crate::machine;
use crate::memory::allocation::{Allocation, Kind};
use crate::memory::managed::Managed;
use crate::memory::residency::{self, Work};
use crate::objects::{Objects, objects};
use crate::ranges::Ranges;
use crate::time;

api! {
    fn cuMemAlloc(pointer: Out<u32>, bytes: u32) = allocate_low;
    fn cuMemAlloc_v2(pointer: Out<u64>, bytes: usize) = allocate;
    fn cuMemAllocPitch(pointer: Out<u32>, pitch: Out<u32>, width: u32, height: u32, element: u32) = allocate_pitch_low;
    fn cuMemAllocPitch_v2(pointer: Out<u64>, pitch: Out<usize>, width: usize, height: usize, element: u32)
        = allocate_pitch;
    fn cuMemAllocManaged(pointer: Out<u64>, bytes: usize, flags: u32) = allocate_managed;
    fn cuMemFree(pointer: u32) = free_low;
    fn cuMemFree_v2(pointer: u64) = free;
    fn cuMemGetInfo(free: Out<u32>, total: Out<u32>) = info_low;
    fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) = info;
    fn cuMemGetAddressRange(base: Out<u32>, size: Out<u32>, pointer: u32) = address_range_low;
    fn cuMemGetAddressRange_v2(base: Out<u64>, size: Out<usize>, pointer: u64) = address_range;
}

/// Rows of pitched memory begin at multiples of this.
const PITCH: usize = 512;
/// `CU_MEM_ATTACH_GLOBAL`, `CU_MEM_ATTACH_HOST`; the third one is for streams only.
const ATTACH: [u32; 2] = [1, 2];

impl Objects {
    /// Device memory of the current context, and when it is there.
    ///
    /// # Errors
    /// No context, no bytes, or no room.
    pub(crate) fn allocate(
        &mut self,
        bytes: u64,
        region: fn(u64) -> Result<Region, Error>,
    ) -> Result<(u64, u64), Error> {
        let (context, device) = self.current()?;
        self.refuse_unsafe_while_captured()?;
        if bytes == 0 {
            return Err(Error::INVALID_VALUE);
        }
        let ready = residency::charge(&mut self.allocations, device, bytes)?;
        let region = region(bytes).inspect_err(|_| residency::release(device, bytes))?;
        let base = region.base();
        let region = Some(region);
        let kind = Kind::Device;
        self.allocations.add(Allocation { base, bytes, context, device, charged: bytes, id: 0, region, kind });
        Ok((base, ready))
    }

    /// Takes an allocation away, with what it holds of cards.
    pub(crate) fn discard(&mut self, base: u64) {
        let Some(allocation) = self.allocations.exact(base) else { return };
        if let Some(managed) = allocation.managed() {
            let (home, all) = (allocation.device, Ranges::of(0..allocation.bytes));
            let mut devices: Vec<usize> = managed.on_device.keys().copied().collect();
            devices.push(home);
            devices.sort_unstable();
            devices.dedup();
            for device in devices {
                if let Ok(mut work) = Work::on(&mut self.allocations, device, 0) {
                    work.forget(base, &all);
                    if device == home {
                        work.card.remove_managed(all.bytes());
                    }
                }
            }
        }
        let Some(allocation) = self.allocations.remove(base) else { return };
        crate::ipc::forget(base);
        crate::memory::shared_pools::forget(base);
        if allocation.charged > 0 {
            residency::release(allocation.device, allocation.charged);
        }
        if let Kind::Pooled { pool, .. } = allocation.kind {
            self.return_to_pool(pool, allocation.bytes);
        }
    }
}

fn allocate(pointer: Out<u64>, bytes: usize) -> Answer {
    pointer.check()?;
    let (base, ready) = objects()?.allocate(bytes as u64, Region::new)?;
    time::wait(ready);
    pointer.put(base)
}

fn allocate_low(pointer: Out<u32>, bytes: u32) -> Answer {
    pointer.check()?;
    let (base, ready) = objects()?.allocate(u64::from(bytes), Region::low)?;
    time::wait(ready);
    pointer.put(low(base))
}

fn allocate_pitch(pointer: Out<u64>, pitch: Out<usize>, width: usize, height: usize, element: u32) -> Answer {
    pitch.check()?;
    let (row, bytes) = pitched(width, height, element)?;
    allocate(pointer, bytes)?;
    pitch.put(row)
}

fn allocate_pitch_low(pointer: Out<u32>, pitch: Out<u32>, width: u32, height: u32, element: u32) -> Answer {
    pitch.check()?;
    let (row, bytes) = pitched(width as usize, height as usize, element)?;
    allocate_low(pointer, u32::try_from(bytes).map_err(|_| Error::OUT_OF_MEMORY)?)?;
    pitch.put(low(row as u64))
}

/// Bytes of a row, and of them all.
fn pitched(width: usize, height: usize, element: u32) -> Result<(usize, usize), Error> {
    machine::all()?;
    if !matches!(element, 4 | 8 | 16) || width == 0 || height == 0 {
        return Err(Error::INVALID_VALUE);
    }
    let row = width.checked_next_multiple_of(PITCH).ok_or(Error::OUT_OF_MEMORY)?;
    Ok((row, row.checked_mul(height).ok_or(Error::OUT_OF_MEMORY)?))
}

fn allocate_managed(pointer: Out<u64>, bytes: usize, flags: u32) -> Answer {
    pointer.check()?;
    let mut objects = objects()?;
    let (context, device) = objects.current()?;
    objects.refuse_unsafe_while_captured()?;
    if bytes == 0 || !ATTACH.contains(&flags) {
        return Err(Error::INVALID_VALUE);
    }
    let bytes = bytes as u64;
    let region = Region::new(bytes)?;
    let work = Work::on(&mut objects.allocations, device, 0)?;
    if work.card.takes_failure() {
        return Err(Error::OUT_OF_MEMORY);
    }
    work.card.add_managed(bytes);
    drop(work);
    let base = region.base();
    let (region, kind) = (Some(region), Kind::Managed(Managed::default()));
    objects.allocations.add(Allocation { base, bytes, context, device, charged: 0, id: 0, region, kind });
    pointer.put(base)
}

fn free(pointer: u64) -> Answer {
    let mut objects = objects()?;
    objects.current()?;
    if pointer == 0 {
        return Ok(());
    }
    objects.refuse_unsafe_while_captured()?;
    release(&mut objects, pointer)
}

/// Frees what begins at this address, of the kinds that a device has.
pub(super) fn release(objects: &mut Objects, pointer: u64) -> Answer {
    if crate::graph::free(objects, pointer) {
        return Ok(());
    }
    match objects.allocations.exact(pointer).map(|allocation| &allocation.kind) {
        Some(Kind::Device | Kind::Managed(_) | Kind::Pooled { .. }) => {}
        Some(Kind::Host { .. } | Kind::Elsewhere) | None => return Err(Error::INVALID_VALUE),
    }
    objects.discard(pointer);
    Ok(())
}

fn free_low(pointer: u32) -> Answer {
    free(u64::from(pointer))
}

fn info(free: Out<usize>, total: Out<usize>) -> Answer {
    let objects = objects()?;
    let (_, device) = objects.current()?;
    let device = machine::all()?.get(device).ok_or(Error::INVALID_DEVICE)?;
    let now = device.card.lock().map_err(|_| Error::UNKNOWN)?.free();
    free.put_if(usize::try_from(now).unwrap_or(usize::MAX));
    total.put_if(usize::try_from(device.settings.memory).unwrap_or(usize::MAX));
    Ok(())
}

fn info_low(free: Out<u32>, total: Out<u32>) -> Answer {
    let objects = objects()?;
    let (_, device) = objects.current()?;
    let device = machine::all()?.get(device).ok_or(Error::INVALID_DEVICE)?;
    let now = device.card.lock().map_err(|_| Error::UNKNOWN)?.free();
    free.put_if(low(now));
    total.put_if(low(device.settings.memory));
    Ok(())
}

fn address_range(base: Out<u64>, size: Out<usize>, pointer: u64) -> Answer {
    let objects = objects()?;
    objects.current()?;
    let found = objects.allocations.at(pointer).ok_or(Error::NOT_FOUND)?;
    base.put_if(found.base);
    size.put_if(usize::try_from(found.bytes).unwrap_or(usize::MAX));
    Ok(())
}

fn address_range_low(base: Out<u32>, size: Out<u32>, pointer: u32) -> Answer {
    let objects = objects()?;
    objects.current()?;
    let found = objects.allocations.at(u64::from(pointer)).ok_or(Error::NOT_FOUND)?;
    base.put_if(low(found.base));
    size.put_if(low(found.bytes));
    Ok(())
}

/// Value as entries of 32 bits return it.
fn low(value: u64) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}
