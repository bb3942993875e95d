//! The files of a model's directory: can the node take its read-only copy of them?
//!
//! The rules are those of the node's snapshots: regular files, directories, and relative links that stay inside; names with a
//! leading dot, `__pycache__` and `*.pyc` are left out; files and bytes are bounded (without a node by the defaults of
//! its configuration). What always holds: no file is opened, so a FIFO cannot block and a device cannot be touched.

use std::fs::{self, DirEntry, FileType};
use std::os::unix::fs::FileTypeExt;
use std::path::{Component, Path};

use omni_config::node::Snapshots;
use omni_config::{ByteSize, ModelName};
use omni_snapshot::digest::{is_below_ignored, is_ignored};

use super::Finding;
use crate::human::size;

/// Findings about files; more of them would say nothing new.
const LISTED: usize = 50;

/// What was seen so far.
struct Walk<'a> {
    root: &'a Path,
    findings: Vec<Finding>,
    entries: u64,
    bytes: u64,
}

/// The directory's own name is the last part of the model's.
pub(super) fn check_name(dir: &Path) -> Vec<Finding> {
    let absolute = fs::canonicalize(dir).ok();
    let Some(name) = absolute.as_deref().and_then(Path::file_name) else { return Vec::new() };
    let wrong = ModelName::from_path(Path::new(name)).err();
    let finding = |error| Finding::at(dir, None, format!("not a name for a model: {error}"), "rename the directory");
    wrong.map(finding).into_iter().collect()
}

pub(super) fn check(dir: &Path, bounds: &Snapshots) -> Vec<Finding> {
    let mut walk = Walk { root: dir, findings: Vec::new(), entries: 0, bytes: 0 };
    walk.directory(dir, u64::from(bounds.files));
    if walk.entries > u64::from(bounds.files) {
        let message = format!("more than {} files", bounds.files);
        walk.found(dir, message, "keep data sets and weights elsewhere; a node's limit is `snapshots.files`");
    }
    if ByteSize::from_bytes(walk.bytes) > bounds.bytes {
        let message = format!("the files have {} together, a node takes {}", size(walk.bytes), bounds.bytes);
        walk.found(dir, message, "sparse files count in full; a node's limit is `snapshots.bytes`");
    }
    walk.findings
}

impl Walk<'_> {
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
        let mut kept: Vec<DirEntry> = entries.into_iter().filter(is_kept).collect();
        kept.sort_by_key(DirEntry::file_name);
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

/// Whether the node's copy has it.
fn is_kept(entry: &DirEntry) -> bool {
    !is_ignored(entry.file_name().as_encoded_bytes())
}

/// Whether the path of a link at `link` (below the root) never climbs above the root on its way.
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
