//! A card under its lock, as the driver works on it. Whoever holds it is alone on the card, in all processes.

use crate::kernel::Locks;
use crate::layout::{CARD_LOCK, Layout, MOVES, SlotWords, Word, slot_lock};
use crate::settings::Prefetch;
use crate::state::{Cause, Direction};
use std::sync::MutexGuard;

/// See [`crate::Card::lock`].
#[derive(Debug)]
pub struct Locked<'a> {
    layout: &'a Layout,
    locks: &'a Locks,
    own: Option<usize>,
    _threads: MutexGuard<'a, ()>,
}

/// Managed memory of this process, as the others see it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Resident {
    /// Bytes on the card.
    pub bytes: u64,
    /// The rank of what is evicted first: when it was used, by [`Locked::tick`], or more, to be evicted later.
    pub oldest: u64,
    /// Bytes of that on the card.
    pub oldest_bytes: u64,
    /// The rank of what is evicted last.
    pub newest: u64,
}

/// Another process's memory that may be evicted.
#[derive(Debug, Clone, Copy)]
pub struct Victim {
    slot: usize,
    /// Rank of the allocation.
    pub used: u64,
    /// Bytes of it on the card.
    pub bytes: u64,
}

impl<'a> Locked<'a> {
    pub(crate) fn new(layout: &'a Layout, locks: &'a Locks, own: Option<usize>, threads: MutexGuard<'a, ()>) -> Self {
        Self { layout, locks, own, _threads: threads }
    }

    /// Clears the slots whose processes are gone.
    pub(crate) fn reap(&self) {
        for (number, slot) in self.layout.slots.iter().enumerate().filter(|(_, slot)| slot.pid.get() != 0) {
            if Some(number) != self.own && !self.locks.held_elsewhere(slot_lock(number)) {
                for word in slot.words() {
                    word.set(0);
                }
            }
        }
    }

    /// Free bytes.
    #[must_use]
    pub fn free(&self) -> u64 {
        let used = self.sum(|slot| &slot.device) + self.sum(|slot| &slot.resident);
        self.layout.settings.memory.get().saturating_sub(used)
    }

    /// Bytes that are free, or would be if all that can move did.
    #[must_use]
    pub fn attainable(&self) -> u64 {
        self.layout.settings.memory.get().saturating_sub(self.sum(|slot| &slot.device))
    }

    /// The next moment, by the card's count of uses.
    #[must_use]
    pub fn tick(&self) -> u64 {
        self.layout.clock.add(1)
    }

    /// The current allocation is the one that a test wants to fail.
    #[must_use]
    pub fn takes_failure(&self) -> bool {
        let left = &self.layout.faults.fail_allocation;
        let now = left.get();
        left.subtract(1);
        now == 1
    }

    /// Fault of prefetches.
    #[must_use]
    pub fn prefetch_fault(&self) -> Prefetch {
        crate::Faults::read(&self.layout.faults).prefetch
    }

    /// A call that prefetches.
    pub fn count_prefetch(&self) {
        self.layout.counters.prefetch_calls.add(1);
    }

    /// Adds memory of this process that cannot be moved.
    pub fn add_device(&self, bytes: u64) {
        self.with_own(|slot| slot.device.add(bytes));
    }

    /// Removes such memory.
    pub fn remove_device(&self, bytes: u64) {
        self.with_own(|slot| slot.device.subtract(bytes));
    }

    /// Managed memory came into being; where it is does not matter.
    pub fn add_managed(&self, bytes: u64) {
        self.with_own(|slot| slot.managed.add(bytes));
    }

    /// Removes managed memory.
    pub fn remove_managed(&self, bytes: u64) {
        self.with_own(|slot| slot.managed.subtract(bytes));
    }

    /// Adds managed memory of this process that is on the card.
    pub fn add_resident(&self, bytes: u64) {
        self.with_own(|slot| slot.resident.add(bytes));
    }

    /// Removes such memory.
    pub fn remove_resident(&self, bytes: u64) {
        self.with_own(|slot| slot.resident.subtract(bytes));
    }

    /// Bytes that others have evicted of this process since the last call.
    #[must_use]
    pub fn take_owed(&self) -> u64 {
        self.own.map_or(0, |own| {
            let owed = self.layout.slots[own].owed.get();
            self.layout.slots[own].owed.set(0);
            owed
        })
    }

    /// Tells the others.
    pub fn publish(&self, resident: Resident) {
        self.with_own(|slot| {
            slot.resident.set(resident.bytes);
            slot.oldest.set(resident.oldest);
            slot.oldest_bytes.set(resident.oldest_bytes);
            slot.newest.set(resident.newest);
        });
    }

    /// Memory of the other processes that was not used for longest.
    #[must_use]
    pub fn victim(&self) -> Option<Victim> {
        let slots = self.layout.slots.iter().enumerate();
        let others = slots.filter(|(number, slot)| Some(*number) != self.own && slot.resident.get() > 0);
        let (slot, words) = others.min_by_key(|(_, slot)| slot.oldest.get())?;
        let bytes = words.oldest_bytes.get().min(words.resident.get());
        Some(Victim { slot, used: words.oldest.get(), bytes: if bytes == 0 { words.resident.get() } else { bytes } })
    }

    /// Takes up to `bytes` of it from the card. Its owner learns it when it next looks; until then the rest of it counts
    /// as used when its owner last used any, which is all that is known.
    pub fn evict(&self, victim: Victim, bytes: u64) -> u64 {
        let (slot, bytes) = (&self.layout.slots[victim.slot], bytes.min(victim.bytes));
        // In this order: a kill in between leaves a slot whose owner will set it right.
        slot.owed.add(bytes);
        slot.resident.subtract(bytes);
        slot.oldest_bytes.subtract(bytes);
        if slot.oldest_bytes.get() == 0 {
            slot.oldest.set(slot.newest.get());
        }
        self.write_move(slot, 0, bytes, Direction::ToHost, Cause::Eviction);
        bytes
    }

    /// A move of this process's memory.
    pub fn record(&self, address: u64, bytes: u64, direction: Direction, cause: Cause) {
        self.with_own(|slot| self.write_move(slot, address, bytes, direction, cause));
    }

    /// Takes the link for so many bytes, not before `start`; answers when they have passed (nanoseconds of [`crate::now`]).
    /// One transfer at a time goes each way, of all processes.
    #[must_use]
    pub fn transfer(&self, start: u64, bytes: u64, direction: Direction, cause: Cause) -> u64 {
        let (settings, link) = (&self.layout.settings, &self.layout.link);
        let (busy, plain) = match direction {
            Direction::ToDevice => (&link[0], &settings.to_device),
            Direction::ToHost => (&link[1], &settings.to_host),
        };
        let rate = match cause {
            Cause::Fault => settings.by_fault.get(),
            Cause::Prefetch | Cause::Eviction => plain.get(),
            Cause::Populate | Cause::Discard => 0,
        };
        if rate == 0 {
            return start;
        }
        let takes = u128::from(bytes) * 1_000_000_000 / u128::from(rate);
        let end = start.max(busy.get()).saturating_add(u64::try_from(takes).unwrap_or(u64::MAX));
        busy.set(end);
        end
    }

    fn write_move(&self, slot: &SlotWords, address: u64, bytes: u64, direction: Direction, cause: Cause) {
        let counters = &self.layout.counters;
        let counter = match (cause, direction) {
            (Cause::Prefetch, Direction::ToDevice) => &counters.prefetch_to_device,
            (Cause::Prefetch, Direction::ToHost) => &counters.prefetch_to_host,
            (Cause::Fault, Direction::ToDevice) => &counters.fault_to_device,
            (Cause::Fault, Direction::ToHost) => &counters.fault_to_host,
            (Cause::Eviction, _) => &counters.evicted,
            (Cause::Populate, _) => &counters.populated,
            (Cause::Discard, _) => &counters.discarded,
        };
        counter.add(bytes);
        let number = self.layout.moved.get();
        let words = &self.layout.moves[usize::try_from(number % MOVES as u64).unwrap_or(0)];
        words.pid.set(slot.pid.get());
        words.start_time.set(slot.start_time.get());
        words.address.set(address);
        words.bytes.set(bytes);
        words.direction.set(direction.code());
        words.cause.set(cause.code());
        self.layout.moved.set(number + 1);
    }

    fn sum(&self, of: impl Fn(&SlotWords) -> &Word) -> u64 {
        self.layout.slots.iter().map(|slot| of(slot).get()).sum()
    }

    fn with_own<T>(&self, change: impl FnOnce(&SlotWords) -> T) {
        if let Some(own) = self.own {
            change(&self.layout.slots[own]);
        }
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.locks.release(CARD_LOCK);
    }
}

impl SlotWords {
    fn words(&self) -> [&Word; 9] {
        let Self { pid, start_time, device, managed, resident, owed, oldest, oldest_bytes, newest } = self;
        [pid, start_time, device, managed, resident, owed, oldest, oldest_bytes, newest]
    }
}
