//! Activations of a step, split into tiles among threads.

use super::kernel;
use super::tile::InputKind;
use crate::level::Level;
use crate::threads::Threads;
use omni_kernels::BackendError;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// Activations below which other threads are not worth waking.
const ALONE: usize = 16 << 10;

/// Activations of some rows, prepared for matrices with one kind of input. Its memory is reused.
#[derive(Debug)]
pub(crate) struct Input {
    level: Level,
    kind: InputKind,
    rows: usize,
    width: usize,
    /// Rows of a tile; the last may have fewer.
    height: usize,
    words: Vec<u32>,
}

impl Input {
    /// Nothing, for a level that the processor has, or that is tried in a process of its own.
    pub(crate) fn new(level: Level) -> Self {
        Self { level, kind: InputKind::F32, rows: 0, width: 0, height: 1, words: Vec::new() }
    }

    /// Bytes that so many rows of any kind take.
    pub(crate) fn bytes(rows: usize, width: usize) -> u64 {
        (rows * InputKind::F32.words(width) * size_of::<u32>()) as u64
    }

    /// Takes memory for so many rows of any kind.
    ///
    /// # Errors
    /// The memory is not to be had.
    pub(crate) fn reserve(&mut self, rows: usize, width: usize) -> Result<(), BackendError> {
        self.words.clear();
        let words = rows * InputKind::F32.words(width);
        self.words.try_reserve_exact(words).map_err(|error| BackendError::Memory {
            bytes: Self::bytes(rows, width),
            purpose: "activations",
            reason: error.to_string(),
        })
    }

    pub(super) fn level(&self) -> Level {
        self.level
    }

    pub(super) fn kind(&self) -> InputKind {
        self.kind
    }

    pub(super) fn width(&self) -> usize {
        self.width
    }

    pub(super) fn tiles(&self) -> usize {
        self.rows.div_ceil(self.height)
    }

    /// Rows of a tile and their words.
    pub(super) fn tile(&self, tile: usize) -> (Range<usize>, &[u32]) {
        let words = self.kind.words(self.width);
        let rows = tile * self.height..self.rows.min((tile + 1) * self.height);
        (rows.clone(), &self.words[rows.start * words..rows.end * words])
    }

    /// Prepares `rows` rows of `width` activations. Allocates nothing within what [`Input::reserve`] took.
    ///
    /// # Panics
    /// If `values` does not hold them.
    pub(crate) fn prepare(&mut self, kind: InputKind, values: &[f32], rows: usize, width: usize, threads: &Threads) {
        assert_eq!(values.len(), rows * width, "{rows} rows of {width} activations");
        (self.kind, self.rows, self.width) = (kind, rows, width);
        let words = kind.words(width);
        self.words.resize(rows * words, 0);
        // Tiles of like heights: a low one is slower for each of its rows.
        self.height = rows.max(1).div_ceil(rows.div_ceil(kind.most_rows(self.level)).max(1));
        let packer = kernel::packer(self.level, kind);
        let mut tiles = self.words.chunks_mut(self.height * words).zip(values.chunks(self.height * width));
        if rows * width <= ALONE {
            tiles.for_each(|(tile, values)| packer.pack(values, width, tile));
            return;
        }
        let tiles = Mutex::new(&mut tiles);
        threads.run(|_, _| {
            loop {
                let next = tiles.lock().unwrap_or_else(PoisonError::into_inner).next();
                let Some((tile, values)) = next else { break };
                packer.pack(values, width, tile);
            }
        });
    }
}
