//! Connections that read: short, beside the writer, and never in its way.

use crate::error::JobError;
use crate::schema;
use rusqlite::Connection;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// Connections that are kept for the next read.
const KEPT: usize = 4;

/// Pool of connections.
#[derive(Debug, Clone)]
pub(crate) struct Readers {
    database: Arc<Path>,
    idle: Arc<Mutex<Vec<Connection>>>,
}

impl Readers {
    pub(crate) fn new(database: &Path) -> Self {
        Self { database: database.into(), idle: Arc::default() }
    }

    /// Reads in one statement or more, blocking for the disk.
    pub(crate) fn read<T>(&self, read: impl FnOnce(&Connection) -> Result<T, JobError>) -> Result<T, JobError> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let connection = idle.map_or_else(|| schema::open_reader(&self.database), Ok)?;
        let result = read(&connection);
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < KEPT {
            idle.push(connection);
        }
        result
    }

    /// Reads on a thread for blocking work.
    pub(crate) async fn read_async<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Connection) -> Result<T, JobError> + Send + 'static,
    ) -> Result<T, JobError> {
        let readers = self.clone();
        blocking(move || readers.read(read)).await
    }
}

/// Does work to its end, also if its caller is dropped.
pub(crate) async fn detached<T: Send + 'static>(
    work: impl Future<Output = Result<T, JobError>> + Send + 'static,
) -> Result<T, JobError> {
    tokio::spawn(work).await.unwrap_or(Err(JobError::Closed))
}

/// Runs blocking work of the store on a thread for it.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, JobError> + Send + 'static,
) -> Result<T, JobError> {
    tokio::task::spawn_blocking(work).await.unwrap_or(Err(JobError::Closed))
}
