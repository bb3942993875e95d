//! Record of a file system's operations, and what a power failure leaves of it.
//!
//! What counts as flushed is the strict reading of POSIX: a file's content by `fsync` of the file, its name by `fsync`
//! of the folder. Unflushed writes may reach the disk in any order and in part; names of one folder in their order.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex};

pub(crate) const ROOT: u64 = 1;
/// Unit that a disk writes as a whole.
const SECTOR: usize = 512;

#[derive(Debug, Clone)]
pub(crate) enum Op {
    Write {
        ino: u64,
        offset: usize,
        data: Vec<u8>,
    },
    Truncate {
        ino: u64,
        size: usize,
    },
    Sync {
        ino: u64,
    },
    Name {
        dir: u64,
        change: Change,
    },
    SyncDir {
        dir: u64,
    },
    /// The answer has to hold from now on.
    Promise(Promise),
}

#[derive(Debug, Clone)]
pub(crate) enum Change {
    Add { name: String, node: Node },
    Remove { name: String },
    Rename { from: String, to: String },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Node {
    File(u64),
    Dir(u64),
}

/// Answer of the store. The workload's process says it to the file system as the name of a folder that it creates: so
/// its place among the operations is exact.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum Promise {
    File { id: String, bytes: usize },
    Deleted { id: String },
    Batch { id: String },
    Attempt { item: u32, attempt: u32 },
    Result { item: u32 },
    Ended,
}

const PROMISE: &str = "promise ";

impl Promise {
    pub(crate) fn to_name(&self) -> String {
        format!("{PROMISE}{}", serde_json::to_string(self).unwrap())
    }

    pub(crate) fn from_name(name: &str) -> Option<Self> {
        name.strip_prefix(PROMISE).map(|text| serde_json::from_str(text).unwrap())
    }
}

impl Op {
    /// Returns true for operations after which something is flushed or named otherwise.
    pub(crate) fn is_ordering(&self) -> bool {
        matches!(self, Self::Sync { .. } | Self::SyncDir { .. } | Self::Name { .. })
    }
}

/// Record that the file system writes into.
#[derive(Debug, Clone, Default)]
pub(crate) struct Trace(Arc<Mutex<Vec<Op>>>);

impl Trace {
    pub(crate) fn push(&self, op: Op) {
        self.0.lock().unwrap().push(op);
    }

    pub(crate) fn ops(&self) -> Vec<Op> {
        self.0.lock().unwrap().clone()
    }
}

/// Lot of what was not flushed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    Lost,
    Kept,
    /// Any of the sectors, and names up to any point.
    Torn,
}

#[derive(Debug, Default)]
struct Content {
    flushed: Vec<u8>,
    pending: Vec<Op>,
}

#[derive(Debug, Default)]
struct Names {
    flushed: BTreeMap<String, Node>,
    pending: Vec<Change>,
}

/// State of the disk and of its caches after a number of operations.
#[derive(Debug, Default)]
pub(crate) struct Replay {
    files: BTreeMap<u64, Content>,
    dirs: BTreeMap<u64, Names>,
    pub(crate) promises: BTreeSet<Promise>,
}

impl Replay {
    pub(crate) fn apply(&mut self, op: &Op) {
        match op {
            Op::Write { ino, .. } | Op::Truncate { ino, .. } => {
                self.files.entry(*ino).or_default().pending.push(op.clone());
            }
            Op::Sync { ino } => {
                let content = self.files.entry(*ino).or_default();
                for op in std::mem::take(&mut content.pending) {
                    perform(&mut content.flushed, &op, |_| true);
                }
            }
            Op::Name { dir, change } => self.dirs.entry(*dir).or_default().pending.push(change.clone()),
            Op::SyncDir { dir } => {
                let names = self.dirs.entry(*dir).or_default();
                for change in std::mem::take(&mut names.pending) {
                    rename(&mut names.flushed, &change);
                }
            }
            Op::Promise(promise) => drop(self.promises.insert(promise.clone())),
        }
    }

    /// Writes what is left after a power failure now.
    pub(crate) fn write_to(&self, target: &Path, fate: Fate) {
        self.write_dir(ROOT, target, fate);
    }

    fn write_dir(&self, dir: u64, target: &Path, fate: Fate) {
        std::fs::create_dir_all(target).unwrap();
        let Some(names) = self.dirs.get(&dir) else { return };
        let kept = match fate {
            Fate::Lost => 0,
            Fate::Kept => names.pending.len(),
            Fate::Torn => fastrand::usize(..=names.pending.len()),
        };
        let mut entries = names.flushed.clone();
        for change in &names.pending[..kept] {
            rename(&mut entries, change);
        }
        for (name, node) in entries {
            let path = target.join(name);
            match node {
                Node::Dir(ino) => self.write_dir(ino, &path, fate),
                Node::File(ino) => std::fs::write(path, self.content(ino, fate)).unwrap(),
            }
        }
    }

    fn content(&self, ino: u64, fate: Fate) -> Vec<u8> {
        let Some(content) = self.files.get(&ino) else { return Vec::new() };
        let mut bytes = content.flushed.clone();
        // Some files lose little and others much.
        let share = fastrand::f64();
        for op in &content.pending {
            perform(&mut bytes, op, |_| match fate {
                Fate::Lost => false,
                Fate::Kept => true,
                Fate::Torn => fastrand::f64() < share,
            });
        }
        bytes
    }
}

/// Performs a write or a truncation, sector by sector.
fn perform(bytes: &mut Vec<u8>, op: &Op, mut reaches: impl FnMut(usize) -> bool) {
    match op {
        Op::Write { offset, data, .. } => {
            let mut begin = 0;
            while begin < data.len() {
                let at = offset + begin;
                let length = (SECTOR - at % SECTOR).min(data.len() - begin);
                if reaches(at / SECTOR) {
                    if bytes.len() < at + length {
                        bytes.resize(at + length, 0);
                    }
                    bytes[at..at + length].copy_from_slice(&data[begin..begin + length]);
                }
                begin += length;
            }
        }
        Op::Truncate { size, .. } if reaches(0) => bytes.resize(*size, 0),
        _ => {}
    }
}

fn rename(names: &mut BTreeMap<String, Node>, change: &Change) {
    match change {
        Change::Add { name, node } => drop(names.insert(name.clone(), *node)),
        Change::Remove { name } => drop(names.remove(name)),
        Change::Rename { from, to } => {
            if let Some(node) = names.remove(from) {
                names.insert(to.clone(), node);
            }
        }
    }
}

#[test]
fn only_what_was_flushed_is_sure_to_be_left() {
    let write = |offset, text: &str| Op::Write { ino: 2, offset, data: text.as_bytes().to_vec() };
    let add = |name: &str| Op::Name { dir: ROOT, change: Change::Add { name: name.into(), node: Node::File(2) } };
    let ops = [write(0, "old"), Op::Sync { ino: 2 }, add("a"), Op::SyncDir { dir: ROOT }, write(0, "new"), add("b")];
    let mut replay = Replay::default();
    ops.iter().for_each(|op| replay.apply(op));
    let left = |fate| {
        let dir = tempfile::tempdir().unwrap();
        replay.write_to(dir.path(), fate);
        ["a", "b"].map(|name| std::fs::read_to_string(dir.path().join(name)).ok())
    };
    let some = |text: &str| Some(text.to_owned());
    assert_eq!(left(Fate::Lost), [some("old"), None]);
    assert_eq!(left(Fate::Kept), [some("new"), some("new")]);
    let torn: BTreeSet<_> = (0..200).map(|_| left(Fate::Torn)).collect();
    assert!(torn.len() >= 4, "{torn:?}");
}
