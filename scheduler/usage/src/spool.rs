//! Spool: segments in the runtime directory, in memory, that records are written to before the last byte of an answer
//! leaves.
//!
//! A write to the disk can wait for the disk: for a journal, or for the kernel to write back what a model has written. A
//! store to memory does not, and what it stored is there when the process is killed. The [mover](super::recorder) takes
//! whole [segments](super::segment) from here to the [log](super::log) on the disk.
//!
//! ```text
//!   append ──▶ current ──full──▶ full ones ──take──▶ taken ──moved──▶ spare ──▶ current
//!                 └───────────────take───────────────▶
//! ```
//!
//! Each process has a folder of its own, which it locks. A folder without a lock belongs to a process that is gone: its
//! records are taken, too.
//!
//! Invariant: what lies here is bounded, moved or not.

use crate::segment::{self, SEGMENT, Segment};
use nix::fcntl::{Flock, FlockArg};
use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Most segments with records in the spool of one process.
const MOST: usize = 64;
/// Most bytes in the spool of one process.
pub(crate) const MOST_BYTES: usize = MOST * SEGMENT.get();
/// Moved segments that are kept for the next records.
const SPARE: usize = 2;
/// Name of the locked file in a process's folder.
const LOCK: &str = "lock";
/// Ending of segments.
const ENDING: &str = ".segment";

/// Spool of this process.
#[derive(Debug)]
pub(crate) struct Spool {
    dir: PathBuf,
    /// Held as long as the process lives.
    _lock: Flock<File>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Segment that records are appended to.
    current: Option<Segment>,
    /// Segments without room, the oldest first.
    full: VecDeque<Segment>,
    spare: Vec<Segment>,
    /// Number of segments so far, each use of one counted.
    begun: u64,
    /// Segments with records that were not moved.
    unmoved: usize,
    /// Records so far.
    records: u64,
    /// Bytes that were not moved.
    bytes: usize,
}

/// Effect of a record on the spool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Appended {
    /// Others wait for the mover already.
    Beside,
    /// Nothing waited before it.
    First,
    /// A segment is full.
    Filled,
}

/// Folder of a process that is gone, locked until this is dropped.
#[derive(Debug)]
pub(crate) struct Left {
    dir: PathBuf,
    _lock: Flock<File>,
}

/// A record that was not written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotWritten {
    /// The spool is full, as the disk does not take what lies in it.
    #[error("{MOST_BYTES} bytes of usage records wait for the disk")]
    Full,
    /// The record is longer than a segment.
    #[error("it has {0} bytes")]
    TooLong(usize),
    /// The file system failed.
    #[error("the runtime directory cannot be written")]
    Io(#[from] io::Error),
}

impl Spool {
    /// The spool of this process, in a new folder of `parent`.
    pub(crate) fn open(parent: &Path) -> io::Result<Self> {
        // A process that looks for folders of the dead locks them; one that it took before our lock is gone.
        loop {
            private_folder(parent)?;
            let dir = parent.join(format!("{:016x}", fastrand::u64(..)));
            private_folder(&dir)?;
            let lock = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(dir.join(LOCK));
            let lock = match lock {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                lock => lock?,
            };
            match Flock::lock(lock, FlockArg::LockExclusiveNonblock) {
                Ok(lock) if dir.join(LOCK).exists() => return Ok(Self { dir, _lock: lock, state: Mutex::default() }),
                Ok(_) | Err(_) => {}
            }
        }
    }

    /// Appends a record.
    pub(crate) fn append(&self, record: &[u8]) -> Result<Appended, NotWritten> {
        let mut state = self.state();
        let written = state.current.as_mut().map(|current| current.append(record));
        let appended = match written {
            Some(true) => Appended::Beside,
            Some(false) => Appended::Filled,
            None => Appended::First,
        };
        if appended != Appended::Beside {
            if record.len() > segment::ROOM {
                return Err(NotWritten::TooLong(record.len()));
            }
            let full = state.current.take();
            state.full.extend(full);
            let mut next = self.begin(&mut state)?;
            next.append(record);
            state.current = Some(next);
        }
        state.records += 1;
        state.bytes += record.len();
        Ok(appended)
    }

    /// A segment without records.
    fn begin(&self, state: &mut State) -> Result<Segment, NotWritten> {
        if state.unmoved == MOST {
            return Err(NotWritten::Full);
        }
        let number = state.begun + 1;
        let segment = match state.spare.pop() {
            Some(mut spare) => {
                spare.clear(number);
                spare
            }
            None => Segment::create(self.dir.join(format!("{number:08}{ENDING}")), number)?,
        };
        state.begun = number;
        state.unmoved += 1;
        Ok(segment)
    }

    /// Records that were written, and bytes that were not moved.
    pub(crate) fn counts(&self) -> (u64, usize) {
        let state = self.state();
        (state.records, state.bytes)
    }

    /// Number of segments that were not moved.
    pub(crate) fn unmoved(&self) -> usize {
        self.state().unmoved
    }

    /// Takes the oldest segment; `None` if there are no records.
    pub(crate) fn take(&self) -> Option<Segment> {
        let mut state = self.state();
        state.full.pop_front().or_else(|| state.current.take())
    }

    /// Keeps a segment that was moved for later records, or removes it.
    pub(crate) fn on_moved(&self, mut segment: Segment) -> io::Result<()> {
        let mut state = self.state();
        state.bytes -= segment.records().len();
        state.unmoved -= 1;
        segment.clear(0); // whoever finds it there finds no records
        if state.spare.len() < SPARE {
            state.spare.push(segment);
            return Ok(());
        }
        drop(state);
        segment.remove()
    }

    /// Takes the folders that processes left which are gone.
    pub(crate) fn take_left(&self) -> io::Result<Vec<Left>> {
        let Some(parent) = self.dir.parent() else { return Ok(Vec::new()) };
        let mut left = Vec::new();
        for entry in fs::read_dir(parent)? {
            let dir = entry?.path();
            if dir == self.dir {
                continue;
            }
            let Ok(lock) = File::open(dir.join(LOCK)) else {
                let _ = fs::remove_dir(&dir); // begun or removed by halves; one with records has its lock
                continue;
            };
            let Ok(lock) = Flock::lock(lock, FlockArg::LockExclusiveNonblock) else { continue };
            left.push(Left { dir, _lock: lock });
        }
        Ok(left)
    }

    /// Locks the state, which is consistent after every change.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Left {
    /// Records of each segment, in their order.
    pub(crate) fn records(&self) -> io::Result<Vec<Vec<u8>>> {
        let segments = files_in(&self.dir, ENDING)?;
        let mut segments = segments.iter().map(|path| segment::read(path)).collect::<io::Result<Vec<_>>>()?;
        segments.sort_by_key(|(number, _)| *number);
        Ok(segments.into_iter().map(|(_, records)| records).collect())
    }

    /// Removes the folder, whose records were moved.
    pub(crate) fn on_moved(self) -> io::Result<()> {
        files_in(&self.dir, ENDING)?.iter().try_for_each(fs::remove_file)?;
        remove(&self.dir);
        Ok(())
    }
}

impl Drop for Spool {
    /// Removes the folder, unless there is something in it that was not moved, and the one above it if it was the last.
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        for spare in state.spare.drain(..) {
            let _ = spare.remove(); // what is left is removed later
        }
        if files_in(&self.dir, ENDING).is_ok_and(|segments| segments.is_empty()) {
            remove(&self.dir);
            let _ = self.dir.parent().map(fs::remove_dir); // another process may have its folder there
        }
    }
}

/// Removes the folder of a process, without records.
fn remove(dir: &Path) {
    let _ = fs::remove_file(dir.join(LOCK)).and_then(|()| fs::remove_dir(dir)); // what is left is removed later
}

/// Makes a folder, and those above it, that nobody else may read.
pub(crate) fn private_folder(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Files of a folder with this ending, in the order of their names.
pub(crate) fn files_in(dir: &Path, ending: &str) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.to_str().is_some_and(|path| path.ends_with(ending)) {
            files.push(path);
        }
    }
    files.sort_unstable();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segment::ROOM;

    fn open(parent: &Path) -> Spool {
        Spool::open(parent).unwrap()
    }

    #[test]
    fn what_was_taken_is_whole_and_the_next_record_begins_a_segment() {
        let dir = tempfile::tempdir().unwrap();
        let spool = open(dir.path());
        assert!(spool.take().is_none());
        for _ in 0..5 {
            assert_eq!(spool.append(b"a\n").unwrap(), Appended::First);
            assert_eq!(spool.append(b"b\n").unwrap(), Appended::Beside);
            let first = spool.take().unwrap();
            assert_eq!(spool.append(b"c\n").unwrap(), Appended::First);
            let second = spool.take().unwrap();
            assert_eq!((first.records(), second.records()), (&b"a\nb\n"[..], &b"c\n"[..]));
            assert_eq!((spool.counts().1, spool.unmoved()), (6, 2));
            spool.on_moved(first).unwrap();
            spool.on_moved(second).unwrap();
            assert_eq!((spool.counts().1, spool.unmoved()), (0, 0));
            assert_eq!(files_in(&spool.dir, ENDING).unwrap().len(), 2, "they are used again");
        }
        assert_eq!(spool.counts().0, 15);
    }

    #[test]
    fn records_beyond_the_bound_are_refused_until_some_were_moved() {
        let dir = tempfile::tempdir().unwrap();
        let spool = open(dir.path());
        let record = vec![b'x'; ROOM];
        for number in 0..MOST {
            let expected = if number == 0 { Appended::First } else { Appended::Filled };
            assert_eq!(spool.append(&record).unwrap(), expected);
        }
        for record in [&record[..], b"x\n"] {
            assert!(matches!(spool.append(record), Err(NotWritten::Full)));
        }
        assert!(matches!(spool.append(&vec![b'x'; ROOM + 1]), Err(NotWritten::TooLong(_))));
        let taken = spool.take().unwrap();
        assert!(matches!(spool.append(b"x\n"), Err(NotWritten::Full)), "taken and moved are two things");
        spool.on_moved(taken).unwrap();
        spool.append(b"x\n").unwrap();
        let lengths: Vec<_> = std::iter::from_fn(|| spool.take()).map(|segment| segment.records().len()).collect();
        assert_eq!(lengths, [vec![ROOM; MOST - 1], vec![2]].concat(), "in their order");
    }

    #[test]
    fn a_living_process_keeps_its_records_and_a_dead_one_leaves_them_in_their_order() {
        let dir = tempfile::tempdir().unwrap();
        let (old, new) = (open(dir.path()), open(dir.path()));
        let append = |record: &[u8]| assert!(old.append(record).is_ok());
        append(b"moved\n");
        let (moved, half) = (old.take().unwrap(), vec![b'x'; ROOM / 2 + 1]);
        (0..2).for_each(|_| append(&half));
        old.on_moved(moved).unwrap();
        append(&half); // into the segment that was begun first
        assert_eq!(new.take_left().unwrap().len(), 0);
        drop(old);
        let mut left = new.take_left().unwrap();
        assert_eq!(open(dir.path()).take_left().unwrap().len(), 0, "one process takes them");
        let left = left.pop().unwrap();
        assert!(left.records().unwrap() == vec![half; 3]);
        left.on_moved().unwrap();
        assert_eq!(new.take_left().unwrap().len(), 0);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "its folder is gone");
        drop(new);
        assert!(!dir.path().exists(), "and with the last one, that of all");
    }
}
