//! Source of a file that is read in bounded pieces, at their positions.

use crate::kind::Kind;
use crate::source::{Defect, Source};
use std::cell::Cell;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;

/// Most bytes that are read of a file; what is passed over is not read. The metadata of large vocabularies have twenty
/// megabytes, of which the numbers are passed over.
pub const MOST_READ: u64 = 64 << 20;
/// Bytes of a read.
const PIECE: u64 = 64 << 10;

/// File that is read in bounded pieces, from a position on, whatever its offset is. One that is cut meanwhile is refused: it
/// is not mapped into memory.
#[derive(Debug)]
pub struct FileSource<'a> {
    file: &'a File,
    /// Bytes that may still be read, of all sources of the file.
    budget: &'a Cell<u64>,
    /// End of what is read.
    end: u64,
    at: u64,
    /// Bytes that were read, from `begin` on.
    buffer: Vec<u8>,
    begin: u64,
}

impl<'a> FileSource<'a> {
    /// Source of a whole file. `budget`: bytes that may be read of it.
    ///
    /// # Errors
    /// Its length is not known.
    pub fn new(file: &'a File, budget: &'a Cell<u64>) -> io::Result<Self> {
        let end = file.metadata()?.len();
        Ok(Self { file, budget, end, at: 0, buffer: Vec::new(), begin: 0 })
    }

    /// Source of the same file from another position on.
    #[must_use]
    pub fn from(&self, at: u64) -> Self {
        let at = at.min(self.end);
        Self { file: self.file, budget: self.budget, end: self.end, at, buffer: Vec::new(), begin: at }
    }

    /// Place of the next bytes in the buffer, if it has them all.
    fn buffered(&self, length: usize) -> Option<usize> {
        let start = usize::try_from(self.at.checked_sub(self.begin)?).ok()?;
        (start.checked_add(length)? <= self.buffer.len()).then_some(start)
    }

    /// Reads the next bytes into the buffer, and as many more as a piece has.
    fn fill(&mut self, length: u64, part: &dyn Fn() -> String) -> Result<(), Defect> {
        let wanted = length.max(PIECE).min(self.left());
        let Some(left) = self.budget.get().checked_sub(wanted) else {
            return Err(Defect(format!(
                "has metadata beyond any model's: more than {MOST_READ} bytes up to {}",
                part()
            )));
        };
        self.budget.set(left);
        let size = usize::try_from(wanted).map_err(|_| self.cut_short(length, part))?;
        self.buffer.clear();
        self.buffer.resize(size, 0);
        self.begin = self.at;
        self.file.read_exact_at(&mut self.buffer, self.at).map_err(|error| {
            self.buffer.clear();
            if error.kind() == ErrorKind::UnexpectedEof {
                Defect(format!("has been cut while it was read: {} is not there any more", part()))
            } else {
                Defect(format!("cannot be read at {}: {error}", part()))
            }
        })
    }

    fn pass(&mut self, length: Option<u64>, part: &dyn Fn() -> String) -> Result<(), Defect> {
        let Some(length) = length.filter(|length| *length <= self.left()) else {
            return Err(self.cut_short(length.unwrap_or(u64::MAX), part));
        };
        self.at += length;
        Ok(())
    }
}

impl Source for FileSource<'_> {
    fn at(&self) -> u64 {
        self.at
    }

    fn left(&self) -> u64 {
        self.end - self.at
    }

    fn take(&mut self, length: u64, part: &dyn Fn() -> String) -> Result<&[u8], Defect> {
        let Some(size) = usize::try_from(length).ok().filter(|_| length <= self.left()) else {
            return Err(self.cut_short(length, part));
        };
        let start = match self.buffered(size) {
            Some(start) => start,
            None => {
                self.fill(length, part)?;
                0
            }
        };
        self.at += length;
        Ok(self.buffer.get(start..start + size).unwrap_or_default())
    }

    fn pass_text(&mut self, length: u64, part: &dyn Fn() -> String) -> Result<(), Defect> {
        self.pass(Some(length), part)
    }

    fn pass_numbers(&mut self, kind: Kind, count: u64, part: &dyn Fn() -> String) -> Result<(), Defect> {
        self.pass(count.checked_mul(kind.size().unwrap_or(1)), part)
    }
}
