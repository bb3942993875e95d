//! Allocations of this process, by address.
//!
//! Hooks insert an allocation after the driver has made it and remove it **before** the driver frees it;
//! [`crate::moves`] claims ranges while it moves them, and removal of a claimed range waits for the move's end. So no
//! range is freed during a move, and a free waits only for a move of its own range.
//!
//! The resident part of a range is its front: moves take from its end, so one number describes it.

use crate::process::PerProcess;
use std::collections::HashSet;
use std::collections::hash_map::{Entry as Slot, HashMap};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Allocation of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Range {
    /// Address of the first byte; the handle for allocations without one (arrays, VMM handles).
    pub address: u64,
    /// Bytes as accounted.
    pub bytes: u64,
    pub kind: Kind,
    /// `CUcontext` that was current; 0 for none, or one that is gone.
    pub context: u64,
    /// From a pool, whose memory stays when that context ends.
    pub is_pooled: bool,
    /// Managed in place of the device memory that was requested.
    pub is_converted: bool,
    /// Bytes, from the front, that are meant to be on the device. 0 unless managed.
    pub resident: u64,
}

/// Kind of memory, which determines how it can be handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Managed memory: it can be moved.
    Managed,
    /// Device memory of every other kind: never moved.
    Device,
    /// Pinned host memory.
    Host,
}

/// Smaller allocations stay device memory: flags of streams, and memory that programs share with others, for which
/// managed memory cannot be used.
pub(crate) const SMALL: u64 = 1 << 20;
/// Most bytes of such small allocations in one process: nearly all memory has to be able to leave the card.
const SMALL_IN_ALL: u64 = 64 << 20;

impl Range {
    /// New allocation, all resident.
    pub(crate) fn new(address: u64, bytes: u64, kind: Kind, context: u64) -> Self {
        Self { address, bytes, kind, context, is_pooled: false, is_converted: false, resident: kind.resident(bytes) }
    }
}

impl Range {
    /// Bytes that count as small device memory.
    fn as_small(&self) -> u64 {
        if self.kind == Kind::Device && self.bytes < SMALL { self.bytes } else { 0 }
    }
}

impl Kind {
    /// Bytes of a new allocation that are meant to be on the device, as far as that can change.
    pub(crate) fn resident(self, bytes: u64) -> u64 {
        match self {
            Self::Managed => bytes,
            Self::Device | Self::Host => 0,
        }
    }
}

static TABLE: PerProcess<Table> = PerProcess::new();

#[derive(Default)]
struct Table {
    ranges: Mutex<Ranges>,
    /// Signalled when a claim ends.
    settled: Condvar,
}

#[derive(Default)]
struct Ranges {
    by_address: HashMap<u64, Entry, BuildHasherDefault<AddressHasher>>,
    /// Number of the next allocation, for their order.
    next: u64,
    /// Bytes in small device allocations.
    small: u64,
}

impl Ranges {
    fn insert(&mut self, entry: Entry) -> Option<Range> {
        self.small += entry.range.as_small();
        let before = self.by_address.insert(entry.range.address, entry).map(|entry| entry.range);
        self.small -= before.as_ref().map_or(0, Range::as_small);
        before
    }
}

/// Hash by one multiplication: addresses differ in their middle bits, and no adversary chooses them.
#[derive(Default)]
struct AddressHasher(u64);

impl Hasher for AddressHasher {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, address: u64) {
        self.0 = (self.0 ^ address).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(32);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[derive(Clone, Copy)]
struct Entry {
    range: Range,
    order: u64,
    is_claimed: bool,
}

/// Adds a range that the driver has allocated. Returns a range that was recorded under this address and is still
/// counted: it was freed in a way that no hook saw, or the driver would not reuse the address.
#[must_use]
pub(crate) fn insert(range: Range) -> Option<Range> {
    let mut ranges = lock();
    let order = ranges.next;
    ranges.next += 1;
    ranges.insert(Entry { range, order, is_claimed: false })
}

/// Adds a range again whose free has failed.
pub(crate) fn put_back(range: Range) {
    let _ = insert(range);
}

/// Removes the range that begins here, before the driver frees it. Waits while the range is being moved. If the driver
/// then refuses to free it, call [`put_back`].
pub(crate) fn remove(address: u64) -> Option<Range> {
    let mut ranges = lock();
    loop {
        match ranges.by_address.entry(address) {
            Slot::Occupied(entry) if !entry.get().is_claimed => {
                let range = entry.remove().range;
                ranges.small -= range.as_small();
                return Some(range);
            }
            Slot::Occupied(_) => ranges = wait(ranges),
            Slot::Vacant(_) => return None,
        }
    }
}

/// An allocation of this size stays device memory, beside `others` bytes of small allocations that are not in this
/// table.
pub(crate) fn stays_small(bytes: u64, others: u64) -> bool {
    bytes < SMALL && lock().small.saturating_add(others).saturating_add(bytes) <= SMALL_IN_ALL
}

/// Range that begins here.
pub(crate) fn get(address: u64) -> Option<Range> {
    lock().by_address.get(&address).map(|entry| entry.range)
}

/// Removes all ranges of a context, before it is destroyed. Waits for moves. Pool memory of that context stays, with no
/// context any more.
pub(crate) fn remove_context(context: u64) -> Vec<Range> {
    let mut ranges = lock();
    while ranges.by_address.values().any(|entry| entry.range.context == context && entry.is_claimed) {
        ranges = wait(ranges);
    }
    let of_context = ranges.by_address.values_mut().filter(|entry| entry.range.context == context);
    of_context.filter(|entry| entry.range.is_pooled).for_each(|entry| entry.range.context = 0);
    let gone: Vec<Range> =
        ranges.by_address.extract_if(|_, entry| entry.range.context == context).map(|(_, entry)| entry.range).collect();
    ranges.small -= gone.iter().map(Range::as_small).sum::<u64>();
    gone
}

/// Ranges that are being moved. They may be freed again once this is dropped.
pub(crate) struct Claims {
    /// In order of allocation.
    pub ranges: Vec<Range>,
}

/// Claims every managed range that `wanted` selects. Only one caller at a time: [`crate::moves`] guarantees it.
pub(crate) fn claim(wanted: impl Fn(&Range) -> bool) -> Claims {
    let mut ranges = lock();
    let mut claimed = Vec::new();
    for entry in ranges.by_address.values_mut() {
        if entry.range.kind == Kind::Managed && wanted(&entry.range) {
            entry.is_claimed = true;
            claimed.push((entry.order, entry.range));
        }
    }
    drop(ranges);
    claimed.sort_unstable_by_key(|(order, _)| *order);
    Claims { ranges: claimed.into_iter().map(|(_, range)| range).collect() }
}

impl Claims {
    /// Releases the claim on all other ranges.
    pub(crate) fn keep(&mut self, addresses: impl Iterator<Item = u64>) {
        let kept: HashSet<u64> = addresses.collect();
        let (kept, given_up) = self.ranges.drain(..).partition(|range| kept.contains(&range.address));
        drop(Self { ranges: given_up });
        self.ranges = kept;
    }

    /// Records the resident part of a claimed range.
    pub(crate) fn set_resident(&self, address: u64, resident: u64) {
        if let Some(entry) = lock().by_address.get_mut(&address) {
            entry.range.resident = resident.min(entry.range.bytes);
        }
    }
}

impl Drop for Claims {
    fn drop(&mut self) {
        let mut ranges = lock();
        for range in &self.ranges {
            if let Some(entry) = ranges.by_address.get_mut(&range.address) {
                entry.is_claimed = false;
            }
        }
        drop(ranges);
        table().settled.notify_all();
    }
}

fn table() -> &'static Table {
    TABLE.get(Table::default)
}

fn lock() -> MutexGuard<'static, Ranges> {
    table().ranges.lock().unwrap_or_else(PoisonError::into_inner)
}

fn wait(ranges: MutexGuard<'static, Ranges>) -> MutexGuard<'static, Ranges> {
    table().settled.wait(ranges).unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::sync_channel;
    use std::thread;

    /// Ranges at addresses of the test's own: tests of one program share the table.
    fn managed(address: u64, context: u64) -> Range {
        Range::new(address, 4096, Kind::Managed, context)
    }

    #[test]
    fn an_inserted_range_is_removed_once() {
        put_back(managed(0x1000, 1));
        assert_eq!(get(0x1000), Some(managed(0x1000, 1)));
        assert_eq!(remove(0x1001), None, "only a range's beginning names it");
        assert_eq!((remove(0x1000), remove(0x1000), get(0x1000)), (Some(managed(0x1000, 1)), None, None));
    }

    #[test]
    fn insert_returns_the_range_that_it_replaces() {
        assert_eq!(insert(managed(0x7000, 7)), None);
        assert_eq!(insert(managed(0x7000, 8)), Some(managed(0x7000, 7)));
        assert_eq!(get(0x7000), Some(managed(0x7000, 8)));
    }

    #[test]
    fn a_context_ends_with_its_ranges_but_those_of_pools() {
        let pooled = Range { is_pooled: true, ..managed(0x9000, 9) };
        [pooled, managed(0xa000, 9), managed(0xb000, 10)].into_iter().for_each(put_back);
        assert_eq!(remove_context(9), [managed(0xa000, 9)]);
        assert_eq!(get(0x9000), Some(Range { context: 0, ..pooled }));
        assert_eq!(get(0xb000), Some(managed(0xb000, 10)));
    }

    #[test]
    fn a_claim_has_managed_ranges_in_order_of_allocation() {
        for (address, kind) in
            [(0x3000, Kind::Managed), (0x2000, Kind::Managed), (0x2800, Kind::Device), (0x2900, Kind::Host)]
        {
            put_back(Range::new(address, 1, kind, 2));
        }
        let claims = claim(|range| range.context == 2);
        assert_eq!(claims.ranges.iter().map(|range| range.address).collect::<Vec<_>>(), [0x3000, 0x2000]);
        claims.set_resident(0x3000, 0);
        claims.set_resident(0x2000, 9);
        drop(claims);
        assert_eq!(get(0x3000).map(|range| range.resident), Some(0));
        assert_eq!(get(0x2000).map(|range| range.resident), Some(1), "never more than there is");
        assert_eq!(remove_context(2).len(), 4);
        assert_eq!(get(0x2000), None);
    }

    #[test]
    fn a_moving_range_is_freed_after_its_move_and_no_other_free_waits() {
        put_back(managed(0x4000, 4));
        put_back(managed(0x5000, 5));
        put_back(managed(0x6000, 4));
        let mut claims = claim(|range| range.context == 4);
        claims.keep([0x4000].into_iter());
        assert!(remove(0x5000).is_some() && remove(0x6000).is_some(), "not claimed: no wait");
        let (say, said) = sync_channel(1);
        let freeing = thread::spawn(move || {
            let range = remove(0x4000);
            say.send(range).ok();
        });
        assert!(get(0x4000).is_some(), "reading does not wait");
        claims.set_resident(0x4000, 0);
        assert!(said.try_recv().is_err(), "still on its way");
        drop(claims);
        assert_eq!(said.recv().ok().flatten().map(|range| range.resident), Some(0));
        freeing.join().ok();
    }
}
