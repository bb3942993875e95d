//! The file of a card, byte for byte: settings, faults to inject, what all processes share.
//!
//! Every word is atomic, so that any content is valid and no reader needs trust. Words change only under the card's
//! lock. A process that is killed in between leaves nothing half done that matters: what it holds stands in its own
//! slot, which dies with it, and totals are sums over the slots.

use std::sync::atomic::{AtomicU64, Ordering};

/// First eight bytes of a card that is set up; the last character is the layout's version.
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"omnicrd1");
/// Processes that can use a card at a time.
pub const SLOTS: usize = 256;
/// Moves that a card remembers.
pub const MOVES: usize = 4096;

/// The byte whose lock guards the whole file.
pub(crate) const CARD_LOCK: i64 = 0;

/// The byte whose lock means that the process of a slot lives.
pub(crate) fn slot_lock(slot: usize) -> i64 {
    1 + i64::try_from(slot).unwrap_or(0)
}

/// Shared number.
#[derive(Debug, Default)]
#[repr(transparent)]
pub(crate) struct Word(AtomicU64);

impl Word {
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// Answers the sum.
    pub(crate) fn add(&self, value: u64) -> u64 {
        let sum = self.get().wrapping_add(value);
        self.set(sum);
        sum
    }

    pub(crate) fn subtract(&self, value: u64) {
        self.set(self.get().saturating_sub(value));
    }
}

/// Up to 64 bytes of text.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct Text([Word; 8]);

impl Text {
    pub(crate) fn get(&self) -> String {
        let bytes: Vec<u8> =
            self.0.iter().flat_map(|word| word.get().to_le_bytes()).take_while(|byte| *byte != 0).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Cuts what is longer.
    pub(crate) fn set(&self, text: &str) {
        let mut bytes = text.bytes().chain(std::iter::repeat(0));
        for word in &self.0 {
            word.set(u64::from_le_bytes(std::array::from_fn(|_| bytes.next().unwrap_or(0))));
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.iter().all(|word| word.get() == 0)
    }
}

/// See [`crate::Settings`].
#[derive(Debug)]
#[repr(C)]
pub(crate) struct SettingsWords {
    pub(crate) name: Text,
    pub(crate) uuid: [Word; 2],
    pub(crate) memory: Word,
    pub(crate) driver: Word,
    pub(crate) to_device: Word,
    pub(crate) to_host: Word,
    pub(crate) by_fault: Word,
    pub(crate) capability: Word,
    pub(crate) concurrent_managed: Word,
    pub(crate) context_bytes: Word,
}

/// See [`crate::Faults`].
#[derive(Debug)]
#[repr(C)]
pub(crate) struct FaultWords {
    pub(crate) fail_allocation: Word,
    pub(crate) lost: Word,
    pub(crate) slow_call: Text,
    pub(crate) slow_milliseconds: Word,
    pub(crate) prefetch: Word,
}

/// See [`crate::Counters`].
#[derive(Debug)]
#[repr(C)]
pub(crate) struct CounterWords {
    pub(crate) prefetch_to_device: Word,
    pub(crate) prefetch_to_host: Word,
    pub(crate) fault_to_device: Word,
    pub(crate) fault_to_host: Word,
    pub(crate) evicted: Word,
    pub(crate) discarded: Word,
    pub(crate) populated: Word,
    pub(crate) prefetch_calls: Word,
}

/// Memory of one process, in bytes.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct SlotWords {
    /// 0: free.
    pub(crate) pid: Word,
    pub(crate) start_time: Word,
    pub(crate) device: Word,
    pub(crate) managed: Word,
    pub(crate) resident: Word,
    /// Bytes that others have evicted of it, and it has not noticed yet.
    pub(crate) owed: Word,
    /// Last use of its least recently used resident allocation, the resident bytes of that, and its last use of any.
    pub(crate) oldest: Word,
    pub(crate) oldest_bytes: Word,
    pub(crate) newest: Word,
}

/// See [`crate::Move`].
#[derive(Debug)]
#[repr(C)]
pub(crate) struct MoveWords {
    pub(crate) pid: Word,
    pub(crate) start_time: Word,
    pub(crate) address: Word,
    pub(crate) bytes: Word,
    pub(crate) direction: Word,
    pub(crate) cause: Word,
}

/// The whole file.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Layout {
    pub(crate) magic: Word,
    pub(crate) settings: SettingsWords,
    pub(crate) faults: FaultWords,
    /// Counts uses of memory: the order of "least recently used".
    pub(crate) clock: Word,
    /// End of the link's work, to the device and to the host, by the monotonic clock.
    pub(crate) link: [Word; 2],
    pub(crate) counters: CounterWords,
    pub(crate) slots: [SlotWords; SLOTS],
    /// Ever written; the last [`MOVES`] of them are there.
    pub(crate) moved: Word,
    pub(crate) moves: [MoveWords; MOVES],
}
