//! Bounded reading of a GGUF file from front to back.

use crate::error::Defect;

/// Position in a file.
pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// Position, in bytes from the file's start.
    pub(super) fn at(&self) -> usize {
        self.at
    }

    /// Bytes that are left.
    pub(super) fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// Takes the next bytes. `part` is what they are, for the message.
    pub(super) fn take(&mut self, length: u64, part: &dyn Fn() -> String) -> Result<&'a [u8], Defect> {
        let taken = usize::try_from(length).ok().and_then(|length| self.bytes[self.at..].get(..length));
        let Some(taken) = taken else {
            let (at, left) = (self.at, self.left());
            let reason =
                format!("is cut short: {} should have {length} bytes from byte {at} on, there are {left}", part());
            return Err(Defect::file(reason));
        };
        self.at += taken.len();
        Ok(taken)
    }

    pub(super) fn u32(&mut self, part: &dyn Fn() -> String) -> Result<u32, Defect> {
        let bytes = self.take(4, part)?;
        Ok(bytes.try_into().map_or(0, u32::from_le_bytes))
    }

    pub(super) fn u64(&mut self, part: &dyn Fn() -> String) -> Result<u64, Defect> {
        let bytes = self.take(8, part)?;
        Ok(bytes.try_into().map_or(0, u64::from_le_bytes))
    }

    /// Takes a string: its length, then its bytes.
    pub(super) fn string(&mut self, part: &dyn Fn() -> String) -> Result<&'a str, Defect> {
        let length = self.u64(part)?;
        let bytes = self.take(length, part)?;
        std::str::from_utf8(bytes)
            .map_err(|error| Defect::file(format!("holds bytes that are not UTF-8 in {}: {error}", part())))
    }
}
