//! The texts of the files that are open now, by file handle.
//!
//! Called by `filesystem` only. Bounded: whoever opens and never closes takes from his own share alone, for each mounted
//! file has its own table, and in that each [`Owner`] its own count. A closed handle's buffer is used again by the next
//! open.

/// Who shares a bound: the processes that are shown the same memory.
pub(crate) type Owner = u64;

/// The most files that one model instance may have open at once; the next `open` fails with `ENFILE`.
///
/// A reader holds its file for microseconds, so this is far above what a model with hundreds of processes needs, and
/// bounds the memory on our side to about 256 KiB.
pub const OPEN_FILES_MAX: usize = 256;

#[derive(Default)]
pub(crate) struct Snapshots {
    slots: Vec<Slot>,
}

#[derive(Default)]
struct Slot {
    text: Vec<u8>,
    /// While it is open.
    owner: Option<Owner>,
}

impl Snapshots {
    /// Keeps the text that `write` appends and gives its handle, or `None` if its owner has too many open.
    pub(crate) fn open(&mut self, owner: Owner, write: impl FnOnce(&mut Vec<u8>)) -> Option<u64> {
        if self.slots.iter().filter(|slot| slot.owner == Some(owner)).count() >= OPEN_FILES_MAX {
            return None;
        }
        let index = self.slots.iter().position(|slot| slot.owner.is_none()).unwrap_or_else(|| {
            self.slots.push(Slot::default());
            self.slots.len() - 1
        });
        let slot = &mut self.slots[index];
        slot.owner = Some(owner);
        slot.text.clear();
        write(&mut slot.text);
        Some(index as u64)
    }

    /// At most `size` bytes from `offset` on: empty at the end and past it, `None` for a handle that is not open.
    pub(crate) fn read(&self, handle: u64, offset: u64, size: u32) -> Option<&[u8]> {
        let slot = self.slots.get(usize::try_from(handle).ok()?).filter(|slot| slot.owner.is_some())?;
        let rest = usize::try_from(offset).ok().and_then(|offset| slot.text.get(offset..)).unwrap_or_default();
        Some(&rest[..rest.len().min(size as usize)])
    }

    /// Forgets the handle's text. Nothing happens for one that is not open.
    pub(crate) fn release(&mut self, handle: u64) {
        if let Some(slot) = usize::try_from(handle).ok().and_then(|index| self.slots.get_mut(index)) {
            slot.owner = None;
        }
    }
}

#[cfg(test)]
mod tests;
