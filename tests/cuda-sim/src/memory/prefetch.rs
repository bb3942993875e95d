//! Prefetching managed memory, one range or many, and giving contents up.
#![allow(clippy::too_many_arguments, reason = "the API's own argument lists")]

use crate::abi::{Handle, In, api};
use crate::error::{Answer, Error};
use crate::machine;
use crate::memory::access::Part;
use crate::memory::managed::{CPU, Managed};
use crate::memory::residency::Work;
use crate::objects::{Objects, objects};
use crate::stream;
use omni_cuda_card::{Cause, Prefetch};
use std::time::Duration;

api! {
    fn cuMemPrefetchAsync | cuMemPrefetchAsync_ptsz(address: u64, bytes: usize, device: i32, stream: Handle) = prefetch_1;
    fn cuMemPrefetchAsync_v2 | cuMemPrefetchAsync_v2_ptsz(
        address: u64, bytes: usize, place: Location, flags: u32, stream: Handle,
    ) = prefetch_2;
    fn cuMemPrefetchBatchAsync | cuMemPrefetchBatchAsync_ptsz(
        addresses: In<u64>, sizes: In<usize>, count: usize, places: In<Location>, firsts: In<usize>, kinds: usize,
        flags: u64, stream: Handle,
    ) = prefetch_batch;
    fn cuMemDiscardBatchAsync | cuMemDiscardBatchAsync_ptsz(
        addresses: In<u64>, sizes: In<usize>, count: usize, flags: u64, stream: Handle,
    ) = discard_batch;
    fn cuMemDiscardAndPrefetchBatchAsync | cuMemDiscardAndPrefetchBatchAsync_ptsz(
        addresses: In<u64>, sizes: In<usize>, count: usize, places: In<Location>, firsts: In<usize>, kinds: usize,
        flags: u64, stream: Handle,
    ) = discard_and_prefetch_batch;
}

/// `CUmemLocation`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Location {
    pub(crate) kind: i32,
    pub(crate) id: i32,
}

impl Location {
    pub(crate) const DEVICE: i32 = 1;
    pub(crate) const HOST: i32 = 2;
    /// A node of the host's memory, the caller's node.
    pub(crate) const HOST_NUMA: [i32; 2] = [3, 4];

    /// A device's ordinal, or [`CPU`]. All of the host is one place here.
    ///
    /// # Errors
    /// Another kind of place, or no such device.
    pub(crate) fn place(self) -> Result<i32, Error> {
        match self.kind {
            Self::DEVICE => machine::device(self.id).map(|_| self.id),
            Self::HOST => Ok(CPU),
            kind if Self::HOST_NUMA.contains(&kind) => Ok(CPU),
            _ => Err(Error::INVALID_VALUE),
        }
    }
}

/// Range of a call, and its destination.
#[derive(Debug, Clone, Copy)]
struct Wanted {
    address: u64,
    bytes: u64,
    /// Destination; none: stay.
    place: Option<i32>,
}

fn prefetch_1(address: u64, bytes: usize, device: i32, stream: Handle) -> Answer {
    if device != CPU {
        machine::device(device)?;
    }
    carry_out(&[Wanted { address, bytes: bytes as u64, place: Some(device) }], false, stream)
}

fn prefetch_2(address: u64, bytes: usize, place: Location, flags: u32, stream: Handle) -> Answer {
    machine::all()?;
    let place = Some(place.place()?);
    if flags != 0 {
        return Err(Error::INVALID_VALUE);
    }
    carry_out(&[Wanted { address, bytes: bytes as u64, place }], false, stream)
}

fn prefetch_batch(
    addresses: In<u64>,
    sizes: In<usize>,
    count: usize,
    places: In<Location>,
    firsts: In<usize>,
    kinds: usize,
    flags: u64,
    stream: Handle,
) -> Answer {
    carry_out(&batch(addresses, sizes, count, Some((places, firsts, kinds)), flags)?, false, stream)
}

fn discard_batch(addresses: In<u64>, sizes: In<usize>, count: usize, flags: u64, stream: Handle) -> Answer {
    carry_out(&batch(addresses, sizes, count, None, flags)?, true, stream)
}

fn discard_and_prefetch_batch(
    addresses: In<u64>,
    sizes: In<usize>,
    count: usize,
    places: In<Location>,
    firsts: In<usize>,
    kinds: usize,
    flags: u64,
    stream: Handle,
) -> Answer {
    carry_out(&batch(addresses, sizes, count, Some((places, firsts, kinds)), flags)?, true, stream)
}

/// The ranges of a batch. Place number n is for the ranges from `firsts[n]` up to `firsts[n + 1]`.
fn batch(
    addresses: In<u64>,
    sizes: In<usize>,
    count: usize,
    places: Option<(In<Location>, In<usize>, usize)>,
    flags: u64,
) -> Result<Vec<Wanted>, Error> {
    machine::all()?;
    if flags != 0 || count == 0 {
        return Err(Error::INVALID_VALUE);
    }
    let ranges = addresses.get_all(count)?.into_iter().zip(sizes.get_all(count)?);
    let mut wanted: Vec<Wanted> =
        ranges.map(|(address, bytes)| Wanted { address, bytes: bytes as u64, place: None }).collect();
    if let Some((places, firsts, kinds)) = places {
        let (places, firsts) = (places.get_all(kinds)?, firsts.get_all(kinds)?);
        let in_order = firsts.windows(2).all(|pair| pair[0] < pair[1]);
        if firsts.first() != Some(&0) || !in_order || firsts.last().is_none_or(|last| *last >= count) {
            return Err(Error::INVALID_VALUE);
        }
        for (number, place) in places.iter().enumerate() {
            let until = firsts.get(number + 1).copied().unwrap_or(count);
            let place = Some(place.place()?);
            wanted[firsts[number]..until].iter_mut().for_each(|one| one.place = place);
        }
    }
    Ok(wanted)
}

fn carry_out(wanted: &[Wanted], discards: bool, handle: Handle) -> Answer {
    let device = {
        let mut objects = objects()?;
        let stream = objects.stream(handle)?;
        for one in wanted {
            objects.managed_parts(one.address, one.bytes)?;
        }
        objects.device_of_stream(stream)?
    };
    if wanted.iter().any(|one| one.place.is_some()) {
        for one in wanted.iter().filter_map(|one| usize::try_from(one.place?).ok()).chain([device]) {
            let concurrent = machine::all()?.get(one).is_some_and(|device| device.settings.concurrent_managed);
            if !concurrent {
                return Err(Error::INVALID_DEVICE);
            }
        }
        // The card that the memory shall come to is the one that has the fault; on the way to the host, the stream's.
        for place in wanted.iter().filter_map(|one| one.place) {
            obey_fault(usize::try_from(place).unwrap_or(device))?;
        }
    }
    stream::submit(handle, |objects, device, start| {
        let device = machine::all()?.get(device).ok_or(Error::INVALID_DEVICE)?;
        device.card.lock().map_err(|_| Error::UNKNOWN)?.count_prefetch();
        let mut done = start;
        for one in wanted {
            for part in objects.managed_parts(one.address, one.bytes)? {
                if discards {
                    objects.give_up(&part)?;
                }
                if let Some(place) = one.place {
                    done = objects.prefetch(&part, place, done)?;
                }
            }
        }
        Ok(done)
    })
}

/// Applies the fault that a test has set for prefetches.
fn obey_fault(device: usize) -> Answer {
    let device = machine::all()?.get(device).ok_or(Error::INVALID_DEVICE)?;
    loop {
        match device.card.faults().prefetch {
            Prefetch::Works => return Ok(()),
            Prefetch::Fails(code) => return Err(Error(code)),
            Prefetch::Hangs => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

impl Objects {
    fn prefetch(&mut self, part: &Part, place: i32, start: u64) -> Result<u64, Error> {
        let done = match usize::try_from(place) {
            Ok(device) => self.move_to_device(part, device, Cause::Prefetch, start)?,
            Err(_) => self.move_to_host(part, Cause::Prefetch, start)?,
        };
        if let Some(managed) = self.allocation(part.base)?.managed_mut() {
            Managed::assign(&mut managed.last_prefetch, place, &part.range);
        }
        Ok(done)
    }

    /// The contents of a part are of no use: nothing of it is anywhere, and nothing is moved.
    fn give_up(&mut self, part: &Part) -> Answer {
        let Some(managed) = self.allocation(part.base)?.managed_mut() else { return Ok(()) };
        let devices: Vec<usize> = managed.on_device.keys().copied().collect();
        managed.on_host = managed.on_host.without(&part.range);
        for device in devices {
            Work::on(&mut self.allocations, device, 0)?.discard(part.base, &part.range);
        }
        for range in part.range.iter() {
            crate::backing::fill(part.base + range.start, &[0], range.end - range.start);
        }
        Ok(())
    }
}
