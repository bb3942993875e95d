//! Files of results: one for each batch, to which records are appended; a row has a record's place and length.
//!
//! A group of commands collects its records in memory, writes them with one call for each file, and flushes them before
//! it commits. A file may be longer than its rows say, after a group that failed: the next group writes over the rest.

use crate::error::JobError;
use crate::files::Folder;
use crate::id::BatchId;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Files that are kept open between groups.
const MAX_OPEN: usize = 16;

/// Open files of the writer.
#[derive(Debug)]
pub(crate) struct ResultFiles {
    folder: Folder,
    open: HashMap<BatchId, Open>,
}

#[derive(Debug)]
struct Open {
    file: File,
    /// Records of this group, and where they begin.
    unwritten: Vec<u8>,
    begin: u64,
}

impl ResultFiles {
    pub(crate) fn new(folder: &Folder) -> Self {
        Self { folder: folder.clone(), open: HashMap::new() }
    }

    /// Adds a record to the group; `end` is where the rows of this file end. Returns where the record ends.
    pub(crate) fn append(&mut self, batch: BatchId, end: u64, record: &[u8]) -> Result<u64, JobError> {
        let open = match self.open.entry(batch) {
            std::collections::hash_map::Entry::Occupied(entry) => entry.into_mut(),
            std::collections::hash_map::Entry::Vacant(entry) => {
                let file = self.folder.open_results(batch).map_err(JobError::io("open the results of a batch"))?;
                entry.insert(Open { file, unwritten: Vec::new(), begin: end })
            }
        };
        if open.unwritten.is_empty() {
            open.begin = end;
        }
        // A command that was rolled back has left its record.
        open.unwritten.truncate(usize::try_from(end.saturating_sub(open.begin)).unwrap_or(usize::MAX));
        open.unwritten.extend_from_slice(record);
        Ok(end + record.len() as u64)
    }

    /// Bytes of this group.
    pub(crate) fn unwritten(&self) -> usize {
        self.open.values().map(|open| open.unwritten.len()).sum()
    }

    /// Puts the records of this group on the disk.
    pub(crate) fn write(&mut self) -> Result<(), JobError> {
        for open in self.open.values_mut().filter(|open| !open.unwritten.is_empty()) {
            open.write().map_err(JobError::io("write results"))?;
        }
        if self.open.len() > MAX_OPEN {
            self.open.clear();
        }
        Ok(())
    }

    /// Drops the records of a group that failed.
    pub(crate) fn discard(&mut self) {
        for open in self.open.values_mut() {
            open.unwritten = Vec::new();
        }
    }

    /// Closes the file of a batch that takes no more results.
    pub(crate) fn close(&mut self, batch: BatchId) {
        self.open.remove(&batch);
    }
}

impl Open {
    fn write(&mut self) -> io::Result<()> {
        let unwritten = std::mem::take(&mut self.unwritten);
        let written = self.file.write_all_at(&unwritten, self.begin).and_then(|()| self.file.sync_data());
        if written.is_err() {
            // Room for others, as far as a full disk took some of the records.
            let _ = self.file.set_len(self.begin); // else the next group writes over it
        }
        written
    }
}

#[test]
fn records_of_failed_groups_and_commands_are_written_over() {
    let dir = tempfile::tempdir().unwrap();
    let folder = Folder::create(dir.path()).unwrap();
    let mut files = ResultFiles::new(&folder);
    let (a, b) = (BatchId::new(), BatchId::new());
    let end = files.append(a, 0, b"one").unwrap();
    assert_eq!(files.append(a, end, b"rolled back").unwrap(), 14);
    assert_eq!(files.append(a, end, b"two").unwrap(), 6);
    files.append(b, 0, b"other").unwrap();
    assert_eq!(files.unwritten(), 11);
    files.write().unwrap();
    files.append(a, 6, b"failed group").unwrap();
    files.write().unwrap();
    files.append(a, 6, b"never written").unwrap();
    files.discard();
    files.append(a, 6, b"three").unwrap();
    files.write().unwrap();
    let read = |id: BatchId| std::fs::read(dir.path().join("results").join(id.to_string())).unwrap();
    assert_eq!(read(a), b"onetwothreed group");
    assert_eq!(read(b), b"other");
    files.close(a);
    for _ in 0..=MAX_OPEN {
        files.append(BatchId::new(), 0, b"x").unwrap();
    }
    files.write().unwrap();
    assert!(files.open.is_empty(), "descriptors are bounded");
}
