//! Number of moves of an instance's memory, counted where they are ordered.

/// Number of moves of an instance's memory.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Moves {
    /// To the host.
    pub(super) evictions: u64,
    /// To the card.
    pub(super) restores: u64,
}
