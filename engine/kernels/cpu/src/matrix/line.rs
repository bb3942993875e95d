//! Memory of packed weights: lines of 64 bytes, aligned to the caches' lines and to the widest registers.
//!
//! Matrices lie one after the other, so that small ones share large pages.
#![allow(unsafe_code, reason = "matrices own disjoint parts of common pages")]

use crate::pages::{LARGE_PAGE, Pages};
use omni_kernels::BackendError;
use std::ptr::NonNull;
use std::sync::Arc;

/// Line of weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C, align(64))]
pub(crate) struct Line(pub(crate) [u8; 64]);

/// Bytes of pages for several matrices. They take memory as they are written.
const CHUNK: usize = 64 << 20;

/// Memory from which matrices take lines.
#[derive(Debug, Default)]
pub(super) struct LineMemory {
    pages: Option<Arc<Pages>>,
    /// Bytes of the pages before what is free.
    used: usize,
}

impl LineMemory {
    /// Takes so many lines, all zero. They go back to the system with all that share their pages.
    pub(super) fn take(&mut self, count: usize) -> Result<Lines, BackendError> {
        let bytes = count.saturating_mul(size_of::<Line>());
        let pages = match &self.pages {
            Some(pages) if pages.len() - self.used >= bytes => Arc::clone(pages),
            _ => {
                let pages = Arc::new(Pages::new(bytes.max(CHUNK).saturating_add(LARGE_PAGE), "weights")?);
                self.used = pages.start().as_ptr().align_offset(LARGE_PAGE);
                Arc::clone(self.pages.insert(pages))
            }
        };
        // SAFETY: there are as many bytes after those that are used.
        let start = unsafe { pages.start().add(self.used) }.cast();
        self.used += bytes;
        Ok(Lines { start, count, _pages: pages })
    }
}

/// Lines of a matrix.
#[derive(Debug)]
pub(super) struct Lines {
    start: NonNull<Line>,
    count: usize,
    _pages: Arc<Pages>,
}

// SAFETY: the lines are owned, as those of a Vec.
unsafe impl Send for Lines {}
// SAFETY: shared use is by & only, and writes need &mut.
unsafe impl Sync for Lines {}

impl Lines {
    pub(super) fn as_slice(&self) -> &[Line] {
        // SAFETY: the lines are within the pages, aligned as these are, initialised by the system, and nobody else's.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.count) }
    }

    pub(super) fn as_mut_slice(&mut self) -> &mut [Line] {
        // SAFETY: as above, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.count) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_disjoint_and_aligned_and_outlive_their_memory() {
        let mut memory = LineMemory::default();
        let counts = [1, 1000, 0, CHUNK / 64 - 1500, 700, 2 * CHUNK / 64, 5];
        let mut all: Vec<Lines> = counts.iter().map(|count| memory.take(*count).unwrap()).collect();
        drop(memory);
        let ends = |count: usize| (0..count).step_by(count.saturating_sub(1).max(1));
        for (value, (lines, count)) in all.iter_mut().zip(counts).enumerate() {
            assert_eq!((lines.as_slice().as_ptr() as usize % 64, lines.as_slice().len()), (0, count));
            for end in ends(count) {
                assert_eq!(lines.as_slice()[end], Line([0; 64]));
                lines.as_mut_slice()[end] = Line([value as u8 + 1; 64]);
            }
        }
        for (value, (lines, count)) in all.iter().zip(counts).enumerate() {
            assert!(ends(count).all(|end| lines.as_slice()[end] == Line([value as u8 + 1; 64])));
        }
    }
}
