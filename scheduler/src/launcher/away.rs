//! Why the launcher cannot be asked, in the words that status and answers give.

/// The launcher cannot be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Away {
    /// For anything.
    #[error("the launcher does not answer; nothing can be started until it is back")]
    Silent,
}

impl Away {
    /// All reasons.
    pub const ALL: [Self; 1] = [Self::Silent];
}
