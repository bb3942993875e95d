//! Share of one owner in the store, and its bounds. A node without tokens has one nameless owner, whom only the
//! bounds of the node hold.

use crate::error::JobError;
use crate::types::Limits;
use rusqlite::Connection;

/// Share of an owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Held {
    files: u64,
    /// Bytes of files and results, counted as [`Limits::disk`] counts them.
    bytes: u64,
    /// Batches that have not ended.
    running: u64,
}

/// Reads the share of an owner.
pub(crate) fn held(connection: &Connection, owner: &str) -> rusqlite::Result<Held> {
    let sql = "SELECT count(*), coalesce(sum(bytes), 0),
                      (SELECT coalesce(sum(results_bytes), 0) FROM batches WHERE owner = ?1),
                      (SELECT count(*) FROM batches WHERE owner = ?1 AND ended IS NULL)
               FROM files WHERE owner = ?1";
    connection.prepare_cached(sql)?.query_row([owner], |row| {
        let (bytes, results): (u64, u64) = (row.get(1)?, row.get(2)?);
        Ok(Held { files: row.get(0)?, bytes: bytes.saturating_add(results.saturating_mul(2)), running: row.get(3)? })
    })
}

/// Refuses a further file of this size.
pub(crate) fn check_file(connection: &Connection, owner: &str, bytes: u64, limits: &Limits) -> Result<(), JobError> {
    if owner.is_empty() {
        return Ok(());
    }
    let held = held(connection, owner)?;
    if held.files >= limits.owner_files {
        return Err(JobError::OwnerBound("this token has too many files of batch jobs: delete some"));
    }
    if held.bytes.saturating_add(bytes) > limits.owner_disk {
        return Err(JobError::OWNER_DISK);
    }
    Ok(())
}

/// Bytes that an owner may have beside its files and results.
pub(crate) fn room(connection: &Connection, owner: &str, limits: &Limits) -> rusqlite::Result<u64> {
    if owner.is_empty() {
        return Ok(u64::MAX);
    }
    Ok(limits.owner_disk.saturating_sub(held(connection, owner)?.bytes))
}

/// Refuses a further batch.
pub(crate) fn check_batch(connection: &Connection, owner: &str, limits: &Limits) -> Result<(), JobError> {
    if !owner.is_empty() && held(connection, owner)?.running >= limits.owner_batches {
        return Err(JobError::OwnerBound("this token has too many batches that have not ended: wait for some"));
    }
    Ok(())
}

/// Returns whether there is room for results of an owner. Those of items in flight are taken in any case.
pub(crate) fn has_room(connection: &Connection, owner: &str, limits: &Limits) -> rusqlite::Result<bool> {
    Ok(owner.is_empty() || held(connection, owner)?.bytes < limits.owner_disk)
}
