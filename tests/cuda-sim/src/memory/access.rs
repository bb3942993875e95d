//! Accesses of calls to ranges of addresses: their owners, and managed memory that moves because it is used.
//!
//! Device memory that a call names is used by the device: managed memory comes to it, page fault by page fault, unless
//! the device may use it where it is (`cuMemAdvise`: accessed by, or preferred on the host).

use crate::error::Error;
use crate::machine;
use crate::memory::managed::CPU;
use crate::memory::residency::Work;
use crate::objects::Objects;
use crate::ranges::Ranges;
use omni_cuda_card::{Cause, Direction};

/// A piece of one allocation.
#[derive(Debug, Clone)]
pub(crate) struct Part {
    pub(crate) base: u64,
    /// Counted from the base.
    pub(crate) range: Ranges,
}

impl Objects {
    /// The allocations under a range of addresses, which has no holes.
    ///
    /// # Errors
    /// When it is not all allocated, or it is empty.
    pub(crate) fn parts(&self, address: u64, bytes: u64) -> Result<Vec<Part>, Error> {
        let end = address.checked_add(bytes).ok_or(Error::INVALID_VALUE)?;
        let (mut at, mut found) = (address, Vec::new());
        while at < end {
            let allocation = self.allocations.at(at).ok_or(Error::INVALID_VALUE)?;
            let (base, stop) = (allocation.base, (allocation.base + allocation.bytes).min(end));
            found.push(Part { base, range: Ranges::of(at - base..stop - base) });
            at = stop;
        }
        if found.is_empty() { Err(Error::INVALID_VALUE) } else { Ok(found) }
    }

    /// Parts of managed memory only.
    ///
    /// # Errors
    /// As [`Self::parts`], or some of it is not managed.
    pub(crate) fn managed_parts(&self, address: u64, bytes: u64) -> Result<Vec<Part>, Error> {
        let parts = self.parts(address, bytes)?;
        let is_managed = |part: &Part| self.allocations.exact(part.base).is_some_and(|one| one.managed().is_some());
        if parts.iter().all(is_managed) { Ok(parts) } else { Err(Error::INVALID_VALUE) }
    }

    /// Moves a part to a device; answers when it is there.
    ///
    /// # Errors
    /// A card cannot be locked.
    pub(crate) fn move_to_device(
        &mut self,
        part: &Part,
        device: usize,
        cause: Cause,
        start: u64,
    ) -> Result<u64, Error> {
        let start = self.leave_devices(part, Some(device), cause, start)?;
        let touched = self.touched(part);
        let mut work = Work::on(&mut self.allocations, device, start)?;
        work.arrive(part.base, &part.range, &touched, cause);
        Ok(work.done)
    }

    /// Moves a part to the host; answers when it is there.
    ///
    /// # Errors
    /// A card cannot be locked.
    pub(crate) fn move_to_host(&mut self, part: &Part, cause: Cause, start: u64) -> Result<u64, Error> {
        let done = self.leave_devices(part, None, cause, start)?;
        if let Some(managed) = self.allocations.at_mut(part.base).and_then(|allocation| allocation.managed_mut()) {
            managed.on_host.add(&part.range);
        }
        Ok(done)
    }

    fn leave_devices(&mut self, part: &Part, but: Option<usize>, cause: Cause, start: u64) -> Result<u64, Error> {
        let managed = self.allocations.exact(part.base).and_then(|allocation| allocation.managed());
        let there = managed.into_iter().flat_map(|managed| managed.on_device.iter());
        let others = there.filter(|(device, on)| Some(**device) != but && !on.ranges.and(&part.range).is_empty());
        let devices: Vec<usize> = others.map(|(device, _)| *device).collect();
        let mut done = start;
        for device in devices {
            let mut work = Work::on(&mut self.allocations, device, done)?;
            work.leave(part.base, &part.range, cause);
            done = work.done;
        }
        Ok(done)
    }

    /// Pages of a part that calls have put nowhere, and that the host has used.
    fn touched(&self, part: &Part) -> Ranges {
        let Some(allocation) = self.allocations.exact(part.base) else { return Ranges::default() };
        let (Some(managed), Some(region)) = (allocation.managed(), &allocation.region) else {
            return Ranges::default();
        };
        let mut known = managed.on_host.clone();
        for on in managed.on_device.values() {
            known.add(&on.ranges);
        }
        part.range.without(&known).iter().flat_map(|range| region.touched(range)).collect()
    }

    /// A device uses a range of device memory of any kind; answers when the data is where it must be.
    ///
    /// # Errors
    /// When it is no device memory, or a card cannot be locked.
    pub(crate) fn device_uses(
        &mut self,
        device: usize,
        (address, bytes): (u64, u64),
        writes: bool,
        start: u64,
    ) -> Result<u64, Error> {
        let mut done = start;
        for part in self.parts(address, bytes)? {
            let Some(managed) = self.allocations.at_mut(part.base).and_then(|allocation| allocation.managed_mut())
            else {
                continue;
            };
            let is_mapped = i32::try_from(device).is_ok_and(|device| managed.accessed_by.contains(&device));
            let stays = managed.preferred.get(&CPU).map(|range| range.and(&part.range)).unwrap_or_default();
            let stays = if is_mapped { part.range.and(&managed.on_host) } else { stays };
            managed.on_host.add(&stays);
            let range = part.range.without(&stays);
            if !range.is_empty() {
                done = self.move_to_device(&Part { base: part.base, range }, device, Cause::Fault, done)?;
            }
            if writes && let Some(managed) = self.allocation(part.base)?.managed_mut() {
                managed.written(&part.range.without(&stays));
            }
        }
        Ok(done)
    }
}

/// Takes a card's link for a copy; answers when it is over.
///
/// # Errors
/// The card cannot be locked.
pub(crate) fn link(device: usize, start: u64, bytes: u64, direction: Direction) -> Result<u64, Error> {
    let device = machine::all()?.get(device).ok_or(Error::INVALID_DEVICE)?;
    let rate = match direction {
        Direction::ToDevice => device.settings.to_device,
        Direction::ToHost => device.settings.to_host,
    };
    if rate == 0 {
        return Ok(start);
    }
    let card = device.card.lock().map_err(|_| Error::UNKNOWN)?;
    Ok(card.transfer(start, bytes, direction, Cause::Prefetch))
}
