//! Bounded reading of a GGUF file in memory from front to back.

use crate::error::Defect;
use omni_gguf::{Defect as Reason, Kind, Source};
use std::str;

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
    pub(super) fn position(&self) -> usize {
        self.at
    }

    /// Bytes that are left.
    pub(super) fn rest(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// Takes the next bytes, which stay where they are.
    fn piece(&mut self, length: u64, part: &dyn Fn() -> String) -> Result<&'a [u8], Reason> {
        let taken = usize::try_from(length).ok().and_then(|length| self.bytes[self.at..].get(..length));
        let Some(taken) = taken else { return Err(self.cut_short(length, part)) };
        self.at += taken.len();
        Ok(taken)
    }

    /// Takes a string: its length, then its bytes.
    pub(super) fn string(&mut self, part: &dyn Fn() -> String) -> Result<&'a str, Defect> {
        let length = self.u64(part)?;
        Ok(checked(self.piece(length, part)?, part)?)
    }
}

impl Source for Cursor<'_> {
    fn at(&self) -> u64 {
        self.at as u64
    }

    fn left(&self) -> u64 {
        self.rest() as u64
    }

    fn take(&mut self, length: u64, part: &dyn Fn() -> String) -> Result<&[u8], Reason> {
        self.piece(length, part)
    }

    fn pass_text(&mut self, length: u64, part: &dyn Fn() -> String) -> Result<(), Reason> {
        checked(self.piece(length, part)?, part).map(drop)
    }

    fn pass_numbers(&mut self, kind: Kind, count: u64, part: &dyn Fn() -> String) -> Result<(), Reason> {
        // A product that does not fit is beyond the file, as is the greatest number.
        let bytes = self.piece(count.saturating_mul(kind.size().unwrap_or(1)), part)?;
        if kind == Kind::Bool && bytes.iter().any(|byte| *byte > 1) {
            return Err(Reason(format!("holds a byte that is neither true nor false in {}", part())));
        }
        Ok(())
    }
}

fn checked<'a>(bytes: &'a [u8], part: &dyn Fn() -> String) -> Result<&'a str, Reason> {
    str::from_utf8(bytes).map_err(|error| Reason::not_utf8(&error, part))
}
