//! `omnictl check`: finds everything a node would object to in a model's directory, without a node and without running
//! it.
//!
//! Checks are in files of their own: [`files`], [`manifest`], [`requirements`], [`weights`],
//! [`template`], [`code`]. Invariants:
//! every finding has a path, a line where there is one, and a hint; nothing of the model is executed.

mod code;
mod files;
mod manifest;
mod requirements;
mod template;
mod weights;

use std::fs;
use std::path::{Path, PathBuf};

use omni_config::NodeConfig;
use omni_config::node::{Snapshots, Weights};
use omni_snapshot::SnapshotError;
use serde::{Deserialize, Serialize};

use super::Context;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::human::printable;
use crate::output::{Format, note};

/// Something the node would object to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Finding {
    path: PathBuf,
    line: Option<usize>,
    message: String,
    hint: String,
}

impl Finding {
    fn at(path: &Path, line: Option<usize>, message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line, message: message.into(), hint: hint.into() }
    }
}

pub(super) fn run(context: &mut Context<'_>, dir: &Path) -> Result<Exit, Failure> {
    let (found, notes) = look(dir, &NodeConfig::default().snapshots, false, None)?;
    let findings = if found.iter().any(is_silent) { found } else { [files::check_name(dir), found].concat() };
    show(context, &findings)?;
    for text in notes {
        note(format_args!("note: {}", printable(&text)));
    }
    if findings.is_empty() {
        note(format_args!("{}: nothing to object to", dir.display()));
        return Ok(Exit::Ok);
    }
    Err(Failure::Findings(findings.len()))
}

/// All findings but those about the directory's own name, which only counts where it is in a models folder.
/// `require_hashes`: the node does, whatever the manifest says. `folders`: those of the node that weights may be in.
pub(super) fn of_content(
    dir: &Path,
    bounds: &Snapshots,
    require_hashes: bool,
    folders: Option<&Weights>,
) -> Result<Vec<Finding>, Failure> {
    look(dir, bounds, require_hashes, folders).map(|(findings, _)| findings)
}

/// Returns true for a directory that does not answer: no other check is possible.
fn is_silent(finding: &Finding) -> bool {
    finding.message == SnapshotError::Silent.to_string()
}

/// The findings, and what is worth knowing and no mistake.
fn look(
    dir: &Path,
    bounds: &Snapshots,
    require_hashes: bool,
    folders: Option<&Weights>,
) -> Result<(Vec<Finding>, Vec<String>), Failure> {
    let (mut findings, mut notes) = files::check(dir, bounds);
    if findings.iter().any(is_silent) {
        return Ok((findings, notes));
    }
    // Reading the directory also tells a wrong path from an empty model.
    fs::read_dir(dir).map_err(|source| Failure::File { verb: "read", path: dir.to_owned(), source })?;
    let (manifest, wrong) = manifest::check(dir);
    findings.extend(wrong);
    findings.extend(requirements::check(dir, &manifest, require_hashes));
    findings.extend(weights::check(dir, &manifest, folders));
    let (wrong, lint) = template::check(dir, &manifest);
    findings.extend(wrong);
    notes.extend(lint);
    let (wrong, lint) = code::check(dir, &manifest);
    findings.extend(wrong);
    notes.extend(lint);
    Ok((findings, notes))
}

pub(super) fn show(context: &mut Context<'_>, findings: &[Finding]) -> Result<(), Failure> {
    match context.format {
        Format::Json => {
            let json = serde_json::to_string(findings).map_err(|error| Failure::Render(error.into()))?;
            context.out.json(&json)?;
        }
        Format::Table => {
            for Finding { path, line, message, hint } in findings {
                let line = line.map(|line| format!(":{line}")).unwrap_or_default();
                let place = printable(&path.display().to_string());
                context.out.line(format_args!("{place}{line}: {}", printable(message)))?;
                context.out.line(format_args!("  hint: {}", printable(hint)))?;
            }
        }
    }
    Ok(())
}

/// Reads a small text file of the model, if it is there as a regular file; others are found by [`files`].
fn text_of(path: &Path, limit: u64) -> Result<Option<String>, Finding> {
    let Ok(metadata) = fs::metadata(path) else { return Ok(None) };
    if !metadata.is_file() {
        return Ok(None);
    }
    if metadata.len() > limit {
        let message = format!("the file has {} bytes; the node reads {limit} at most", metadata.len());
        return Err(Finding::at(path, None, message, "make it shorter"));
    }
    match fs::read(path) {
        Ok(bytes) => String::from_utf8(bytes).map(Some).map_err(|error| {
            let good = &error.as_bytes()[..error.utf8_error().valid_up_to()];
            let line = good.iter().filter(|byte| **byte == b'\n').count() + 1;
            Finding::at(path, Some(line), "not UTF-8", "save the file as UTF-8 text")
        }),
        Err(error) => {
            Err(Finding::at(path, None, format!("cannot be read: {error}"), "give its owner the right to read it"))
        }
    }
}

/// The line of a key in a section of `omni.toml`, if it is written in the usual way.
fn line_of(path: &Path, section: &str, key: &str) -> Option<usize> {
    let text = fs::read_to_string(path).ok()?;
    let mut lines = text.lines().enumerate().skip_while(|(_, line)| line.trim() != section);
    lines.find(|(_, line)| line.trim_start().starts_with(key)).map(|(before, _)| before + 1)
}
