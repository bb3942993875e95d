//! Products of one input with some matrices, split among threads.
#![allow(unsafe_code, reason = "threads write different columns of the same rows; kernels need their instructions")]

use super::form::PANEL;
use super::tile::{TILE_ROWS, Tile};
use super::{Input, PackedMatrix};
use crate::shared::Shared;
use crate::threads::Threads;
use std::ops::Range;

/// Product with a matrix, and where it goes.
pub(crate) struct Product<'a> {
    matrix: &'a PackedMatrix,
    out: Shared<'a, f32>,
    stride: usize,
}

impl<'a> Product<'a> {
    /// Product whose row `r` goes to `out[r * stride..][..matrix.outputs()]`. Other elements of `out` keep their
    /// values.
    pub(crate) fn new(matrix: &'a PackedMatrix, out: &'a mut [f32], stride: usize) -> Self {
        Self { matrix, out: Shared::new(out), stride }
    }

    /// Writes a row of a panel, without what the last panel has beyond the outputs.
    ///
    /// # Safety
    /// No other thread writes this row of this panel.
    unsafe fn write(&self, row: usize, panel: usize, sums: &[f32; PANEL], factor: f32) {
        let column = panel * PANEL;
        let first = row * self.stride + column;
        // SAFETY: rows do not overlap, as the stride is at least the number of outputs; nobody else writes this part.
        let out = unsafe { self.out.write(first..first + PANEL.min(self.matrix.outputs - column)) };
        for (out, sum) in out.iter_mut().zip(sums) {
            *out = sum * factor;
        }
    }

    /// Computes a range of the products of a panel with a tile, of which those of the first panel come first.
    ///
    /// # Safety
    /// No other thread computes any of the range.
    unsafe fn compute(&self, input: &Input, range: Range<usize>) {
        let tiles = input.tiles();
        let mut sums: Tile = [[0.0; PANEL]; TILE_ROWS];
        for item in range {
            let (panel, tile) = (item / tiles, item % tiles);
            let (rows, values) = input.tile(tile);
            // SAFETY: a packer has a level only that the processor has, or that is tried in a process of its own.
            unsafe { (self.matrix.kernel)(self.matrix.panel(panel), values, rows.len(), &mut sums) };
            for (row, sums) in rows.zip(&sums) {
                // SAFETY: no other thread computes this panel and tile.
                unsafe { self.write(row, panel, sums, self.matrix.factor(panel)) };
            }
        }
    }
}

/// Computes all rows of an input times each matrix. All matrices have the input's width and kind.
///
/// # Panics
/// If a matrix does not fit the input, or an output does not hold the rows.
pub(crate) fn multiply(threads: &Threads, input: &Input, products: &mut [Product<'_>]) {
    let mut items = 0;
    for product in &*products {
        let matrix = product.matrix;
        assert_eq!((matrix.inputs, matrix.input_kind()), (input.width(), input.kind()), "input of a matrix");
        assert_eq!(matrix.level, input.level(), "level of a matrix");
        assert!(product.stride >= matrix.outputs, "rows of an output overlap");
        items += matrix.panels() * input.tiles();
    }
    let products = &*products;
    threads.run(|part, parts| {
        let (mut first, end) = (items * part / parts, items * (part + 1) / parts);
        let mut before = 0;
        for product in products {
            let items = product.matrix.panels() * input.tiles();
            let last = end.min(before + items);
            if first < last {
                // SAFETY: parts have ranges without common items.
                unsafe { product.compute(input, first - before..last - before) };
                first = last;
            }
            before += items;
        }
    });
}
