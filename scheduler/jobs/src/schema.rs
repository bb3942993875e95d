//! Tables of the database, and the settings of its connections.
//!
//! `PRAGMA user_version` is the schema's version. A change appends its statements as a further version, so that each
//! database is brought from its own to the newest in one transaction.
//!
//! Identifiers are the 16 bytes of UUIDs, times are milliseconds since the Unix epoch. `no` is a short key of this
//! database. An `item` is the position of a request in its batch, from 0.

use crate::error::{JobError, OpenError};
use rusqlite::{Connection, OpenFlags};
use std::fs::{OpenOptions, Permissions};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

/// Statements of each version, the oldest first.
const VERSIONS: &[&str] = &[
    "
CREATE TABLE files (
    no INTEGER PRIMARY KEY,
    id BLOB NOT NULL UNIQUE,
    owner TEXT NOT NULL,
    purpose TEXT NOT NULL,
    name TEXT NOT NULL,
    bytes INTEGER NOT NULL,
    created INTEGER NOT NULL,
    expires INTEGER NOT NULL,
    deleted INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX files_owner ON files (owner);

-- purge_at: when items and results go; NULL as long as the batch has not ended
CREATE TABLE batches (
    no INTEGER PRIMARY KEY,
    id BLOB NOT NULL UNIQUE,
    owner TEXT NOT NULL,
    form TEXT NOT NULL,
    endpoint TEXT NOT NULL,
    input BLOB NOT NULL,
    output_keep INTEGER NOT NULL,
    metadata TEXT,
    phase TEXT NOT NULL,
    created INTEGER NOT NULL,
    expires INTEGER NOT NULL,
    in_progress INTEGER,
    cancelling INTEGER,
    finalizing INTEGER,
    ended INTEGER,
    total INTEGER NOT NULL DEFAULT 0,
    completed INTEGER NOT NULL DEFAULT 0,
    failed INTEGER NOT NULL DEFAULT 0,
    input_tokens INTEGER NOT NULL DEFAULT 0,
    cached_tokens INTEGER NOT NULL DEFAULT 0,
    output_tokens INTEGER NOT NULL DEFAULT 0,
    reasoning_tokens INTEGER NOT NULL DEFAULT 0,
    results_bytes INTEGER NOT NULL DEFAULT 0,
    output BLOB,
    error BLOB,
    errors TEXT,
    purge_at INTEGER,
    purged INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX batches_purge ON batches (purge_at) WHERE purged = 0;
CREATE INDEX batches_input ON batches (input);
CREATE INDEX batches_owner ON batches (owner);
CREATE INDEX batches_phase ON batches (phase);

-- suspects: items with deaths that wait; suspects_in_flight: those that are in flight
CREATE TABLE batch_models (
    batch INTEGER NOT NULL REFERENCES batches (no),
    model INTEGER NOT NULL,
    name TEXT NOT NULL,
    pending INTEGER NOT NULL,
    suspects INTEGER NOT NULL DEFAULT 0,
    in_flight INTEGER NOT NULL DEFAULT 0,
    suspects_in_flight INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (batch, model)
) STRICT, WITHOUT ROWID;

-- state: 0 waits, 1 is in flight, 2 has its result
CREATE TABLE items (
    batch INTEGER NOT NULL REFERENCES batches (no),
    item INTEGER NOT NULL,
    model INTEGER NOT NULL,
    offset INTEGER NOT NULL,
    length INTEGER NOT NULL,
    state INTEGER NOT NULL DEFAULT 0,
    attempts INTEGER NOT NULL DEFAULT 0,
    deaths INTEGER NOT NULL DEFAULT 0,
    lost INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (batch, item)
) STRICT, WITHOUT ROWID;
CREATE INDEX items_pending ON items (batch, model, deaths, item) WHERE state = 0;
CREATE INDEX items_in_flight ON items (batch, item) WHERE state = 1;

-- kind: 0 response of success, 1 other response, 2 no response
CREATE TABLE results (
    batch INTEGER NOT NULL REFERENCES batches (no),
    item INTEGER NOT NULL,
    kind INTEGER NOT NULL,
    offset INTEGER NOT NULL,
    length INTEGER NOT NULL,
    PRIMARY KEY (batch, item)
) STRICT, WITHOUT ROWID;
",
    // reserved: bytes of the batch's rows of items, and of its output files beside results
    "ALTER TABLE batches ADD COLUMN reserved INTEGER NOT NULL DEFAULT 0;",
    "CREATE INDEX batch_models_in_flight ON batch_models (name) WHERE in_flight > 0;",
];

/// Longest wait for a lock: only a checkpoint that meets a reader has one to wait for.
const BUSY: Duration = Duration::from_secs(10);
/// Size to which the write-ahead log is cut after a checkpoint.
const LOG_BYTES: u32 = 16 << 20;

/// Opens the connection that writes, and brings the tables to the newest version.
pub(crate) fn open_writer(path: &Path) -> Result<Connection, OpenError> {
    let failed = |source: rusqlite::Error| OpenError::Database { path: path.to_owned(), source: source.into() };
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path);
    let private = file.and_then(|file| file.set_permissions(Permissions::from_mode(0o600)));
    private.map_err(|source| OpenError::Folder { action: "write into", path: path.to_owned(), source })?;
    let mut connection = Connection::open_with_flags(path, flags).map_err(failed)?;
    let set = |connection: &Connection| {
        connection.busy_timeout(BUSY)?;
        connection.pragma_update(None, "journal_mode", "WAL")?;
        // Each commit is flushed: with NORMAL a power failure may take the last ones.
        connection.pragma_update(None, "synchronous", "FULL")?;
        connection.pragma_update(None, "journal_size_limit", LOG_BYTES)?;
        connection.pragma_update(None, "temp_store", "MEMORY")?;
        connection.pragma_update(None, "foreign_keys", true)
    };
    set(&connection).map_err(failed)?;
    let found: u32 = connection.pragma_query_value(None, "user_version", |row| row.get(0)).map_err(failed)?;
    let known = VERSIONS.len() as u32;
    if found > known {
        return Err(OpenError::Newer { path: path.to_owned(), found, known });
    }
    migrate(&mut connection, found).map_err(failed)?;
    Ok(connection)
}

fn migrate(connection: &mut Connection, found: u32) -> rusqlite::Result<()> {
    let transaction = connection.transaction()?;
    for statements in VERSIONS.iter().skip(found as usize) {
        transaction.execute_batch(statements)?;
    }
    transaction.pragma_update(None, "user_version", VERSIONS.len() as u32)?;
    transaction.commit()
}

/// Opens a connection that only reads.
pub(crate) fn open_reader(path: &Path) -> Result<Connection, JobError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(BUSY)?;
    Ok(connection)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Versions 3.7.0 to 3.51.2 may corrupt a write-ahead log that two connections use.
    #[test]
    fn the_bundled_sqlite_has_the_repaired_log() {
        assert!(rusqlite::version_number() >= 3_051_003, "{}", rusqlite::version());
    }

    #[test]
    fn a_database_of_an_earlier_version_is_brought_to_the_newest() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("jobs.db");
        let earlier = Connection::open(&path).unwrap();
        earlier.execute_batch(VERSIONS[0]).unwrap();
        earlier.pragma_update(None, "user_version", 1).unwrap();
        let batch = "INSERT INTO batches (id, owner, form, endpoint, input, output_keep, phase, created, expires)
                     VALUES (x'01', '', 'openai', '', x'02', 0, 'running', 0, 0)";
        earlier.execute(batch, []).unwrap();
        drop(earlier);
        let connection = open_writer(&path).unwrap();
        let reserved: u64 = connection.query_row("SELECT reserved FROM batches", [], |row| row.get(0)).unwrap();
        assert_eq!(reserved, 0);
    }

    #[test]
    fn a_database_is_made_once_and_a_newer_one_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("jobs.db");
        for _ in 0..2 {
            let connection = open_writer(&path).unwrap();
            let value = |name| connection.pragma_query_value::<String, _>(None, name, |row| row.get(0));
            assert_eq!(value("journal_mode").unwrap(), "wal");
            assert_eq!(connection.pragma_query_value::<u32, _>(None, "synchronous", |row| row.get(0)).unwrap(), 2);
        }
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        open_reader(&path).unwrap().execute("DELETE FROM files", []).unwrap_err();
        open_writer(&path).unwrap().pragma_update(None, "user_version", 9).unwrap();
        assert!(matches!(open_writer(&path), Err(OpenError::Newer { found: 9, known: 3, .. })));
        std::fs::write(
            &path,
            "no database at all, but text that is longer than a header of one hundred bytes has to be",
        )
        .unwrap();
        assert!(matches!(open_writer(&path), Err(OpenError::Database { .. })));
    }
}
