//! Table of batches, and of the models of each.

use super::files::owner;
use super::known;
use crate::id::{BatchId, FileId};
use crate::lifecycle::{Cut, Ending, Event, Facts, Phase, Status};
use crate::time::UnixMillis;
use crate::types::{Batch, Counts, Form, LineError, Page, Scope, Times, Usage, Work};
use rusqlite::{Connection, OptionalExtension, Row, params};
use std::time::Duration;

/// Batch with its key.
#[derive(Debug, Clone)]
pub(crate) struct Stored {
    pub(crate) no: i64,
    pub(crate) batch: Batch,
    /// Time that output files are kept.
    pub(crate) output_keep: Duration,
    /// Bytes that are reserved for its items and output files.
    pub(crate) reserved: u64,
}

const COLUMNS: &str =
    "no, id, owner, form, endpoint, input, output_keep, metadata, phase, created, expires, in_progress,
    cancelling, finalizing, ended, total, completed, failed, input_tokens, cached_tokens, output_tokens,
    reasoning_tokens, output, error, errors, reserved,
    (SELECT iif(count(*) = 1, name, NULL) FROM batch_models WHERE batch = batches.no) AS model";

fn stored(row: &Row<'_>) -> rusqlite::Result<Stored> {
    let endpoint: String = row.get("endpoint")?;
    let form = known(&row.get::<_, String>("form")?, |name| match name {
        "openai" => Some(Form::OpenAi { endpoint }),
        "workers_ai" => Some(Form::WorkersAi { model: endpoint }),
        _ => None,
    })?;
    let errors: Option<String> = row.get("errors")?;
    let file = |column| Ok::<_, rusqlite::Error>(row.get::<_, Option<[u8; 16]>>(column)?.map(FileId::from_bytes));
    let batch = Batch {
        id: BatchId::from_bytes(row.get("id")?),
        owner: row.get("owner")?,
        form,
        input: FileId::from_bytes(row.get("input")?),
        phase: known(&row.get::<_, String>("phase")?, Phase::from_name)?,
        times: Times {
            created: row.get("created")?,
            expires: row.get("expires")?,
            in_progress: row.get("in_progress")?,
            cancelling: row.get("cancelling")?,
            finalizing: row.get("finalizing")?,
            ended: row.get("ended")?,
        },
        counts: Counts { total: row.get("total")?, completed: row.get("completed")?, failed: row.get("failed")? },
        model: row.get("model")?,
        usage: Usage {
            input: row.get("input_tokens")?,
            cached: row.get("cached_tokens")?,
            output: row.get("output_tokens")?,
            reasoning: row.get("reasoning_tokens")?,
        },
        output: file("output")?,
        error: file("error")?,
        errors: errors.map_or(Ok(Vec::new()), |errors| known(&errors, |errors| serde_json::from_str(errors).ok()))?,
        metadata: row.get("metadata")?,
    };
    let (output_keep, reserved) = (Duration::from_millis(row.get("output_keep")?), row.get("reserved")?);
    Ok(Stored { no: row.get("no")?, batch, output_keep, reserved })
}

fn form(form: &Form) -> (&'static str, &str) {
    match form {
        Form::OpenAi { endpoint } => ("openai", endpoint),
        Form::WorkersAi { model } => ("workers_ai", model),
    }
}

pub(crate) fn insert(connection: &Connection, batch: &Batch, output_keep: Duration) -> rusqlite::Result<()> {
    let sql = "INSERT INTO batches (id, owner, form, endpoint, input, output_keep, metadata, phase, created, expires)
               VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
    let (form, endpoint) = form(&batch.form);
    let (id, input, keep) = (batch.id.as_bytes(), batch.input.as_bytes(), millis(output_keep));
    let (phase, times) = (batch.phase.name(), &batch.times);
    connection
        .prepare_cached(sql)?
        .execute(params![
            id,
            batch.owner,
            form,
            endpoint,
            input,
            keep,
            batch.metadata,
            phase,
            times.created,
            times.expires
        ])
        .map(drop)
}

pub(crate) fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(i64::MAX as u64).min(i64::MAX as u64)
}

pub(crate) fn find(connection: &Connection, scope: Scope<'_>, id: BatchId) -> rusqlite::Result<Option<Stored>> {
    let sql = format!("SELECT {COLUMNS} FROM batches WHERE id = ?1 AND (?2 IS NULL OR owner = ?2)");
    connection.prepare_cached(&sql)?.query_row(params![id.as_bytes(), owner(scope)], stored).optional()
}

/// Batches of the OpenAI API, or all for the operator; the newest first. The identifier
/// of one that is gone has its place by time.
pub(crate) fn list(connection: &Connection, scope: Scope<'_>, page: &Page<BatchId>) -> rusqlite::Result<Vec<Batch>> {
    let sql = format!(
        "SELECT {COLUMNS} FROM batches WHERE (?1 IS NULL OR (owner = ?1 AND form = 'openai'))
         AND (?2 IS NULL OR coalesce(no < (SELECT no FROM batches WHERE id = ?2), id < ?2)) ORDER BY no DESC LIMIT ?3"
    );
    let after = page.after.as_ref().map(BatchId::as_bytes);
    let mut statement = connection.prepare_cached(&sql)?;
    statement.query_map(params![owner(scope), after, page.rows()], |row| Ok(stored(row)?.batch))?.collect()
}

/// Batch that the same request has made before, unless it was cancelled since.
pub(crate) fn same(
    connection: &Connection,
    batch: &Batch,
    output_keep: Duration,
    since: UnixMillis,
) -> rusqlite::Result<Option<Stored>> {
    let sql = format!(
        "SELECT {COLUMNS} FROM batches WHERE input = ? AND owner = ? AND form = ? AND endpoint = ? AND metadata IS ?
         AND output_keep = ? AND created >= ? AND cancelling IS NULL AND phase <> 'cancelled' ORDER BY no DESC LIMIT 1"
    );
    let (form, endpoint) = form(&batch.form);
    let (input, keep) = (batch.input.as_bytes(), millis(output_keep));
    let values = params![input, batch.owner, form, endpoint, batch.metadata, keep, since];
    connection.prepare_cached(&sql)?.query_row(values, stored).optional()
}

pub(crate) fn phase(connection: &Connection, no: i64) -> rusqlite::Result<Option<Phase>> {
    let mut statement = connection.prepare_cached("SELECT phase FROM batches WHERE no = ?")?;
    let text: Option<String> = statement.query_row([no], |row| row.get(0)).optional()?;
    text.map(|text| known(&text, Phase::from_name)).transpose()
}

/// Applies an event to the batch as it is now; returns the new state, if it is another.
pub(crate) fn apply(
    connection: &Connection,
    no: i64,
    event: Event,
    now: UnixMillis,
) -> rusqlite::Result<Option<Phase>> {
    let Some(next) = phase(connection, no)?.and_then(|phase| phase.after(event)) else { return Ok(None) };
    let set = match next {
        Phase::Running => ", in_progress = ?3",
        Phase::Stopping(Cut::Cancelled) => ", cancelling = ?3",
        Phase::Stopping(Cut::Expired) | Phase::Writing(Ending::Completed) => ", finalizing = ?3",
        // Results of Workers AI have no other place; those of the OpenAI API are in the output files.
        Phase::Failed | Phase::Ended(_) => ", ended = ?3, purge_at = ?3 + iif(form = 'workers_ai', output_keep, 0)",
        Phase::Validating | Phase::Writing(Ending::Cut(_)) => "",
    };
    let sql = format!("UPDATE batches SET phase = ?2{set} WHERE no = ?1 AND ?3 IS NOT NULL");
    connection.prepare_cached(&sql)?.execute(params![no, next.name(), now])?;
    Ok(Some(next))
}

pub(crate) fn set_errors(connection: &Connection, no: i64, errors: &[LineError]) -> rusqlite::Result<()> {
    let text = serde_json::to_string(errors).unwrap_or_else(|_| "[]".to_owned());
    connection.prepare_cached("UPDATE batches SET errors = ? WHERE no = ?")?.execute(params![text, no]).map(drop)
}

pub(crate) fn set_files(
    connection: &Connection,
    no: i64,
    output: Option<FileId>,
    error: Option<FileId>,
) -> rusqlite::Result<()> {
    let (output, error) = (output.as_ref().map(FileId::as_bytes), error.as_ref().map(FileId::as_bytes));
    let sql = "UPDATE batches SET output = ?, error = ? WHERE no = ?";
    connection.prepare_cached(sql)?.execute(params![output, error, no]).map(drop)
}

/// Counts of an accepted batch: its items, and those of each model.
pub(crate) fn set_models(connection: &Connection, no: i64, models: &[(String, u64)]) -> rusqlite::Result<()> {
    let mut insert =
        connection.prepare_cached("INSERT INTO batch_models (batch, model, name, pending) VALUES (?, ?, ?, ?)")?;
    for (model, (name, items)) in models.iter().enumerate() {
        insert.execute(params![no, model, name, items])?;
    }
    let total: u64 = models.iter().map(|(_, items)| items).sum();
    connection.prepare_cached("UPDATE batches SET total = ? WHERE no = ?")?.execute(params![total, no]).map(drop)
}

/// Reserves bytes for a batch's items and output files.
pub(crate) fn set_reserved(connection: &Connection, no: i64, bytes: u64) -> rusqlite::Result<()> {
    let sql = "UPDATE batches SET reserved = ? WHERE no = ?";
    connection.prepare_cached(sql)?.execute(params![bytes, no]).map(drop)
}

/// Batches for which something may be due, the oldest first.
pub(crate) fn due(connection: &Connection, now: UnixMillis) -> rusqlite::Result<Vec<(Stored, Facts)>> {
    let sql = format!(
        "SELECT {COLUMNS}, (SELECT coalesce(sum(in_flight), 0) FROM batch_models WHERE batch = batches.no) AS in_flight
         FROM batches WHERE purged = 0 AND (purge_at IS NULL OR purge_at <= ?) ORDER BY no"
    );
    let entry = |row: &Row<'_>| {
        let stored = stored(row)?;
        let times = &stored.batch.times;
        let facts = Facts {
            phase: stored.batch.phase,
            expires: times.expires,
            stopped: times.cancelling.or(times.finalizing),
            in_flight: row.get("in_flight")?,
        };
        Ok((stored, facts))
    };
    connection.prepare_cached(&sql)?.query_map([now], entry)?.collect()
}

/// Earliest time at which something is to be removed.
pub(crate) fn next_purge(connection: &Connection, now: UnixMillis) -> rusqlite::Result<Option<UnixMillis>> {
    let sql = "SELECT min(purge_at) FROM batches WHERE purged = 0 AND purge_at > ?";
    connection.prepare_cached(sql)?.query_row([now], |row| row.get(0))
}

/// Items that wait or are in flight, by batch and model; the batch that expires first is the first.
pub(crate) fn work(connection: &Connection) -> rusqlite::Result<Vec<Work>> {
    let sql = "SELECT b.id, b.owner, m.name, m.pending, m.suspects, m.in_flight, b.created, b.expires, b.phase
               FROM batches b JOIN batch_models m ON m.batch = b.no
               WHERE b.purged = 0 AND b.purge_at IS NULL
               AND b.phase IN ('running', 'stopping_expired', 'stopping_cancelled') AND (m.pending > 0 OR m.in_flight > 0) ORDER BY b.expires, b.no, m.model";
    let entry = |row: &Row<'_>| {
        let phase = known(&row.get::<_, String>(8)?, Phase::from_name)?;
        Ok(Work {
            batch: BatchId::from_bytes(row.get(0)?),
            owner: row.get(1)?,
            model: row.get(2)?,
            pending: row.get(3)?,
            suspects: row.get(4)?,
            in_flight: row.get(5)?,
            created: row.get(6)?,
            expires: row.get(7)?,
            stopping: !phase.hands_out(),
        })
    };
    connection.prepare_cached(sql)?.query_map([], entry)?.collect()
}

/// Number of batches in each state; those that were removed do not count.
pub(crate) fn states(connection: &Connection) -> rusqlite::Result<Vec<(Status, u64)>> {
    let mut statement = connection.prepare_cached("SELECT phase, count(*) FROM batches GROUP BY phase")?;
    let entry = |row: &Row<'_>| Ok((known(&row.get::<_, String>(0)?, Phase::from_name)?.status(), row.get(1)?));
    let phases: Vec<(Status, u64)> = statement.query_map([], entry)?.collect::<Result<_, _>>()?;
    let sum = |status| phases.iter().filter(|(of, _)| *of == status).map(|(_, count)| count).sum();
    Ok(Status::ALL.into_iter().map(|status| (status, sum(status))).collect())
}

/// Deletes up to `most` items of a batch that has ended, with their results; returns whether some are left.
pub(crate) fn purge_items(connection: &Connection, no: i64, most: u32) -> rusqlite::Result<bool> {
    for table in ["results", "items"] {
        let sql = format!(
            "DELETE FROM {table} WHERE batch = ?1
             AND item IN (SELECT item FROM {table} WHERE batch = ?1 ORDER BY item LIMIT ?2)"
        );
        if connection.prepare_cached(&sql)?.execute(params![no, most])? >= most as usize {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Marks a batch as having neither items nor a file of results any more.
pub(crate) fn set_purged(connection: &Connection, no: i64) -> rusqlite::Result<()> {
    let sql = "UPDATE batches SET purged = 1, results_bytes = 0, reserved = 0 WHERE no = ?";
    connection.prepare_cached(sql)?.execute([no]).map(drop)
}

/// Forgets purged batches that ended before a time.
pub(crate) fn remove_old(connection: &Connection, before: UnixMillis) -> rusqlite::Result<()> {
    let old = "(SELECT no FROM batches WHERE purged = 1 AND ended < ?)";
    connection.execute(&format!("DELETE FROM batch_models WHERE batch IN {old}"), [before])?;
    connection.execute(&format!("DELETE FROM batches WHERE no IN {old}"), [before]).map(drop)
}

pub(crate) fn has_results(connection: &Connection, id: BatchId) -> rusqlite::Result<bool> {
    let sql = "SELECT 1 FROM batches WHERE id = ? AND results_bytes > 0";
    connection.prepare_cached(sql)?.exists([id.as_bytes()])
}

pub(crate) fn results_bytes(connection: &Connection, no: i64) -> rusqlite::Result<u64> {
    connection.prepare_cached("SELECT results_bytes FROM batches WHERE no = ?")?.query_row([no], |row| row.get(0))
}

/// Bytes of all results, and those that are reserved.
pub(crate) fn all_bytes(connection: &Connection) -> rusqlite::Result<(u64, u64)> {
    let sql = "SELECT coalesce(sum(results_bytes), 0), coalesce(sum(reserved), 0) FROM batches";
    connection.query_row(sql, [], |row| Ok((row.get(0)?, row.get(1)?)))
}
