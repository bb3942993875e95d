//! Why the launcher cannot be asked, in the words that status and answers give.

/// The launcher cannot be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Away {
    /// For anything.
    #[error("the launcher does not answer; nothing can be started until it is back")]
    Silent,
    /// For this: it would install what it must not.
    #[error(
        "the launcher is of an earlier release, which does not heed `require-hashes` in [python] of omni.toml: replace it \
         (SIGUSR2, or `systemctl reload omni`)"
    )]
    Older,
    /// For this: the model would find no weights.
    #[error(
        "the launcher is of an earlier release, which does not know `source` in [weights] of omni.toml: replace it \
         (SIGUSR2, or `systemctl reload omni`)"
    )]
    NoWeights,
}

impl Away {
    /// All reasons.
    pub const ALL: [Self; 3] = [Self::Silent, Self::Older, Self::NoWeights];
}
