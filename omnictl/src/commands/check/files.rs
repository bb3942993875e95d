//! Checks of a model's files: the node can take its read-only copy of them.
//!
//! The rules are those of the node's snapshots: regular files, directories, and relative links that stay inside; names
//! with a leading dot, `__pycache__` and `*.pyc` are left out; files and bytes are bounded (without a node by the
//! defaults of its configuration). Invariant: no file is opened, so a FIFO cannot block and a device is not touched.

use std::fs::{self, DirEntry, File, FileType};
use std::os::unix::fs::FileTypeExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread;

use omni_config::name::DEPTH_LIMIT;
use omni_config::node::Snapshots;
use omni_config::{ByteSize, MODEL_FILES, ModelName, NotAModel};
use omni_snapshot::digest::{is_below_ignored, is_ignored};
use omni_snapshot::{Limits, Progress, SILENT, SnapshotError, check_directory, is_followed};

use super::Finding;
use crate::human::size;

/// Findings about files; more of them would say nothing new.
const LISTED: usize = 50;

/// Names that are shown of what is left out.
const SHOWN: usize = 10;

/// State of the walk.
struct Walk<'a> {
    root: &'a Path,
    left_out: Vec<PathBuf>,
    /// Directories in it that look like models, too, and the file by which they do.
    inner: Vec<(PathBuf, &'static str)>,
    findings: Vec<Finding>,
    entries: u64,
    bytes: u64,
}

/// The directory's own name is the last part of the model's.
pub(super) fn check_name(dir: &Path) -> Vec<Finding> {
    let absolute = fs::canonicalize(dir).ok();
    let Some(name) = absolute.as_deref().and_then(Path::file_name) else { return Vec::new() };
    let wrong = ModelName::from_path(Path::new(name)).err();
    let finding = |error| Finding::at(dir, None, NotAModel::Name(error).to_string(), "rename the directory");
    wrong.map(finding).into_iter().collect()
}

/// Findings about the files, and notes for the author.
pub(super) fn check(dir: &Path, bounds: &Snapshots) -> (Vec<Finding>, Vec<String>) {
    let refused = ask(dir, bounds);
    if let Some(SnapshotError::Silent) = refused {
        let hint = "nothing else was looked at; `umount -l` takes a dead mount away";
        return (vec![Finding::at(dir, None, SnapshotError::Silent.to_string(), hint)], Vec::new());
    }
    let mut walk =
        Walk { root: dir, left_out: Vec::new(), inner: Vec::new(), findings: Vec::new(), entries: 0, bytes: 0 };
    walk.directory(dir, u64::from(bounds.files));
    if walk.entries > u64::from(bounds.files) {
        let message = format!("more than {} files", bounds.files);
        walk.found(dir, message, "keep data sets and weights elsewhere; a node's limit is `snapshots.files`");
    }
    if ByteSize::from_bytes(walk.bytes) > bounds.bytes {
        let message = format!("the files have {} together, a node takes {}", size(walk.bytes), bounds.bytes);
        walk.found(dir, message, "sparse files count in full; a node's limit is `snapshots.bytes`");
    }
    if let Some(error) = refused.filter(|_| walk.findings.is_empty()) {
        walk.found(dir, error.to_string(), "so a node says when it is to copy the directory");
    }
    let notes = walk.notes();
    (walk.findings, notes)
}

/// Steps of a look.
#[derive(Default)]
struct Steps(AtomicU64);

impl Progress for Steps {
    fn step(&self) -> Result<(), SnapshotError> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

/// Why a node would not copy the directory. Asked in a thread: a mount that does not answer holds that alone.
fn ask(dir: &Path, bounds: &Snapshots) -> Option<SnapshotError> {
    let limits = Limits { files: bounds.files, bytes: bounds.bytes.bytes() };
    let (steps, path) = (Arc::new(Steps::default()), dir.to_owned());
    let (said, answer) = sync_channel(1);
    let made = Arc::clone(&steps);
    thread::spawn(move || {
        let looked = File::open(path).map(|dir| check_directory(dir, limits, &*made));
        let _ = said.send(looked.ok().and_then(Result::err)); // a directory that cannot be opened is reported by the walk
    });
    let mut before = 0;
    loop {
        match answer.recv_timeout(SILENT) {
            Ok(refused) => return refused,
            Err(RecvTimeoutError::Disconnected) => return None,
            Err(RecvTimeoutError::Timeout) => {
                let now = steps.0.load(Ordering::Relaxed);
                if now == before {
                    return Some(SnapshotError::Silent);
                }
                before = now;
            }
        }
    }
}

impl Walk<'_> {
    /// Notes for the author: names that are left out of the copy, and models inside this one. Neither is a finding.
    fn notes(&self) -> Vec<String> {
        let below = |path: &Path| path.strip_prefix(self.root).unwrap_or(path).to_owned();
        let mut notes = Vec::new();
        if !self.left_out.is_empty() {
            let names = self.left_out.iter().take(SHOWN).map(|path| format!("`{}`", below(path).display()));
            let more = self.left_out.len().saturating_sub(SHOWN);
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            let names = names.collect::<Vec<_>>().join(", ");
            notes.push(format!("left out of the model, as all names with a leading dot: {names}{more}"));
        }
        let outer = MODEL_FILES.iter().any(|name| self.root.join(name).exists());
        let name =
            fs::canonicalize(self.root).ok().and_then(|root| Some(root.file_name()?.to_string_lossy().into_owned()));
        for (inner, file) in self.inner.iter().take(SHOWN) {
            let path = below(inner);
            let parts = path.components().count() + 1;
            let why = match &name {
                Some(name) if outer => NotAModel::Inside(name.clone()).to_string(),
                _ if parts > DEPTH_LIMIT => NotAModel::Deep.to_string(),
                _ => "it is a model of its own: check it by itself".to_owned(),
            };
            notes.push(format!("`{}` has a `{file}`, too: {why}", path.display()));
        }
        notes
    }

    fn found(&mut self, path: &Path, message: impl Into<String>, hint: &str) {
        if self.findings.len() < LISTED {
            self.findings.push(Finding::at(path, None, message, hint));
        }
    }

    fn directory(&mut self, directory: &Path, most: u64) {
        let entries = match fs::read_dir(directory).and_then(Iterator::collect::<Result<Vec<DirEntry>, _>>) {
            Ok(entries) => entries,
            Err(error) => {
                return self.found(
                    directory,
                    format!("cannot be read: {error}"),
                    "give its owner the right to read it",
                );
            }
        };
        let (mut kept, left_out): (Vec<DirEntry>, Vec<DirEntry>) = entries.into_iter().partition(is_kept);
        kept.sort_by_key(DirEntry::file_name);
        self.left_out.extend(left_out.iter().filter(|entry| is_worth_a_word(entry)).map(DirEntry::path));
        self.left_out.sort();
        let file = MODEL_FILES.into_iter().find(|name| kept.iter().any(|entry| entry.file_name() == *name));
        if let Some(file) = file.filter(|_| directory != self.root) {
            self.inner.push((directory.to_owned(), file));
        }
        for entry in kept {
            self.entries += 1;
            if self.entries > most {
                return;
            }
            let path = entry.path();
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => self.directory(&path, most),
                Ok(kind) if kind.is_file() => self.bytes += entry.metadata().map_or(0, |metadata| metadata.len()),
                Ok(kind) if kind.is_symlink() => self.link(&path),
                Ok(kind) => {
                    let message = format!("{}: only files, directories and links can be copied", kind_name(kind));
                    self.found(&path, message, "remove it; the model can make its own below /tmp when it runs");
                }
                Err(error) => self.found(&path, format!("cannot be looked at: {error}"), "remove it"),
            }
        }
    }

    fn link(&mut self, path: &Path) {
        const HINT: &str = "put a copy of the file here, or link to one inside by a relative path";
        let target = match fs::read_link(path) {
            Ok(target) => target,
            Err(error) => return self.found(path, format!("the link cannot be read: {error}"), HINT),
        };
        let shown = target.display();
        if target.is_absolute() {
            return self.found(path, format!("a link to {shown}, an absolute path"), HINT);
        }
        if is_followed(&target) {
            return; // copied as its target, if there is one: the node's own walk reports the rest
        }
        if is_below_ignored(&target) {
            let hint = "names with a leading dot, `__pycache__` and `*.pyc` are left out: link to something else";
            return self.found(path, format!("a link to {shown}, which is not part of the copy"), hint);
        }
        let within = path.strip_prefix(self.root).is_ok_and(|below| stays_inside(below, &target));
        let inside = match (fs::canonicalize(path), fs::canonicalize(self.root)) {
            (Ok(target), Ok(root)) => target.starts_with(root),
            _ => return self.found(path, format!("a link to {shown}, where nothing is"), "repair or remove it"),
        };
        if !within || !inside {
            self.found(path, format!("a link to {shown}, outside of the directory"), HINT);
        }
    }
}

/// Returns true if the node's copy includes the entry.
fn is_kept(entry: &DirEntry) -> bool {
    !is_ignored(entry.file_name().as_encoded_bytes())
}

/// Returns true if the author should learn that a file is left out of the copy: bytecode is always there, `.git` often,
/// and names with two leading dots are the targets of links.
fn is_worth_a_word(entry: &DirEntry) -> bool {
    let name = entry.file_name();
    let name = name.as_encoded_bytes();
    name.starts_with(b".") && !name.starts_with(b"..") && !name.starts_with(b".git")
}

/// Returns true if the path of a link at `link` (below the root) never climbs above the root on its way.
fn stays_inside(link: &Path, target: &Path) -> bool {
    let mut depth = link.components().count().saturating_sub(1);
    for component in target.components() {
        match component {
            Component::ParentDir if depth == 0 => return false,
            Component::ParentDir => depth -= 1,
            Component::Normal(_) => depth += 1,
            Component::CurDir => {}
            Component::RootDir | Component::Prefix(_) => return false,
        }
    }
    true
}

fn kind_name(kind: FileType) -> &'static str {
    if kind.is_fifo() {
        "a FIFO"
    } else if kind.is_socket() {
        "a socket"
    } else {
        "a device"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_may_not_climb_above_the_root_on_their_way() {
        for (link, target, inside) in [
            ("a", "b", true),
            ("a", "./b/../c", true),
            ("a", "../model/b", false),
            ("x/a", "../b", true),
            ("x/a", "../../model/b", false),
        ] {
            assert_eq!(stays_inside(Path::new(link), Path::new(target)), inside, "{link} -> {target}");
        }
    }
}
