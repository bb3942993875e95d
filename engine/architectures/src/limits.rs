//! Largest supported sizes. They keep products far from overflow and a description in bounds.

pub(crate) const HIDDEN: usize = 1 << 17;
pub(crate) const LAYERS: usize = 1 << 10;
pub(crate) const HEADS: usize = 1 << 10;
pub(crate) const HEAD_WIDTH: usize = 1 << 10;
pub(crate) const INTERMEDIATE: usize = 1 << 20;
pub(crate) const VOCABULARY: usize = 1 << 22;
pub(crate) const CONTEXT: usize = 1 << 27;
pub(crate) const EXPERTS: usize = 1 << 12;
/// Experts of all layers together: thrice as many as the largest models have, and some 40 MiB of description.
pub(crate) const ALL_EXPERTS: usize = 1 << 16;
