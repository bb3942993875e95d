//! Progress of a copy that is made in a thread of its own, which must not be waited for.

use crate::SnapshotError;
use std::os::fd::BorrowedFd;

/// Hears that a copy goes on.
pub trait Progress: Sync {
    /// Another directory, file, or part of a file comes next.
    ///
    /// # Errors
    /// The copy is to end here, with this.
    fn step(&self) -> Result<(), SnapshotError>;
}

/// A copy that is waited for.
impl Progress for () {
    fn step(&self) -> Result<(), SnapshotError> {
        Ok(())
    }
}

/// A model's directory that is read.
#[derive(Clone, Copy)]
pub(crate) struct Source<'a> {
    pub(crate) root: BorrowedFd<'a>,
    pub(crate) progress: &'a dyn Progress,
}
