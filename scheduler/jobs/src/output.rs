//! Output and error file of a batch: its results in the order of its items.
//!
//! | result | file | line |
//! | --- | --- | --- |
//! | response below 300 | output | `response`, `error: null` |
//! | other response | error | `response` with its body, `error: null` |
//! | none: deaths of its instance, end of the window, cancellation | error | `response: null`, `error` |
//!
//! A file without lines does not exist: a batch of failures has no output file.

use crate::error::JobError;
use crate::files::{Folder, Part};
use crate::id::{BatchId, FileId};
use crate::lifecycle::{CANCELLED, Cut, EXPIRED, Ending, Phase};
use crate::line;
use crate::readers::Readers;
use crate::shared::read_at;
use crate::table::batches::Stored;
use crate::table::items::{self, Entry, Kind, Record};
use crate::types::Batch;
use std::fs::File;
use std::io::{BufWriter, Write};

/// Items of a read.
const PAGE: u32 = 500;
/// Bytes of requests and results of a read of reports, unless one item has more.
const PAGE_BYTES: u64 = 16 << 20;
/// Bytes that are collected before they are written.
const BUFFER: usize = 256 << 10;

/// File with its size.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Written {
    pub(crate) id: FileId,
    pub(crate) bytes: u64,
}

/// Output and error file.
#[derive(Debug, Default)]
pub(crate) struct Outputs {
    pub(crate) output: Option<Written>,
    pub(crate) error: Option<Written>,
}

/// Item of a batch with its result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ItemReport {
    /// Position, from 0.
    pub item: u32,
    /// JSON of its `custom_id` or `external_reference`.
    pub name: String,
    /// True for a response of success.
    pub success: bool,
    /// JSON object: `status_code`, `request_id`, `body`; or `code`, `message`. `None`: no result yet, or left out.
    pub result: Option<String>,
    /// The result is longer than the caller takes.
    pub left_out: bool,
}

/// Writes both files, blocking for the disk. Called again after a failure, it begins again with other names.
pub(crate) fn write(folder: &Folder, readers: &Readers, stored: &Stored) -> Result<Outputs, JobError> {
    let batch = &stored.batch;
    let source = Source::open(folder, batch)?;
    let without = match batch.phase {
        Phase::Writing(Ending::Cut(Cut::Cancelled)) => Record::of_error(CANCELLED),
        _ => Record::of_error(EXPIRED),
    };
    let (mut output, mut error) = (Lines::default(), Lines::default());
    let mut first = 0;
    loop {
        let page = readers.read(|connection| Ok(items::page(connection, stored.no, first, PAGE)?))?;
        let Some(last) = page.last() else { break };
        first = last.item + 1;
        for entry in &page {
            let name = source.name(batch, entry)?;
            let (kind, record) = match source.result(entry)? {
                Some(result) => result,
                None => (Kind::Error, without.json.clone()),
            };
            let lines = if kind == Kind::Success { &mut output } else { &mut error };
            lines.add(folder, &line(batch.id, entry.item, &name, kind, &record))?;
        }
    }
    Ok(Outputs { output: output.finish()?, error: error.finish()? })
}

fn line(batch: BatchId, item: u32, name: &str, kind: Kind, record: &[u8]) -> Vec<u8> {
    let id = batch.to_string();
    let id = id.trim_start_matches("batch_");
    let mut line = format!("{{\"id\":\"batch_req_{id}_{item}\",\"custom_id\":{name},").into_bytes();
    let (before, after): (&[u8], &[u8]) = match kind {
        Kind::Success | Kind::Failure => (b"\"response\":", b",\"error\":null}\n"),
        Kind::Error => (b"\"response\":null,\"error\":", b"}\n"),
    };
    line.extend_from_slice(before);
    line.extend_from_slice(record);
    line.extend_from_slice(after);
    line
}

/// Items of a batch with their results, from number `first` on; results of more than `longest` bytes are left out.
pub(crate) fn reports(
    folder: &Folder,
    readers: &Readers,
    stored: &Stored,
    first: u32,
    most: u32,
    longest: u64,
) -> Result<Vec<ItemReport>, JobError> {
    let source = Source::open(folder, &stored.batch)?;
    let page = readers.read(|connection| Ok(items::page(connection, stored.no, first, most.min(PAGE))?))?;
    let left_out = |entry: &Entry| entry.result.is_some_and(|(_, _, length)| length > longest);
    let report = |entry: &Entry| {
        let left_out = left_out(entry);
        let result = if left_out { None } else { source.result(entry)? };
        let success = matches!(result, Some((Kind::Success, _)));
        let result = result.map(|(_, json)| String::from_utf8(json).map_err(|_| JobError::Unknown("result")));
        Ok(ItemReport {
            item: entry.item,
            name: source.name(&stored.batch, entry)?,
            success,
            result: result.transpose()?,
            left_out,
        })
    };
    let mut bytes = 0_u64;
    let fits = |entry: &&Entry| {
        let is_first = bytes == 0;
        let result = entry.result.map_or(0, |(_, _, length)| if length > longest { 0 } else { length });
        bytes = bytes.saturating_add(u64::from(entry.length)).saturating_add(result);
        is_first || bytes <= PAGE_BYTES
    };
    page.iter().take_while(fits).map(report).collect()
}

/// Files that a batch's items lie in.
struct Source {
    input: File,
    results: Option<File>,
}

impl Source {
    fn open(folder: &Folder, batch: &Batch) -> Result<Self, JobError> {
        Ok(Self { input: folder.open(batch.input)?, results: folder.find_results(batch.id)? })
    }

    /// JSON of the item's name.
    fn name(&self, batch: &Batch, entry: &Entry) -> Result<String, JobError> {
        let text = read_at(&self.input, entry.offset, u64::from(entry.length))?;
        Ok(line::name(&batch.form, &text).to_owned())
    }

    fn result(&self, entry: &Entry) -> Result<Option<(Kind, Vec<u8>)>, JobError> {
        let Some((kind, offset, length)) = entry.result else { return Ok(None) };
        let results = self.results.as_ref().ok_or(JobError::Unknown("result"))?;
        Ok(Some((kind, read_at(results, offset, length)?)))
    }
}

/// File that begins with its first line.
#[derive(Default)]
struct Lines {
    part: Option<BufWriter<Part>>,
    bytes: u64,
}

impl Lines {
    fn add(&mut self, folder: &Folder, line: &[u8]) -> Result<(), JobError> {
        let part = match &mut self.part {
            Some(part) => part,
            None => self.part.insert(BufWriter::with_capacity(BUFFER, Part::create(folder)?)),
        };
        part.write_all(line).map_err(JobError::io("write an output file"))?;
        self.bytes += line.len() as u64;
        Ok(())
    }

    fn finish(self) -> Result<Option<Written>, JobError> {
        let Some(part) = self.part else { return Ok(None) };
        let part = part.into_inner().map_err(|error| JobError::io("write an output file")(error.into_error()))?;
        let id = part.id();
        part.keep()?;
        Ok(Some(Written { id, bytes: self.bytes }))
    }
}
