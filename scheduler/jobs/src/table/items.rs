//! Tables of items and results: claims, results, interruptions.

use super::batches;
use crate::error::JobError;
use crate::id::BatchId;
use crate::lifecycle::{Event, Interruption, ItemError, Tally};
use crate::time::UnixMillis;
use crate::turns::{Mode, Running, Turns};
use crate::types::Usage;
use crate::validate::Line;
use crate::writer::Unit;
use rusqlite::{Connection, OptionalExtension, Row, params};

/// Item of a batch, by the keys of the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ItemRef {
    pub(crate) no: i64,
    pub(crate) batch: BatchId,
    pub(crate) item: u32,
}

/// Item that is in flight now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Claimed {
    pub(crate) item: u32,
    pub(crate) offset: u64,
    pub(crate) length: u32,
    pub(crate) attempt: u32,
    /// True if an instance died while the item was in flight.
    pub(crate) suspect: bool,
}

/// Record of a result: an object of JSON in the batch's file of results.
#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) kind: Kind,
    pub(crate) json: Vec<u8>,
    pub(crate) usage: Usage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Response of success.
    Success,
    /// Response of another status.
    Failure,
    /// No response: an error of the store's.
    Error,
}

impl Kind {
    fn from_number(number: u8) -> Option<Self> {
        [Self::Success, Self::Failure, Self::Error].into_iter().find(|kind| *kind as u8 == number)
    }
}

impl Record {
    pub(crate) fn of_error(error: ItemError) -> Self {
        let json = serde_json::json!({"code": error.code, "message": error.message});
        Self { kind: Kind::Error, json: json.to_string().into_bytes(), usage: Usage::default() }
    }
}

/// Most tokens of a result, so that the sum of a batch is a number that the database has.
const MAX_TOKENS: u64 = 1 << 40;

/// Effect of a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recorded {
    /// The item has this result.
    First,
    /// The item had one: it was executed twice, and this result is dropped.
    Duplicate,
    /// The batch takes no more results: it was cancelled, or has expired.
    Closed,
}

/// Inserts items that wait; the first of them has the number `first`.
pub(crate) fn insert(connection: &Connection, no: i64, first: u32, lines: &[Line]) -> rusqlite::Result<()> {
    let mut statement =
        connection.prepare_cached("INSERT INTO items (batch, item, model, offset, length) VALUES (?, ?, ?, ?, ?)")?;
    for (item, line) in (first..).zip(lines) {
        statement.execute(params![no, item, line.model, line.offset, line.length])?;
    }
    Ok(())
}

/// Marks up to `most` items of a model as in flight. An item that was in flight when an instance died is a suspect: it
/// runs before the others of its batch, of which any may be another cause, and alone on its model, so that it takes nobody
/// along. Batches of which one has suspects take turns.
pub(crate) fn claim(
    connection: &Connection,
    turns: &mut Turns,
    (no, model): (i64, &str),
    most: u32,
) -> rusqlite::Result<Vec<Claimed>> {
    let sql = "SELECT model, pending, suspects > 0 FROM batch_models WHERE batch = ? AND name = ?";
    let entry = |row: &Row<'_>| Ok((row.get::<_, u16>(0)?, row.get::<_, u64>(1)?, row.get::<_, bool>(2)?));
    let found = connection.prepare_cached(sql)?.query_row(params![no, model], entry).optional()?;
    let Some((number, 1.., has_suspects)) = found else { return Ok(Vec::new()) };
    let (mode, most) = if has_suspects { (Mode::Alone, most.min(1)) } else { (Mode::Shared, most) };
    if turns.admit(model, no, mode, running(connection, model)?) {
        mark(connection, no, number, most, mode == Mode::Alone)
    } else {
        Ok(Vec::new())
    }
}

fn running(connection: &Connection, model: &str) -> rusqlite::Result<Running> {
    let sql = "SELECT coalesce(sum(m.in_flight), 0), coalesce(sum(m.suspects_in_flight), 0)
               FROM batch_models m INDEXED BY batch_models_in_flight CROSS JOIN batches b ON b.no = m.batch
               WHERE m.name = ? AND m.in_flight > 0 AND b.purged = 0 AND b.purge_at IS NULL";
    let entry = |row: &Row<'_>| Ok(Running { all: row.get(0)?, suspects: row.get(1)? });
    connection.prepare_cached(sql)?.query_row([model], entry)
}

fn mark(connection: &Connection, no: i64, model: u16, most: u32, suspect: bool) -> rusqlite::Result<Vec<Claimed>> {
    let deaths = if suspect { "deaths > 0" } else { "deaths = 0" };
    let sql = format!(
        "UPDATE items SET state = 1, attempts = attempts + 1 WHERE batch = ?1 AND item IN
         (SELECT item FROM items WHERE batch = ?1 AND model = ?2 AND state = 0 AND {deaths} ORDER BY item LIMIT ?3)
         RETURNING item, offset, length, attempts"
    );
    let entry = |row: &Row<'_>| {
        let (item, offset, length) = (row.get(0)?, row.get(1)?, row.get(2)?);
        Ok(Claimed { item, offset, length, attempt: row.get(3)?, suspect })
    };
    let mut statement = connection.prepare_cached(&sql)?;
    let claimed: rusqlite::Result<Vec<Claimed>> = statement.query_map(params![no, model, most], entry)?.collect();
    let mut claimed = claimed?;
    claimed.sort_unstable_by_key(|claimed| claimed.item);
    let sql = "UPDATE batch_models SET pending = pending - ?3, in_flight = in_flight + ?3, suspects = suspects - ?4,
               suspects_in_flight = suspects_in_flight + ?4 WHERE batch = ?1 AND model = ?2";
    let suspects = if suspect { claimed.len() } else { 0 };
    connection.prepare_cached(sql)?.execute(params![no, model, claimed.len(), suspects])?;
    Ok(claimed)
}

/// State of an item before a change.
struct Before {
    model: u16,
    state: u8,
    attempts: u32,
    tally: Tally,
}

const WAITS: u8 = 0;
const IN_FLIGHT: u8 = 1;

fn before(connection: &Connection, item: &ItemRef) -> rusqlite::Result<Option<Before>> {
    let sql = "SELECT model, state, attempts, deaths, lost FROM items WHERE batch = ? AND item = ?";
    let entry = |row: &Row<'_>| {
        let tally = Tally { deaths: row.get(3)?, lost: row.get(4)? };
        Ok(Before { model: row.get(0)?, state: row.get(1)?, attempts: row.get(2)?, tally })
    };
    connection.prepare_cached(sql)?.query_row(params![item.no, item.item], entry).optional()
}

/// Records a result, whether the item is in flight or waits again. Returns its effect and the bytes that were stored.
pub(crate) fn record(
    unit: &mut Unit<'_>,
    item: &ItemRef,
    record: &Record,
    now: UnixMillis,
) -> Result<(Recorded, u64), JobError> {
    let takes = batches::phase(unit.connection, item.no)?.is_some_and(|phase| phase.takes_results());
    let before = before(unit.connection, item)?.filter(|_| takes);
    let Some(before) = before else { return Ok((Recorded::Closed, 0)) };
    let end = batches::results_bytes(unit.connection, item.no)?;
    let length = record.json.len() as u64;
    let sql = "INSERT OR IGNORE INTO results (batch, item, kind, offset, length) VALUES (?, ?, ?, ?, ?)";
    let values = params![item.no, item.item, record.kind as u8, end, length];
    if unit.connection.prepare_cached(sql)?.execute(values)? == 0 {
        return Ok((Recorded::Duplicate, 0));
    }
    let end = unit.results.append(item.batch, end, &record.json)?;
    let sql = "UPDATE items SET state = 2 WHERE batch = ? AND item = ?";
    unit.connection.prepare_cached(sql)?.execute(params![item.no, item.item])?;
    let sql = "UPDATE batch_models SET pending = pending - ?3, in_flight = in_flight - ?4, suspects = suspects - ?5,
               suspects_in_flight = suspects_in_flight - ?6 WHERE batch = ?1 AND model = ?2";
    let (waited, flew, suspect) = (before.state == WAITS, before.state == IN_FLIGHT, before.tally.deaths > 0);
    let values = params![item.no, before.model, waited, flew, waited && suspect, flew && suspect];
    unit.connection.prepare_cached(sql)?.execute(values)?;
    count(unit.connection, item.no, record, end, now)?;
    Ok((Recorded::First, length))
}

fn count(connection: &Connection, no: i64, record: &Record, end: u64, now: UnixMillis) -> rusqlite::Result<()> {
    let sql = "UPDATE batches SET completed = completed + ?2, failed = failed + ?3, results_bytes = ?4,
               input_tokens = input_tokens + ?5, cached_tokens = cached_tokens + ?6,
               output_tokens = output_tokens + ?7, reasoning_tokens = reasoning_tokens + ?8
               WHERE no = ?1 RETURNING completed + failed = total";
    let success = record.kind == Kind::Success;
    let Usage { input, cached, output, reasoning } = record.usage;
    let [input, cached, output, reasoning] = [input, cached, output, reasoning].map(|tokens| tokens.min(MAX_TOKENS));
    let values = params![no, success, !success, end, input, cached, output, reasoning];
    if connection.prepare_cached(sql)?.query_row(values, |row| row.get(0))? {
        batches::apply(connection, no, Event::AllDone, now)?;
    }
    Ok(())
}

/// Ends an attempt without a result: the item waits again, or has an error for good. Nothing happens if the attempt is
/// not the one in flight. Returns the bytes that were stored.
pub(crate) fn interrupt(
    unit: &mut Unit<'_>,
    item: &ItemRef,
    attempt: u32,
    interruption: Interruption,
    now: UnixMillis,
) -> Result<u64, JobError> {
    let current = |before: &Before| before.state == IN_FLIGHT && before.attempts == attempt;
    let Some(mut before) = before(unit.connection, item)?.filter(current) else { return Ok(0) };
    let was_suspect = before.tally.deaths > 0;
    let error = before.tally.count(interruption);
    let sql = "UPDATE items SET state = 0, deaths = ?, lost = ? WHERE batch = ? AND item = ?";
    let Tally { deaths, lost } = before.tally;
    unit.connection.prepare_cached(sql)?.execute(params![deaths, lost, item.no, item.item])?;
    let sql = "UPDATE batch_models SET pending = pending + 1, in_flight = in_flight - 1, suspects = suspects + ?3,
               suspects_in_flight = suspects_in_flight - ?4 WHERE batch = ?1 AND model = ?2";
    unit.connection.prepare_cached(sql)?.execute(params![item.no, before.model, deaths > 0, was_suspect])?;
    match error {
        Some(error) => Ok(record(unit, item, &Record::of_error(error), now)?.1),
        None => Ok(0),
    }
}

/// Items in flight: at a start, those that the previous process has lost.
pub(crate) fn in_flight(connection: &Connection) -> rusqlite::Result<Vec<(ItemRef, u32)>> {
    let sql = "SELECT b.no, b.id, i.item, i.attempts FROM batches b JOIN items i ON i.batch = b.no AND i.state = 1
               WHERE b.purged = 0 AND b.purge_at IS NULL";
    let entry = |row: &Row<'_>| {
        let item = ItemRef { no: row.get(0)?, batch: BatchId::from_bytes(row.get(1)?), item: row.get(2)? };
        Ok((item, row.get(3)?))
    };
    connection.prepare(sql)?.query_map([], entry)?.collect()
}

/// Item of a batch with its result, by their places in the two files.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Entry {
    pub(crate) item: u32,
    pub(crate) offset: u64,
    pub(crate) length: u32,
    pub(crate) result: Option<(Kind, u64, u64)>,
}

/// Items from number `first` on, in their order, at most `most`.
pub(crate) fn page(connection: &Connection, no: i64, first: u32, most: u32) -> rusqlite::Result<Vec<Entry>> {
    let sql = "SELECT i.item, i.offset, i.length, r.kind, r.offset, r.length
               FROM items i LEFT JOIN results r ON r.batch = i.batch AND r.item = i.item
               WHERE i.batch = ? AND i.item >= ? ORDER BY i.item LIMIT ?";
    let entry = |row: &Row<'_>| {
        let kind: Option<u8> = row.get(3)?;
        let result = match kind.and_then(Kind::from_number) {
            Some(kind) => Some((kind, row.get(4)?, row.get(5)?)),
            None => None,
        };
        Ok(Entry { item: row.get(0)?, offset: row.get(1)?, length: row.get(2)?, result })
    };
    connection.prepare_cached(sql)?.query_map(params![no, first, most], entry)?.collect()
}
