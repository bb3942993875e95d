//! Parts of the store that its handles share.

use crate::disk::{Disk, of_results};
use crate::error::{JobError, OpenError};
use crate::files::Folder;
use crate::id::{BatchId, FileId};
use crate::lifecycle::Interruption;
use crate::permits::Permits;
use crate::progress::Progress;
use crate::readers::{Readers, blocking};
use crate::results::ResultFiles;
use crate::schema;
use crate::table::{batches, files, items};
use crate::time::UnixMillis;
use crate::turns::Turns;
use crate::types::Limits;
use crate::writer::{Unit, Writer};
use nix::fcntl::{Flock, FlockArg};
use rusqlite::Connection;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{MutexGuard, PoisonError};
use tokio::sync::{Mutex, watch};

/// Store without its interface.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) writer: Writer,
    pub(crate) readers: Readers,
    pub(crate) folder: Folder,
    pub(crate) limits: Limits,
    pub(crate) disk: Disk,
    pub(crate) uploads: Permits,
    pub(crate) contents: Permits,
    /// Batches that wait for a model. Locked by the writer, and for moments.
    turns: std::sync::Mutex<Turns>,
    changes: watch::Sender<u64>,
    /// Locked by the caller that does what is due.
    pub(crate) progress: Mutex<Progress>,
}

impl Shared {
    pub(crate) fn open(dir: &Path, limits: Limits, now: UnixMillis) -> Result<Self, OpenError> {
        let failed = |action| {
            let path = dir.to_owned();
            move |source| OpenError::Folder { action, path, source }
        };
        let folder = Folder::create(dir).map_err(failed("create"))?;
        let lock = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(folder.lock());
        let lock = Flock::lock(lock.map_err(failed("write into"))?, FlockArg::LockExclusiveNonblock).map_err(
            |(_, errno)| match errno {
                nix::Error::EWOULDBLOCK => OpenError::InUse(dir.to_owned()),
                errno => failed("lock")(errno.into()),
            },
        )?;
        let connection = schema::open_writer(&folder.database())?;
        let unusable = |source| OpenError::Database { path: folder.database(), source };
        let mut results = ResultFiles::new(&folder);
        recover(&connection, &mut results, now).map_err(unusable)?;
        sweep(&connection, &folder).map_err(unusable)?;
        let used = used(&connection).map_err(|error| unusable(error.into()))?;
        let disk = Disk::new(used, limits.disk);
        let readers = Readers::new(&folder.database());
        let writer = Writer::start(connection, results, lock).map_err(failed("start a thread for"))?;
        let (turns, changes, progress) = (std::sync::Mutex::default(), watch::Sender::new(0), Mutex::default());
        let (uploads, contents) = (Permits::uploads(), Permits::contents());
        Ok(Self { writer, readers, folder, limits, disk, uploads, contents, turns, changes, progress })
    }

    /// Puts a file into the database by `insert`. One that is not in it after a failure is removed from the disk.
    pub(crate) async fn insert_file(
        &self,
        id: FileId,
        insert: impl FnOnce(&mut Unit<'_>) -> Result<(), JobError> + Send + 'static,
    ) -> Result<(), JobError> {
        let inserted = self.writer.submit(0, insert).await;
        if let Err(error) = &inserted {
            self.remove_unnamed(error, vec![id]).await;
        }
        inserted
    }

    /// Removes files that are not in the database after their commit failed. A store that is closed cannot say: the
    /// next start removes them then.
    pub(crate) async fn remove_unnamed(&self, error: &JobError, ids: Vec<FileId>) {
        if matches!(error, JobError::Closed) {
            return;
        }
        let (folder, readers) = (self.folder.clone(), self.readers.clone());
        let remove = move || {
            for id in ids {
                if !readers.read(|connection| Ok(files::exists(connection, id)?))? {
                    folder.remove_file(id).map_err(JobError::io("remove a file"))?;
                }
            }
            Ok(())
        };
        if let Err(error) = blocking(remove).await {
            tracing::error!(
                error = &error as &dyn std::error::Error,
                "a file of batch jobs is left until the next start"
            );
        }
    }

    pub(crate) fn turns(&self) -> MutexGuard<'_, Turns> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes whoever waits for work, or for something to be due.
    pub(crate) fn changed(&self) {
        self.changes.send_modify(|count| *count = count.wrapping_add(1));
    }

    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }
}

/// Ends the attempts that the previous process had in flight.
fn recover(connection: &Connection, results: &mut ResultFiles, now: UnixMillis) -> Result<(), JobError> {
    let transaction = connection.unchecked_transaction()?;
    for (item, attempt) in items::in_flight(connection)? {
        items::interrupt(&mut Unit { connection, results }, &item, attempt, Interruption::Lost, now)?;
    }
    results.write()?;
    Ok(transaction.commit()?)
}

/// Removes files without a row: those of a process that was killed between the file and its commit.
fn sweep(connection: &Connection, folder: &Folder) -> Result<(), JobError> {
    // A file is kept if the database cannot say.
    let is_file = |id| files::exists(connection, id).unwrap_or(true);
    let has_results = |id: BatchId| batches::has_results(connection, id).unwrap_or(true);
    folder.sweep(is_file, has_results).map_err(JobError::io("remove unfinished files"))
}

fn used(connection: &Connection) -> rusqlite::Result<u64> {
    let (results, reserved) = batches::all_bytes(connection)?;
    Ok(files::bytes(connection)?.saturating_add(of_results(results)).saturating_add(reserved))
}

/// Reads a part of a file whose place comes from the database.
pub(crate) fn read_at(file: &File, offset: u64, length: u64) -> Result<Vec<u8>, JobError> {
    let mut bytes = vec![0; usize::try_from(length).map_err(|_| JobError::Unknown("length"))?];
    file.read_exact_at(&mut bytes, offset).map_err(JobError::io("read a request or a result"))?;
    Ok(bytes)
}
