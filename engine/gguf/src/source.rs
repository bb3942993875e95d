//! Bytes of a file from front to back.

use crate::kind::Kind;
use std::str::Utf8Error;

/// Reason why a file is refused: the end of a sentence that begins with its name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Defect(pub String);

impl Defect {
    /// Defect of this reason.
    pub fn new(reason: impl Into<String>) -> Self {
        Self(reason.into())
    }

    /// Defect of a string that is no UTF-8.
    pub fn not_utf8(error: &Utf8Error, part: &dyn Fn() -> String) -> Self {
        Self(format!("holds bytes that are not UTF-8 in {}: {error}", part()))
    }
}

/// Name of a part of a file, made for messages only.
pub(crate) type Part<'a> = &'a dyn Fn() -> String;

/// Bytes of a file from front to back.
pub trait Source {
    /// Position, in bytes from the file's start.
    fn at(&self) -> u64;

    /// Bytes that are left.
    fn left(&self) -> u64;

    /// Takes the next bytes. `part`: their name, for the message.
    ///
    /// # Errors
    /// The file ends before, or its source gives no more.
    fn take(&mut self, length: u64, part: &dyn Fn() -> String) -> Result<&[u8], Defect>;

    /// Passes over the content of a string.
    ///
    /// # Errors
    /// The file ends before.
    fn pass_text(&mut self, length: u64, part: &dyn Fn() -> String) -> Result<(), Defect>;

    /// Passes over numbers or truth values.
    ///
    /// # Errors
    /// The file ends before.
    fn pass_numbers(&mut self, kind: Kind, count: u64, part: &dyn Fn() -> String) -> Result<(), Defect>;

    /// Defect of a file that ends within the next bytes.
    fn cut_short(&self, length: u64, part: &dyn Fn() -> String) -> Defect {
        let (at, left) = (self.at(), self.left());
        Defect(format!("is cut short: {} should have {length} bytes from byte {at} on, there are {left}", part()))
    }

    /// Takes a whole number of 32 bits.
    ///
    /// # Errors
    /// As of [`Source::take`].
    fn u32(&mut self, part: &dyn Fn() -> String) -> Result<u32, Defect> {
        Ok(self.take(4, part)?.try_into().map_or(0, u32::from_le_bytes))
    }

    /// Takes a whole number of 64 bits.
    ///
    /// # Errors
    /// As of [`Source::take`].
    fn u64(&mut self, part: &dyn Fn() -> String) -> Result<u64, Defect> {
        Ok(self.take(8, part)?.try_into().map_or(0, u64::from_le_bytes))
    }

    /// Takes a string of `longest` bytes at most: its length, then its content.
    ///
    /// # Errors
    /// As of [`Source::take`]; it is longer, or no UTF-8.
    fn text(&mut self, longest: u64, part: &dyn Fn() -> String) -> Result<String, Defect> {
        let length = self.u64(part)?;
        if length > self.left() {
            return Err(self.cut_short(length, part));
        }
        if length > longest {
            return Err(Defect(format!("has {length} bytes in {}, more than {longest}", part())));
        }
        let text = std::str::from_utf8(self.take(length, part)?).map(str::to_owned);
        text.map_err(|error| Defect::not_utf8(&error, part))
    }
}
