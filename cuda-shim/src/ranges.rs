//! The memory of this process: every range that an allocation has brought, by its address.
//!
//! The hooks insert what the driver has given and remove what they are about to free, **before** the driver frees it;
//! [`crate::moves`] claims ranges while it moves them, and removing a claimed range waits for the move's end. So no
//! range is freed under a move, and a free waits only when its own range is on its way.
//!
//! A range is resident from its front: moves take from its end, so one number says which part is on the device.

use crate::process::PerProcess;
use std::collections::HashSet;
use std::collections::hash_map::{Entry as Slot, HashMap};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// One allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Range {
    /// Of its first byte; for what has no address (arrays, VMM handles) the handle.
    pub address: u64,
    /// As accounted.
    pub bytes: u64,
    /// What can be done with it.
    pub kind: Kind,
    /// The `CUcontext` that was current; 0 for none, or one that is gone.
    pub context: u64,
    /// A pool's, whose memory stays when that context ends.
    pub is_pooled: bool,
    /// Managed in place of the device memory that was asked for.
    pub is_converted: bool,
    /// Of `bytes`, how many, from the front, are meant to be on the device. 0 unless managed.
    pub resident: u64,
}

/// What can be done with a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Managed memory: it can be moved.
    Managed,
    /// Device memory of every other kind: it stays where it is.
    Device,
    /// Pinned host memory.
    Host,
}

/// Allocations below this stay device memory: flags of streams, and what programs share with others, which managed memory
/// cannot be used for.
pub(crate) const SMALL: u64 = 1 << 20;
/// As long as such pieces of a process add up to no more than this: nearly all memory has to be able to leave the card.
const SMALL_IN_ALL: u64 = 64 << 20;

impl Range {
    /// A fresh allocation.
    pub(crate) fn new(address: u64, bytes: u64, kind: Kind, context: u64) -> Self {
        Self { address, bytes, kind, context, is_pooled: false, is_converted: false, resident: kind.resident(bytes) }
    }
}

impl Range {
    /// Its part of the small pieces that cannot be moved.
    fn as_small(&self) -> u64 {
        if self.kind == Kind::Device && self.bytes < SMALL { self.bytes } else { 0 }
    }
}

impl Kind {
    /// How much of a fresh allocation is meant to be on the device, as far as that can change.
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
    /// A claim has ended.
    settled: Condvar,
}

#[derive(Default)]
struct Ranges {
    by_address: HashMap<u64, Entry, BuildHasherDefault<AddressHasher>>,
    /// Counts allocations: the order in which they came.
    next: u64,
    /// Bytes in small pieces that cannot be moved.
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

/// Addresses differ in their middle bits and nobody chooses them: one multiplication spreads them.
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

/// Adds a range that the driver has given. The answer is what was there under this address and counts still: it went by a
/// way that no hook saw, or the driver would not give the address anew.
#[must_use]
pub(crate) fn insert(range: Range) -> Option<Range> {
    let mut ranges = lock();
    let order = ranges.next;
    ranges.next += 1;
    ranges.insert(Entry { range, order, is_claimed: false })
}

/// Adds a range again that was taken out and is not gone.
pub(crate) fn put_back(range: Range) {
    let _ = insert(range);
}

/// Takes a range out that begins here, to be called before the driver frees it. Waits while the range is being moved.
/// When the driver then refuses to free it, put it back.
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

/// Whether an allocation of this size stays device memory, beside `others` bytes of small pieces that are not in here.
pub(crate) fn stays_small(bytes: u64, others: u64) -> bool {
    bytes < SMALL && lock().small.saturating_add(others).saturating_add(bytes) <= SMALL_IN_ALL
}

/// The range that begins here.
pub(crate) fn get(address: u64) -> Option<Range> {
    lock().by_address.get(&address).map(|entry| entry.range)
}

/// Takes all ranges out that go with a context, to be called before it is destroyed. Waits for moves. What pools have had
/// there stays, and has no context any more.
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

/// Ranges that are being moved. When this is dropped they may be freed again.
pub(crate) struct Claims {
    /// In the order of their allocation.
    pub ranges: Vec<Range>,
}

/// Claims every managed range that `wanted` names. One caller at a time: [`crate::moves`] sees to that.
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
    /// Gives up the claim on all ranges but these.
    pub(crate) fn keep(&mut self, addresses: impl Iterator<Item = u64>) {
        let kept: HashSet<u64> = addresses.collect();
        let (kept, given_up) = self.ranges.drain(..).partition(|range| kept.contains(&range.address));
        drop(Self { ranges: given_up });
        self.ranges = kept;
    }

    /// Notes how much of a claimed range is resident now.
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

    /// Tests of one program share the table: each has addresses of its own.
    fn managed(address: u64, context: u64) -> Range {
        Range::new(address, 4096, Kind::Managed, context)
    }

    #[test]
    fn what_was_inserted_is_removed_once() {
        put_back(managed(0x1000, 1));
        assert_eq!(get(0x1000), Some(managed(0x1000, 1)));
        assert_eq!(remove(0x1001), None, "only a range's beginning names it");
        assert_eq!((remove(0x1000), remove(0x1000), get(0x1000)), (Some(managed(0x1000, 1)), None, None));
    }

    #[test]
    fn what_was_there_before_is_told() {
        assert_eq!(insert(managed(0x7000, 7)), None);
        assert_eq!(insert(managed(0x7000, 8)), Some(managed(0x7000, 7)));
        assert_eq!(get(0x7000), Some(managed(0x7000, 8)));
    }

    #[test]
    fn a_context_takes_all_with_it_but_what_is_a_pools() {
        let pooled = Range { is_pooled: true, ..managed(0x9000, 9) };
        [pooled, managed(0xa000, 9), managed(0xb000, 10)].into_iter().for_each(put_back);
        assert_eq!(remove_context(9), [managed(0xa000, 9)]);
        assert_eq!(get(0x9000), Some(Range { context: 0, ..pooled }));
        assert_eq!(get(0xb000), Some(managed(0xb000, 10)));
    }

    #[test]
    fn a_claim_has_the_order_of_allocation_and_managed_ranges_only() {
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
    fn a_range_on_its_way_is_freed_after_its_move_and_no_other_waits() {
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
