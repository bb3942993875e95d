//! Memory on a card: making room, moving managed memory in and out, telling other processes.
//!
//! Device memory stays where it is. Managed memory takes a card's bytes only while it is there; when something else needs
//! room, the driver evicts what was not used for longest, of all processes, and what prefers this card (`cuMemAdvise`)
//! only after all that does not. An allocation fails when what cannot move
//! does not fit; a move into a card that is full of what cannot move takes what fits, and leaves the rest on the host.

use crate::error::{Answer, Error};
use crate::machine;
use crate::memory::allocation::Allocations;
use crate::memory::managed::Managed;
use crate::ranges::Ranges;
use omni_cuda_card::{Cause, Direction, Locked, Resident, now};

/// Set in the rank of memory that prefers the card: it is evicted after all that does not, whenever that was used.
const PREFERS: u64 = 1 << 63;

/// Next part of an allocation to evict.
#[derive(Debug)]
struct Candidate {
    base: u64,
    part: Ranges,
    /// Time of its use, by [`Locked::tick`], or that and [`PREFERS`]. The least is evicted first.
    rank: u64,
    /// Rank of the part of the same allocation that is evicted last.
    last_rank: u64,
    /// Bytes of the allocation on the card.
    bytes: u64,
}

impl Candidate {
    fn of(base: u64, managed: &Managed, device: usize) -> Option<Self> {
        let on = managed.on_device.get(&device)?;
        let preferring = i32::try_from(device).ok().and_then(|device| managed.preferred.get(&device));
        let loose = preferring.map_or_else(|| on.ranges.clone(), |preferring| on.ranges.without(preferring));
        let (bytes, kept) = (on.ranges.bytes(), on.ranges.bytes() - loose.bytes());
        let last_rank = if kept > 0 { on.used | PREFERS } else { on.used };
        let (part, rank) = if loose.is_empty() { (on.ranges.clone(), last_rank) } else { (loose, on.used) };
        Some(Self { base, part, rank, last_rank, bytes })
    }
}

/// A card under its lock, with this process's allocations.
#[derive(Debug)]
pub(crate) struct Work<'a> {
    allocations: &'a mut Allocations,
    pub(crate) card: Locked<'static>,
    device: usize,
    /// End of the transfers so far.
    pub(crate) done: u64,
    /// Changed since other processes were told.
    changed: bool,
}

impl<'a> Work<'a> {
    /// Transfers begin not before `start`.
    ///
    /// # Errors
    /// The card cannot be locked.
    pub(crate) fn on(allocations: &'a mut Allocations, device: usize, start: u64) -> Result<Self, Error> {
        let card = &machine::all()?.get(device).ok_or(Error::INVALID_DEVICE)?.card;
        card.attach().map_err(|_| Error::OUT_OF_MEMORY)?;
        let card = card.lock().map_err(|_| Error::UNKNOWN)?;
        let owed = card.take_owed();
        let mut work = Self { allocations, card, device, done: start.max(now()), changed: owed > 0 };
        work.settle(owed);
        Ok(work)
    }

    /// Others evicted so much of ours: what comes first.
    fn settle(&mut self, owed: u64) {
        let mut owed = owed;
        while owed > 0
            && let Some(Candidate { base, part, .. }) = self.first(None)
        {
            let part = part.first(owed);
            owed -= part.bytes();
            if let Some(managed) = self.allocations.at_mut(base).and_then(|allocation| allocation.managed_mut()) {
                managed.left(self.device, &part);
            }
        }
    }

    /// Memory of this process on the card, allocation by allocation.
    fn candidates(&self) -> impl Iterator<Item = Candidate> {
        let device = self.device;
        self.allocations.iter().filter_map(move |one| Candidate::of(one.base, one.managed()?, device))
    }

    /// Part that is evicted first.
    fn first(&self, except: Option<u64>) -> Option<Candidate> {
        self.candidates().filter(|one| Some(one.base) != except).min_by_key(|one| one.rank)
    }

    /// Evicts until `bytes` are free, or nothing is left to evict but `keep`. Answers what is free.
    pub(crate) fn room(&mut self, bytes: u64, keep: Option<u64>) -> u64 {
        loop {
            let free = self.card.free();
            let Some(missing) = bytes.checked_sub(free).filter(|missing| *missing > 0) else { return free };
            match (self.first(keep), self.card.victim()) {
                (Some(own), Some(victim)) if victim.used < own.rank => self.evict_other(victim, missing),
                (Some(own), _) => self.leave(own.base, &own.part.first(missing), Cause::Eviction),
                (None, Some(victim)) => self.evict_other(victim, missing),
                (None, None) => return free,
            }
        }
    }

    fn evict_other(&mut self, victim: omni_cuda_card::Victim, bytes: u64) {
        let evicted = self.card.evict(victim, bytes);
        self.done = self.card.transfer(self.done, evicted, Direction::ToHost, Cause::Eviction);
    }

    /// `part` of an allocation leaves this card for the host.
    pub(crate) fn leave(&mut self, base: u64, part: &Ranges, cause: Cause) {
        let device = self.device;
        let Some(managed) = self.allocations.at_mut(base).and_then(|allocation| allocation.managed_mut()) else {
            return;
        };
        let (there, clean) = managed.leaving(device, part);
        managed.left(device, &there);
        let dirty = there.without(&clean);
        self.record(base, &dirty, Direction::ToHost, cause);
        self.record(base, &clean, Direction::ToHost, Cause::Discard);
        self.card.remove_resident(there.bytes());
        self.changed = true;
    }

    /// Brings `part` to this card, as much as fits. `touched`: pages of it that the host has, unknown to calls.
    pub(crate) fn arrive(&mut self, base: u64, part: &Ranges, touched: &Ranges, cause: Cause) {
        let device = self.device;
        let used = self.card.tick();
        let Some(managed) = self.allocations.exact(base).and_then(|allocation| allocation.managed()) else { return };
        let there = managed.on_device.get(&device).map(|on| on.ranges.clone()).unwrap_or_default();
        let missing = part.without(&there);
        let free = self.room(missing.bytes(), Some(base));
        let fits = missing.first(free);
        let Some(managed) = self.allocations.at_mut(base).and_then(|allocation| allocation.managed_mut()) else {
            return;
        };
        managed.on_host.add(&touched.without(&there));
        let (moved, populated) = (fits.and(&managed.on_host), fits.without(&managed.on_host));
        managed.arrived(device, &fits);
        if let Some(on) = managed.on_device.get_mut(&device) {
            on.used = used;
            if on.ranges.is_empty() {
                managed.on_device.remove(&device);
            }
        }
        self.record(base, &moved, Direction::ToDevice, cause);
        self.record(base, &populated, Direction::ToDevice, Cause::Populate);
        self.card.add_resident(fits.bytes());
        self.changed = true;
    }

    fn record(&mut self, base: u64, part: &Ranges, direction: Direction, cause: Cause) {
        if !part.is_empty() {
            self.card.record(base + part.start(), part.bytes(), direction, cause);
            self.done = self.card.transfer(self.done, part.bytes(), direction, cause);
        }
    }

    /// `part` of an allocation is gone from the card, and nowhere else. Answers what it was.
    pub(crate) fn forget(&mut self, base: u64, part: &Ranges) -> Ranges {
        let device = self.device;
        let Some(managed) = self.allocations.at_mut(base).and_then(|allocation| allocation.managed_mut()) else {
            return Ranges::default();
        };
        let (there, _) = managed.leaving(device, part);
        managed.forget(device, &there);
        self.card.remove_resident(there.bytes());
        self.changed = true;
        there
    }

    /// Drops the contents, which the program does not need.
    pub(crate) fn discard(&mut self, base: u64, part: &Ranges) {
        let gone = self.forget(base, part);
        self.record(base, &gone, Direction::ToHost, Cause::Discard);
    }

    /// Tells the other processes what this one has on the card.
    fn publish(&self) {
        let mut resident = Resident { oldest: u64::MAX, ..Resident::default() };
        for one in self.candidates() {
            resident.bytes += one.bytes;
            resident.newest = resident.newest.max(one.last_rank);
            if one.rank < resident.oldest {
                (resident.oldest, resident.oldest_bytes) = (one.rank, one.part.bytes());
            }
        }
        self.card.publish(resident);
    }

    /// Takes bytes that will not move.
    ///
    /// # Errors
    /// When they do not fit beside memory that does not move either, or a test has set a failure.
    pub(crate) fn charge(&mut self, bytes: u64) -> Answer {
        if self.card.takes_failure() { Err(Error::OUT_OF_MEMORY) } else { self.take(bytes) }
    }

    /// Charges the driver's own memory, for which no test can set a failure.
    ///
    /// # Errors
    /// When they do not fit beside memory that does not move either.
    fn take(&mut self, bytes: u64) -> Answer {
        if bytes > self.card.attainable() || self.room(bytes, None) < bytes {
            return Err(Error::OUT_OF_MEMORY);
        }
        self.card.add_device(bytes);
        Ok(())
    }
}

impl Drop for Work<'_> {
    fn drop(&mut self) {
        if self.changed {
            self.publish();
        }
    }
}

/// Takes bytes of a card that will not move; answers when there is room.
///
/// # Errors
/// See [`Work::charge`].
pub(crate) fn charge(allocations: &mut Allocations, device: usize, bytes: u64) -> Result<u64, Error> {
    let mut work = Work::on(allocations, device, 0)?;
    work.charge(bytes)?;
    Ok(work.done)
}

/// Takes the driver's own memory: no test can let it fail, and there is no wait.
///
/// # Errors
/// When there is no room.
pub(crate) fn take(allocations: &mut Allocations, device: usize, bytes: u64) -> Answer {
    Work::on(allocations, device, 0)?.take(bytes)
}

/// Gives them back.
pub(crate) fn release(device: usize, bytes: u64) {
    let Some(device) = machine::all().ok().and_then(|devices| devices.get(device)) else { return };
    // A card that cannot be locked has bigger troubles, and forgets everything at the end of the process.
    if let Ok(card) = device.card.lock() {
        card.remove_device(bytes);
    }
}
