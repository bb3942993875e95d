//! Output: data to standard output, everything else to standard error.
//!
//! Used by `main` and the commands. Invariants: a reader who went away (`| head`) ends the program quietly, and a
//! closed standard error ends nothing.

use std::fmt::Display;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::ValueEnum;

use crate::failure::Failure;
use crate::human::printable;
use crate::json;

/// How data is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people: aligned columns, ages and sizes in short.
    #[default]
    Table,
    /// For programs: the values of the control API, whole and exact.
    Json,
}

/// Where a command's data goes, with its errors as the command's failure.
pub(crate) struct Out<'a> {
    writer: &'a mut dyn Write,
    /// The file it is; `None` for standard output.
    path: Option<PathBuf>,
}

impl<'a> Out<'a> {
    /// Standard output.
    pub(crate) fn stdout(writer: &'a mut dyn Write) -> Self {
        Self { writer, path: None }
    }

    /// A file of the caller's.
    pub(crate) fn file(writer: &'a mut dyn Write, path: &Path) -> Self {
        Self { writer, path: Some(path.to_owned()) }
    }

    /// Writes a text as it is.
    pub(crate) fn text(&mut self, text: impl Display) -> Result<(), Failure> {
        self.bytes(text.to_string().as_bytes())
    }

    /// Writes a line.
    pub(crate) fn line(&mut self, text: impl Display) -> Result<(), Failure> {
        self.text(format_args!("{text}\n"))
    }

    /// Writes the text of a JSON value, indented.
    pub(crate) fn json(&mut self, json: &str) -> Result<(), Failure> {
        self.line(json::indent(json))
    }

    /// Writes bytes as they are.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        let written = self.writer.write_all(bytes);
        self.checked(written)
    }

    /// Makes what was written visible now: after each part of a stream, and at the end.
    pub(crate) fn flush(&mut self) -> Result<(), Failure> {
        let flushed = self.writer.flush();
        self.checked(flushed)
    }

    fn checked(&self, result: io::Result<()>) -> Result<(), Failure> {
        result.map_err(|source| match &self.path {
            Some(path) => Failure::File { verb: "write", path: path.clone(), source },
            None => Failure::Output(source),
        })
    }
}

/// Says something beside the data.
pub(crate) fn note(text: impl Display) {
    // Errors of a closed standard error are ignored: there is no other place to report them.
    let _ = writeln!(io::stderr(), "{text}");
}

/// Prints a failure: what happened, its causes, and the hint.
pub(crate) fn report(failure: &Failure) {
    if failure.is_silent() {
        return;
    }
    note(format_args!("error: {}", foreign(&failure.to_string())));
    let mut cause = std::error::Error::source(failure);
    while let Some(error) = cause {
        note(format_args!("  caused by: {}", foreign(&error.to_string())));
        cause = error.source();
    }
    if let Some(hint) = failure.hint() {
        note(format_args!("hint: {hint}"));
    }
}

/// A text of several lines, each made safe for a terminal and indented below the first.
fn foreign(text: &str) -> String {
    let lines: Vec<String> = text.lines().map(printable).collect();
    lines.join("\n  ")
}
