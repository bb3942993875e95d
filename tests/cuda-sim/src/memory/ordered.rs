//! Stream-ordered allocation: out of pools; while a stream is captured, as a node of its graph.

use crate::abi::{Handle, Out, api};
use crate::backing::Region;
use crate::error::{Answer, Error};
use crate::memory::alloc::release;
use crate::memory::allocation::{Allocation, Kind};
use crate::memory::managed::{Managed, NOWHERE};
use crate::memory::residency::Work;
use crate::objects::{Objects, objects};
use crate::ranges::Ranges;

api! {
    fn cuMemAllocAsync | cuMemAllocAsync_ptsz(pointer: Out<u64>, bytes: usize, stream: Handle) = allocate;
    fn cuMemAllocFromPoolAsync | cuMemAllocFromPoolAsync_ptsz(
        pointer: Out<u64>, bytes: usize, pool: Handle, stream: Handle,
    ) = allocate_from;
    fn cuMemFreeAsync | cuMemFreeAsync_ptsz(pointer: u64, stream: Handle) = free;
}

fn allocate(pointer: Out<u64>, bytes: usize, stream: Handle) -> Answer {
    let mut objects = objects()?;
    let stream = objects.stream(stream)?;
    let device = i32::try_from(objects.device_of_stream(stream)?).map_err(|_| Error::INVALID_DEVICE)?;
    let pool = objects.current_pool(device, false)?;
    objects.allocate_ordered(pointer, bytes, pool, stream)
}

fn allocate_from(pointer: Out<u64>, bytes: usize, pool: Handle, stream: Handle) -> Answer {
    let mut objects = objects()?;
    let stream = objects.stream(stream)?;
    objects.allocate_ordered(pointer, bytes, pool, stream)
}

impl Objects {
    fn allocate_ordered(&mut self, pointer: Out<u64>, bytes: usize, pool: Handle, stream: Handle) -> Answer {
        pointer.check()?;
        let Ok(bytes @ 1..) = u64::try_from(bytes) else { return Err(Error::INVALID_VALUE) };
        let (device, preferred) = self.pool(pool).map(|pool| (pool.device, pool.preferred))?;
        if self.records(stream)? {
            return pointer.put(self.record_allocation(stream, device, bytes)?);
        }
        let start = self.begin(stream)?;
        let ready = self.take_from_pool(pool, bytes)?;
        let region = match Region::new(bytes) {
            Ok(region) => region,
            Err(error) => {
                self.return_to_pool(pool, bytes);
                return Err(error);
            }
        };
        let mut managed = None;
        if let Some(place) = preferred {
            let work = Work::on(&mut self.allocations, device, 0)?;
            if work.card.takes_failure() {
                drop(work);
                self.return_to_pool(pool, bytes);
                return Err(Error::OUT_OF_MEMORY);
            }
            work.card.add_managed(bytes);
            let mut state = Managed::default();
            if place != NOWHERE {
                Managed::assign(&mut state.preferred, place, &Ranges::of(0..bytes));
            }
            managed = Some(state);
        }
        let context = self.streams.get(&stream).ok_or(Error::INVALID_HANDLE)?.context;
        let (base, region, kind) = (region.base(), Some(region), Kind::Pooled { pool, managed });
        self.allocations.add(Allocation { base, bytes, context, device, charged: 0, id: 0, region, kind });
        self.busy_until(stream, start.max(ready));
        pointer.put(base)
    }
}

fn free(pointer: u64, stream: Handle) -> Answer {
    let mut objects = objects()?;
    let stream = objects.stream(stream)?;
    if pointer == 0 {
        return Ok(());
    }
    if objects.records(stream)? {
        return objects.record_free(stream, pointer);
    }
    release(&mut objects, pointer)
}
