//! Table of files.

use super::known;
use crate::id::FileId;
use crate::time::UnixMillis;
use crate::types::{FileInfo, Page, Purpose, Scope};
use rusqlite::{Connection, OptionalExtension, Row, params};

impl Purpose {
    const ALL: [(Self, &'static str); 3] =
        [(Self::Batch, "batch"), (Self::BatchOutput, "batch_output"), (Self::Queued, "queued")];

    /// Name in the OpenAI API and in the database.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(purpose, _)| *purpose == self).map_or("", |(_, name)| name)
    }

    /// Purpose of this name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(_, known)| *known == name).map(|(purpose, _)| *purpose)
    }
}

const COLUMNS: &str = "id, owner, purpose, name, bytes, created, expires";

fn info(row: &Row<'_>) -> rusqlite::Result<FileInfo> {
    Ok(FileInfo {
        id: FileId::from_bytes(row.get("id")?),
        owner: row.get("owner")?,
        purpose: known(&row.get::<_, String>("purpose")?, Purpose::parse)?,
        name: row.get("name")?,
        bytes: row.get("bytes")?,
        created_at: row.get("created")?,
        expires_at: row.get("expires")?,
    })
}

pub(crate) fn insert(connection: &Connection, file: &FileInfo) -> rusqlite::Result<()> {
    let sql = "INSERT INTO files (id, owner, purpose, name, bytes, created, expires) VALUES (?, ?, ?, ?, ?, ?, ?)";
    let mut statement = connection.prepare_cached(sql)?;
    let (purpose, id) = (file.purpose.name(), file.id.as_bytes());
    statement
        .execute(params![id, file.owner, purpose, file.name, file.bytes, file.created_at, file.expires_at])
        .map(drop)
}

/// File that exists for the caller.
pub(crate) fn find(
    connection: &Connection,
    scope: Scope<'_>,
    id: FileId,
    now: UnixMillis,
) -> rusqlite::Result<Option<FileInfo>> {
    let sql = format!(
        "SELECT {COLUMNS} FROM files WHERE id = ?1 AND deleted = 0 AND expires > ?2 AND (?3 IS NULL OR owner = ?3)"
    );
    connection.prepare_cached(&sql)?.query_row(params![id.as_bytes(), now, owner(scope)], info).optional()
}

/// Files of the caller that are its clients', of one purpose or of all; the newest first. The identifier of one
/// that is gone has its place by time.
pub(crate) fn list(
    connection: &Connection,
    scope: Scope<'_>,
    purpose: Option<Purpose>,
    page: &Page<FileId>,
    now: UnixMillis,
) -> rusqlite::Result<Vec<FileInfo>> {
    let sql = format!(
        "SELECT {COLUMNS} FROM files WHERE deleted = 0 AND expires > ?1 AND (?2 IS NULL OR owner = ?2)
         AND purpose <> 'queued' AND (?3 IS NULL OR coalesce(no < (SELECT no FROM files WHERE id = ?3), id < ?3))
         AND (?5 IS NULL OR purpose = ?5) ORDER BY no DESC LIMIT ?4"
    );
    let after = page.after.as_ref().map(FileId::as_bytes);
    let mut statement = connection.prepare_cached(&sql)?;
    let purpose = purpose.map(Purpose::name);
    statement.query_map(params![now, owner(scope), after, page.rows(), purpose], info)?.collect()
}

/// Hides a file from its owner; returns whether it was there.
pub(crate) fn hide(connection: &Connection, scope: Scope<'_>, id: FileId, now: UnixMillis) -> rusqlite::Result<bool> {
    let sql = "UPDATE files SET deleted = 1 WHERE id = ?1 AND deleted = 0 AND expires > ?2
               AND (?3 IS NULL OR owner = ?3)";
    Ok(connection.prepare_cached(sql)?.execute(params![id.as_bytes(), now, owner(scope)])? > 0)
}

/// Files that are deleted or have expired, and that no batch reads any more, each with its size.
pub(crate) fn removable(connection: &Connection, now: UnixMillis) -> rusqlite::Result<Vec<(FileId, u64)>> {
    let sql = "SELECT id, bytes FROM files WHERE (deleted = 1 OR expires <= ?)
               AND NOT EXISTS (SELECT 1 FROM batches WHERE input = files.id AND purged = 0) LIMIT 1000";
    let entry = |row: &Row<'_>| Ok((FileId::from_bytes(row.get(0)?), row.get(1)?));
    connection.prepare_cached(sql)?.query_map([now], entry)?.collect()
}

pub(crate) fn remove(connection: &Connection, id: FileId) -> rusqlite::Result<()> {
    connection.prepare_cached("DELETE FROM files WHERE id = ?")?.execute([id.as_bytes()]).map(drop)
}

/// Earliest time at which a file expires.
pub(crate) fn next_expiry(connection: &Connection, now: UnixMillis) -> rusqlite::Result<Option<UnixMillis>> {
    connection.prepare_cached("SELECT min(expires) FROM files WHERE expires > ?")?.query_row([now], |row| row.get(0))
}

pub(crate) fn exists(connection: &Connection, id: FileId) -> rusqlite::Result<bool> {
    connection.prepare_cached("SELECT 1 FROM files WHERE id = ?")?.exists([id.as_bytes()])
}

/// Bytes of all files.
pub(crate) fn bytes(connection: &Connection) -> rusqlite::Result<u64> {
    connection.query_row("SELECT coalesce(sum(bytes), 0) FROM files", [], |row| row.get(0))
}

pub(super) fn owner(scope: Scope<'_>) -> Option<&str> {
    match scope {
        Scope::Owner(owner) => Some(owner),
        Scope::Node => None,
    }
}
