//! Texts of the open files, by file handle.
//!
//! Bounded: a reader that opens and never closes uses up its own share alone, for each mounted file has its own table,
//! and in that each [`Owner`] its own count. A closed handle's buffer is reused by the next open.

use std::sync::Arc;

/// Group of processes that share a bound: all that are shown the same memory.
pub(crate) type Owner = u64;

/// Most files that one model instance may have open at once; the next `open` fails with `ENFILE`.
///
/// A reader holds its file for microseconds, so this is far above the need of a model with hundreds of processes, and
/// bounds the server's memory to about 1 KiB each, and 40 bytes more for each processor shown.
pub const OPEN_FILES_MAX: usize = 256;

#[derive(Default)]
pub(crate) struct Snapshots {
    slots: Vec<Slot>,
}

#[derive(Default)]
struct Slot {
    text: Text,
    /// Set while the file is open.
    owner: Option<Owner>,
}

/// Text of an open file.
#[derive(Default)]
pub(crate) struct Text {
    own: Vec<u8>,
    /// Text that is the same for all, in place of its own.
    shared: Option<Arc<[u8]>>,
}

impl Text {
    /// Empty buffer of its own, to be written.
    pub(crate) fn fresh(&mut self) -> &mut Vec<u8> {
        self.shared = None;
        self.own.clear();
        &mut self.own
    }

    pub(crate) fn share(&mut self, text: Arc<[u8]>) {
        self.shared = Some(text);
    }

    fn bytes(&self) -> &[u8] {
        self.shared.as_deref().unwrap_or(&self.own)
    }
}

impl Snapshots {
    /// Keeps the text that `write` makes and returns its handle, or `None` if its owner has too many open.
    ///
    /// # Errors
    /// Error of `write`; nothing is kept then.
    pub(crate) fn open<E>(
        &mut self,
        owner: Owner,
        write: impl FnOnce(&mut Text) -> Result<(), E>,
    ) -> Result<Option<u64>, E> {
        if self.slots.iter().filter(|slot| slot.owner == Some(owner)).count() >= OPEN_FILES_MAX {
            return Ok(None);
        }
        let index = self.slots.iter().position(|slot| slot.owner.is_none()).unwrap_or_else(|| {
            self.slots.push(Slot::default());
            self.slots.len() - 1
        });
        let slot = &mut self.slots[index];
        write(&mut slot.text)?;
        slot.owner = Some(owner);
        Ok(Some(index as u64))
    }

    /// At most `size` bytes from `offset` on: empty at the end and past it, `None` for a handle that is not open.
    pub(crate) fn read(&self, handle: u64, offset: u64, size: u32) -> Option<&[u8]> {
        let slot = self.slots.get(usize::try_from(handle).ok()?).filter(|slot| slot.owner.is_some())?;
        let rest = usize::try_from(offset).ok().and_then(|offset| slot.text.bytes().get(offset..)).unwrap_or_default();
        Some(&rest[..rest.len().min(size as usize)])
    }

    /// Forgets the handle's text. Does nothing for a handle that is not open.
    pub(crate) fn release(&mut self, handle: u64) {
        if let Some(slot) = usize::try_from(handle).ok().and_then(|index| self.slots.get_mut(index)) {
            slot.owner = None;
        }
    }
}

#[cfg(test)]
mod tests;
