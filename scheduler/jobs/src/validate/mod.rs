//! Validation of input files: read line by line, in memory that a bound of the store limits.
//!
//! In memory are one line, 24 bytes for each request, and 32 for the hash of its `custom_id`: of 128 bits and with keys
//! of its own each time, so that two equal ones are two equal names.

#[cfg(test)]
mod tests;

use crate::line::{self, Fault};
use crate::types::{Form, Limits, LineError};
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, BufRead, Read};

/// Faults that are reported; reading ends with the last.
const MAX_ERRORS: usize = 100;
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Request of an input file, by its place in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Line {
    pub(crate) number: u32,
    pub(crate) offset: u64,
    pub(crate) length: u32,
    /// Index in [`Validated::models`].
    pub(crate) model: u16,
}

/// Requests of a good file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Validated {
    pub(crate) lines: Vec<Line>,
    pub(crate) models: Vec<String>,
    /// Bytes of the names of all requests in output files.
    pub(crate) names: u64,
}

/// Reads the file; the inner error is the client's, and never empty.
pub(crate) fn validate(
    reader: impl BufRead,
    form: &Form,
    limits: &Limits,
) -> io::Result<Result<Validated, Vec<LineError>>> {
    let mut lines = Lines { reader, number: 0, offset: 0, longest: limits.line };
    let mut checker =
        Checker { form, limits, ids: Ids::default(), models: Models::default(), lines: Vec::new(), names: 0, empty: 0 };
    let mut errors = Vec::new();
    let mut line = Vec::new();
    while let Some(span) = lines.next(&mut line)? {
        if let Err(fault) = checker.check(&span, &line) {
            errors.push(fault.at(Some(span.number)));
        }
        if errors.len() >= MAX_ERRORS || checker.is_full() {
            break;
        }
    }
    if errors.is_empty() && checker.lines.is_empty() {
        errors.push(Fault::new("empty_file", "The input file has no requests.", None).at(None));
    }
    let validated = Validated { lines: checker.lines, models: checker.models.names, names: checker.names };
    Ok(if errors.is_empty() { Ok(validated) } else { Err(errors) })
}

struct Checker<'a> {
    form: &'a Form,
    limits: &'a Limits,
    ids: Ids,
    models: Models,
    lines: Vec<Line>,
    names: u64,
    empty: u32,
}

impl Checker<'_> {
    /// Counts an empty line: reading one takes as long as reading a request.
    fn count_empty(&mut self) -> Result<(), Fault> {
        self.empty = self.empty.saturating_add(1);
        if self.empty > self.limits.items {
            let message = format!("The input file has more than {} empty lines.", self.limits.items);
            return Err(Fault::new("too_many_empty_lines", message, None));
        }
        Ok(())
    }

    fn is_full(&self) -> bool {
        self.lines.len() > self.limits.items as usize || self.empty > self.limits.items
    }

    fn check(&mut self, span: &Span, line: &[u8]) -> Result<(), Fault> {
        let Some(length) = span.length else {
            let message = format!("The line has more than {} bytes.", self.limits.line);
            return Err(Fault::new("line_too_long", message, None));
        };
        if line.trim_ascii().is_empty() {
            return self.count_empty();
        }
        let checked = line::check(self.form, line)?;
        if let Some(id) = &checked.custom_id
            && let Some(first) = self.ids.insert(id, span.number)
        {
            let message = format!("custom_id is that of line {first}.");
            return Err(Fault::new("duplicate_custom_id", message, Some("custom_id")));
        }
        let model = self.models.number(checked.model, self.limits.models)?;
        self.names = self.names.saturating_add(checked.name as u64);
        self.lines.push(Line { number: span.number, offset: span.offset, length, model });
        if self.lines.len() > self.limits.items as usize {
            let message = format!("The input file has more than {} requests.", self.limits.items);
            return Err(Fault::new("too_many_requests", message, None));
        }
        Ok(())
    }
}

/// Names that have occurred, each with its first line.
#[derive(Default)]
struct Ids {
    keys: (RandomState, RandomState),
    seen: HashMap<u128, u32>,
}

impl Ids {
    /// Returns the line where the name stands already.
    fn insert(&mut self, id: &str, line: u32) -> Option<u32> {
        let hash = u128::from(self.keys.0.hash_one(id)) << 64 | u128::from(self.keys.1.hash_one(id));
        let first = *self.seen.entry(hash).or_insert(line);
        (first != line).then_some(first)
    }
}

#[derive(Default)]
struct Models {
    names: Vec<String>,
    numbers: HashMap<String, u16>,
}

impl Models {
    fn number(&mut self, name: String, most: usize) -> Result<u16, Fault> {
        if let Some(number) = self.numbers.get(&name) {
            return Ok(*number);
        }
        let number = u16::try_from(self.names.len()).ok().filter(|_| self.names.len() < most);
        let message = || format!("The input file names more than {most} models.");
        let number = number.ok_or_else(|| Fault::new("too_many_models", message(), Some("body.model")))?;
        self.names.push(name.clone());
        self.numbers.insert(name, number);
        Ok(number)
    }
}

/// Place of a line without its end.
struct Span {
    number: u32,
    offset: u64,
    /// `None`: longer than allowed.
    length: Option<u32>,
}

struct Lines<R> {
    reader: R,
    number: u32,
    offset: u64,
    longest: usize,
}

impl<R: BufRead> Lines<R> {
    fn next(&mut self, line: &mut Vec<u8>) -> io::Result<Option<Span>> {
        line.clear();
        // Two more bytes than allowed: those of its end.
        let most = self.longest as u64 + 2;
        let read = (&mut self.reader).take(most).read_until(b'\n', line)?;
        if read == 0 {
            return Ok(None);
        }
        self.number = self.number.saturating_add(1);
        let mut offset = self.offset;
        self.offset += read as u64;
        let is_whole = line.pop_if(|byte| *byte == b'\n').is_some();
        if !is_whole && read as u64 == most {
            self.offset += self.reader.skip_until(b'\n')? as u64;
        }
        line.pop_if(|byte| *byte == b'\r');
        if self.number == 1 && line.starts_with(BYTE_ORDER_MARK) {
            line.drain(..BYTE_ORDER_MARK.len());
            offset += BYTE_ORDER_MARK.len() as u64;
        }
        let length = (line.len() <= self.longest).then(|| u32::try_from(line.len()).ok()).flatten();
        Ok(Some(Span { number: self.number, offset, length }))
    }
}
