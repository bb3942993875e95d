//! Unpacked rows of quantised matrices.

use crate::blocks::{Sink, Unpacked};

/// Unpacked row of a quantised matrix: `value = scale * quant + offset` with the group's scale and offset.
#[derive(Debug, Clone, Default)]
pub struct GroupedRow {
    /// Integer of each column.
    pub quants: Vec<u8>,
    /// Scale of each group.
    pub scales: Vec<f32>,
    /// Offset of each group, `-scale * zero`, for symmetric forms too.
    pub offsets: Vec<f32>,
}

impl Sink for GroupedRow {
    fn block<const VALUES: usize, const GROUPS: usize>(&mut self, block: &Unpacked<VALUES, GROUPS>) {
        self.quants.extend_from_slice(&block.quants);
        self.scales.extend_from_slice(&block.scales);
        self.offsets.extend_from_slice(&block.offsets);
    }
}
