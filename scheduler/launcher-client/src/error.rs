//! Errors of requests to the launcher, as status and answers show them.

/// A request that the launcher cannot be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LauncherError {
    /// The launcher is not connected, or its outbox is full.
    #[error("the launcher does not answer; nothing can be started until it is back")]
    Silent,
}

impl LauncherError {
    /// All errors.
    pub const ALL: [Self; 1] = [Self::Silent];
}
