//! Share of one owner in the store, and its bounds. A node without tokens has one nameless owner, whose bytes
//! only the bound of the node holds.

use crate::disk::of_results;
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
    /// All batches.
    kept: u64,
}

/// Factor of the numbers of files and batches of the nameless owner.
const NAMELESS: u64 = 10;

fn number(owner: &str, of_owner: u64) -> u64 {
    if owner.is_empty() { of_owner.saturating_mul(NAMELESS) } else { of_owner }
}

/// Reads the share of an owner.
pub(crate) fn held(connection: &Connection, owner: &str) -> rusqlite::Result<Held> {
    let sql = "SELECT f.files, f.bytes, b.results, b.other, b.running, b.kept FROM
               (SELECT count(*) AS files, coalesce(sum(bytes), 0) AS bytes FROM files WHERE owner = ?1) f,
               (SELECT coalesce(sum(results_bytes), 0) AS results,
                       coalesce(sum(coalesce(length(CAST(metadata AS BLOB)), 0) + reserved), 0) AS other,
                       count(*) FILTER (WHERE ended IS NULL) AS running, count(*) AS kept
                FROM batches WHERE owner = ?1) b";
    connection.prepare_cached(sql)?.query_row([owner], |row| {
        let (bytes, results, other): (u64, u64, u64) = (row.get(1)?, row.get(2)?, row.get(3)?);
        let bytes = bytes.saturating_add(of_results(results)).saturating_add(other);
        Ok(Held { files: row.get(0)?, bytes, running: row.get(4)?, kept: row.get(5)? })
    })
}

/// Refuses a further file of this size.
pub(crate) fn check_file(connection: &Connection, owner: &str, bytes: u64, limits: &Limits) -> Result<(), JobError> {
    let held = held(connection, owner)?;
    if held.files >= number(owner, limits.owner_files) {
        return Err(JobError::OwnerBound("this token has too many files of batch jobs: delete some"));
    }
    if !owner.is_empty() && held.bytes.saturating_add(bytes) > limits.owner_disk {
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
    let held = held(connection, owner)?;
    if held.running >= number(owner, limits.owner_batches) {
        return Err(JobError::OwnerBound("this token has too many batches that have not ended: wait for some"));
    }
    if held.kept >= number(owner, limits.owner_kept) {
        return Err(JobError::OwnerBound(
            "this token has too many batches: wait until those that have ended are removed",
        ));
    }
    Ok(())
}

/// Returns whether there is room for results of an owner. Those of items in flight are taken in any case.
pub(crate) fn has_room(connection: &Connection, owner: &str, limits: &Limits) -> rusqlite::Result<bool> {
    Ok(owner.is_empty() || held(connection, owner)?.bytes < limits.owner_disk)
}
