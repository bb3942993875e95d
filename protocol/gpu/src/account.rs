//! Accounting file of one instance: a header and one slot for each process that has GPU memory.
//!
//! The shims map it and change their own slot, and the header under the lock that is in it; the worker reads it as
//! bytes and trusts nothing in it. A slot belongs to the process with its pid and start time (field 22 of
//! `/proc/<pid>/stat`; both as seen inside the sandbox) since the exec named by `exec_id` (the kernel's 16 random bytes
//! of `AT_RANDOM`, the first eight): the same pid with another `exec_id` has lost its memory by executing another
//! program, the same `exec_id` twice is a second copy of the shim in one process (`dlmopen`). A slot whose process is
//! gone counts for nothing, whatever it contains; the next shim that needs room clears it.

/// First eight bytes of a file that is set up.
pub const MAGIC: u64 = u64::from_le_bytes(*b"omnigpu2");
/// Bytes of the header.
pub const HEADER_BYTES: usize = 4096;
/// Most processes of one instance that can have GPU memory at a time.
pub const SLOTS: usize = 256;
/// Bytes of one slot.
pub const SLOT_BYTES: usize = 128;
/// Bytes of the whole file.
pub const FILE_BYTES: usize = HEADER_BYTES + SLOTS * SLOT_BYTES;

/// Header, at the beginning of the file.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Header {
    /// [`MAGIC`], written last when the file is set up (under `flock`).
    pub magic: u64,
    /// Slots from this one on were never used.
    pub used_slots: u64,
    /// Robust, process-shared `pthread_mutex_t`, used by the shims only.
    pub lock: [u64; 8],
    /// Upper bound of the sum over all slots that counts for the limit. Used by the shims only.
    pub at_most: u64,
    /// [`Settings`], written before the first shim reads them: by the worker, or without one by the shim that sets the
    /// file up.
    pub settings: [u64; 2],
}

/// Memory given for requests of device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Managed memory, which can be moved, where the device supports that.
    Unified,
    /// Device memory, as requested.
    Device,
}

/// Settings of an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Bytes over all processes; `None`: no limit.
    pub limit: Option<u64>,
    /// Memory given for requests of device memory.
    pub mode: Mode,
}

impl Settings {
    /// Words of the header: the kind, and the limit.
    #[must_use]
    pub fn to_words(self) -> [u64; 2] {
        let kind = match (self.limit, self.mode) {
            (None, Mode::Device) => 1,
            (None, Mode::Unified) => 2,
            (Some(_), Mode::Device) => 3,
            (Some(_), Mode::Unified) => 4,
        };
        [kind, self.limit.unwrap_or(0)]
    }

    /// Reads the words of a header; `None` where none were written. An unknown kind means a limit of 0 bytes.
    #[must_use]
    pub fn from_words([kind, limit]: [u64; 2]) -> Option<Self> {
        match kind {
            0 => None,
            1 => Some(Self { limit: None, mode: Mode::Device }),
            2 => Some(Self { limit: None, mode: Mode::Unified }),
            3 => Some(Self { limit: Some(limit), mode: Mode::Device }),
            4 => Some(Self { limit: Some(limit), mode: Mode::Unified }),
            _ => Some(Self { limit: Some(0), mode: Mode::Device }),
        }
    }

    /// Offset in the header.
    pub const AT: usize = std::mem::offset_of!(Header, settings);

    /// Bytes to write at that offset.
    #[must_use]
    pub fn to_bytes(self) -> [u8; 16] {
        let [kind, limit] = self.to_words().map(u64::to_le_bytes);
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&kind);
        bytes[8..].copy_from_slice(&limit);
        bytes
    }
}

/// Memory of one process, in bytes.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Slot {
    /// Process id inside the sandbox; 0: a free slot.
    pub pid: u32,
    /// Always 0.
    pub reserved: u32,
    /// Start time in clock ticks since boot.
    pub start_time: u64,
    /// Identity of the program that the process executes.
    pub exec_id: u64,
    /// Managed memory: it can be moved. Counts for the limit.
    pub managed: u64,
    /// Part of `managed` that is not meant to be on the device now: a new allocation is, until it is moved.
    pub away: u64,
    /// Device memory that cannot be moved: VMM handles, arrays, pools, memory nodes. Counts for the limit.
    pub device: u64,
    /// Pinned host memory: counted, not limited.
    pub host: u64,
}

/// Sums over the slots of an instance.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Use {
    /// See [`Slot::managed`].
    pub managed: u64,
    /// Part of `managed` that is meant to be on the device now.
    pub resident: u64,
    /// See [`Slot::device`].
    pub device: u64,
    /// See [`Slot::host`].
    pub host: u64,
}

impl Use {
    /// Bytes that count for the limit.
    #[must_use]
    pub fn limited(&self) -> u64 {
        self.managed.saturating_add(self.device)
    }
}

const _: () = assert!(size_of::<Header>() <= HEADER_BYTES && size_of::<Slot>() <= SLOT_BYTES);

/// Slots in the bytes of a file. Nothing in it is trusted: a short file has fewer slots, sums saturate.
pub fn slots(file: &[u8]) -> impl Iterator<Item = Slot> + '_ {
    let body = file.get(HEADER_BYTES..).unwrap_or_default();
    let is_set_up = file.first_chunk::<8>().is_some_and(|magic| u64::from_le_bytes(*magic) == MAGIC);
    body.chunks_exact(SLOT_BYTES).take(if is_set_up { SLOTS } else { 0 }).map(slot).filter(|slot| slot.pid != 0)
}

/// Sums the slots whose process is alive, which the caller decides.
pub fn sum(file: &[u8], is_alive: impl Fn(&Slot) -> bool) -> Use {
    slots(file).filter(is_alive).fold(Use::default(), |sum, slot| Use {
        managed: sum.managed.saturating_add(slot.managed),
        resident: sum.resident.saturating_add(slot.managed.saturating_sub(slot.away)),
        device: sum.device.saturating_add(slot.device),
        host: sum.host.saturating_add(slot.host),
    })
}

fn slot(bytes: &[u8]) -> Slot {
    let word =
        |at: usize| bytes.get(at..at + 8).and_then(|word| word.first_chunk().copied()).map_or(0, u64::from_le_bytes);
    let [low, high] = [word(0) & 0xffff_ffff, word(0) >> 32].map(|half| u32::try_from(half).unwrap_or(0));
    Slot {
        pid: low,
        reserved: high,
        start_time: word(8),
        exec_id: word(16),
        managed: word(24),
        away: word(32),
        device: word(40),
        host: word(48),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(slots: &[[u64; 7]]) -> Vec<u8> {
        let mut file = vec![0; FILE_BYTES];
        file[..8].copy_from_slice(&MAGIC.to_le_bytes());
        for (number, words) in slots.iter().enumerate() {
            for (place, word) in words.iter().enumerate() {
                let at = HEADER_BYTES + number * SLOT_BYTES + place * 8;
                file[at..at + 8].copy_from_slice(&word.to_le_bytes());
            }
        }
        file
    }

    #[test]
    fn slots_of_living_processes_are_summed_and_others_are_not() {
        let file = file(&[[7, 1, 2, 100, 40, 10, 1], [0, 1, 2, 9, 9, 9, 9], [8, 1, 2, 1000, 400, 100, 10]]);
        assert_eq!(sum(&file, |_| true), Use { managed: 1100, resident: 660, device: 110, host: 11 });
        assert_eq!(sum(&file, |slot| slot.pid == 7), Use { managed: 100, resident: 60, device: 10, host: 1 });
        assert_eq!(sum(&file, |_| true).limited(), 1210);
        assert_eq!(slots(&file).map(|slot| (slot.pid, slot.start_time, slot.exec_id)).next(), Some((7, 1, 2)));
    }

    #[test]
    fn no_content_of_the_file_is_trusted() {
        for bytes in [0, 1, 8, HEADER_BYTES, HEADER_BYTES + 1, HEADER_BYTES + SLOT_BYTES - 1] {
            assert_eq!(sum(&file(&[[7, 1, 2, 3, 4, 5, 6]])[..bytes], |_| true), Use::default());
        }
        let full = u64::MAX;
        let wild = file(&[[full, 0, 0, full, full, full, full], [full, 0, 0, full, full, full, full]]);
        assert_eq!(sum(&wild, |_| true).limited(), full);
        assert_eq!(sum(&file(&[[7, 0, 0, 5, 9, 0, 0]]), |_| true).resident, 0, "never less than nothing");
        let mut unset = file(&[[7, 1, 2, 3, 4, 5, 6]]);
        unset[0] = 0;
        assert_eq!(sum(&unset, |_| true), Use::default());
    }

    #[test]
    fn settings_survive_a_round_trip_and_unknown_ones_allow_nothing() {
        for (limit, mode) in
            [(None, Mode::Device), (None, Mode::Unified), (Some(0), Mode::Device), (Some(u64::MAX), Mode::Unified)]
        {
            let settings = Settings { limit, mode };
            assert_eq!(Settings::from_words(settings.to_words()), Some(settings));
        }
        assert_eq!(Settings::from_words([0, 7]), None);
        assert_eq!(Settings::from_words([5, 7]).and_then(|settings| settings.limit), Some(0));
        let bytes = Settings { limit: Some(0x0102), mode: Mode::Unified }.to_bytes();
        assert_eq!((bytes, Settings::AT), ([4, 0, 0, 0, 0, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0], 88));
    }

    #[test]
    fn the_layout_is_the_same_on_both_sides() {
        let slot = Slot { pid: 1, reserved: 0, start_time: 2, exec_id: 3, managed: 4, away: 5, device: 6, host: 7 };
        assert_eq!(slots(&file(&[[1, 2, 3, 4, 5, 6, 7]])).next(), Some(slot));
        let offset = std::mem::offset_of!(Slot, host);
        assert_eq!((offset, std::mem::offset_of!(Header, lock), std::mem::offset_of!(Header, at_most)), (48, 16, 80));
    }
}
