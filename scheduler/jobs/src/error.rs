//! Failures of the store. No message contains a path: some are shown to clients.

use rusqlite::ErrorCode;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

/// A call that did not take effect.
#[derive(Debug, Clone, thiserror::Error)]
pub enum JobError {
    /// No such file for the caller.
    #[error("there is no such file")]
    NoFile,
    /// No such batch for the caller.
    #[error("there is no such batch")]
    NoBatch,
    /// The batch has ended.
    #[error("the batch has ended as {0}, and cannot be cancelled")]
    Ended(&'static str),
    /// The file is not what a batch can be made from.
    #[error("the file was not uploaded for batches")]
    Purpose,
    /// A size beyond its bound.
    #[error("{what} has more than {bound} bytes")]
    TooLarge {
        /// Upload, line or result.
        what: &'static str,
        /// Most bytes.
        bound: u64,
    },
    /// A number of requests beyond its bound, or none.
    #[error("a batch has 1 to {0} requests")]
    Requests(u32),
    /// The store's part of the disk is used up.
    #[error("the node's space for batch jobs is used up: wait until files expire, or delete some")]
    DiskBound,
    /// Share of one owner that is used up, in words for its client.
    #[error("{0}")]
    OwnerBound(&'static str),
    /// More at a time than one owner may have, in words for its client.
    #[error("{0}")]
    OwnerBusy(&'static str),
    /// The store is closing.
    #[error("the store of batch jobs is closed")]
    Closed,
    /// The disk failed, or is full.
    #[error("cannot {action}")]
    Io {
        /// Step that failed.
        action: &'static str,
        /// Cause.
        source: Arc<io::Error>,
    },
    /// The database failed.
    #[error("the database of batch jobs failed")]
    Database(#[source] Arc<rusqlite::Error>),
    /// A stored value that this program never writes.
    #[error("the database of batch jobs has an unknown {0}")]
    Unknown(&'static str),
}

impl JobError {
    pub(crate) const OWNER_DISK: Self = Self::OwnerBound(
        "this token's part of the node's space for batch jobs is used up: delete files, or wait until they expire",
    );

    pub(crate) fn io(action: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { action, source: Arc::new(source) }
    }

    /// Returns true if the same call may take effect later: the disk is full or has failed, or the database is locked.
    #[must_use]
    pub fn is_passing(&self) -> bool {
        match self {
            Self::Io { .. } | Self::DiskBound => true,
            Self::Database(error) => matches!(
                error.sqlite_error_code(),
                Some(
                    ErrorCode::DatabaseBusy
                        | ErrorCode::DatabaseLocked
                        | ErrorCode::DiskFull
                        | ErrorCode::SystemIoFailure
                )
            ),
            _ => false,
        }
    }
}

impl From<rusqlite::Error> for JobError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Database(Arc::new(error))
    }
}

impl OpenError {
    /// Returns true if the same call may take effect later: the disk is full or has failed, or the database is locked.
    #[must_use]
    pub fn is_passing(&self) -> bool {
        match self {
            Self::Folder { source, .. } => {
                matches!(source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
            }
            Self::Database { source, .. } => source.is_passing(),
            Self::InUse(_) | Self::Newer { .. } => false,
        }
    }
}

/// The store cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The folder cannot be used.
    #[error("cannot {action} {}: batch jobs need a folder that belongs to the node's user", path.display())]
    Folder {
        /// Step that failed.
        action: &'static str,
        /// File or folder.
        path: PathBuf,
        /// Cause.
        source: io::Error,
    },
    /// Another process has it open.
    #[error("{} is in use by another process", .0.display())]
    InUse(PathBuf),
    /// A later program wrote it.
    #[error("{} has schema {found}, and this program reads up to {known}", path.display())]
    Newer {
        /// Database.
        path: PathBuf,
        /// Schema of the database.
        found: u32,
        /// Newest schema of this program.
        known: u32,
    },
    /// The database cannot be read.
    #[error("cannot open {}", path.display())]
    Database {
        /// Database.
        path: PathBuf,
        /// Cause.
        source: JobError,
    },
}
