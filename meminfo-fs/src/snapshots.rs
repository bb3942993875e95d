//! The texts of the files that are open now, by file handle.
//!
//! Called by `filesystem` only. Bounded: whoever opens and never closes takes from his own file's share alone, for each
//! mounted file has its own table. A closed handle's buffer is used again by the next open.

/// The most files that may be open at once in one mounted file; the next `open` fails with `ENFILE`.
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
    open: bool,
}

impl Snapshots {
    /// Keeps the text that `write` appends and gives its handle, or `None` if too many are open.
    pub(crate) fn open(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> Option<u64> {
        let index = match self.slots.iter().position(|slot| !slot.open) {
            Some(index) => index,
            None if self.slots.len() < OPEN_FILES_MAX => {
                self.slots.push(Slot::default());
                self.slots.len() - 1
            }
            None => return None,
        };
        let slot = &mut self.slots[index];
        slot.open = true;
        slot.text.clear();
        write(&mut slot.text);
        Some(index as u64)
    }

    /// At most `size` bytes from `offset` on: empty at the end and past it, `None` for a handle that is not open.
    pub(crate) fn read(&self, handle: u64, offset: u64, size: u32) -> Option<&[u8]> {
        let slot = self.slots.get(usize::try_from(handle).ok()?).filter(|slot| slot.open)?;
        let rest = usize::try_from(offset).ok().and_then(|offset| slot.text.get(offset..)).unwrap_or_default();
        Some(&rest[..rest.len().min(size as usize)])
    }

    /// Forgets the handle's text. Nothing happens for one that is not open.
    pub(crate) fn release(&mut self, handle: u64) {
        if let Some(slot) = usize::try_from(handle).ok().and_then(|index| self.slots.get_mut(index)) {
            slot.open = false;
        }
    }
}

#[cfg(test)]
mod tests;
