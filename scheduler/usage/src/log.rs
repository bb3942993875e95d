//! Log: files of records on the disk, one record a line, in the order in which they ended.
//!
//! A file is named by the time at which it was begun, and locked by the process that writes it. It is ended by its size,
//! or with its process, and is never written again. The oldest files go when all together are too large; those that a
//! sink has not taken go with them only where the node may lose records.
//!
//! ```text
//!   begin ──▶ written ──full, or the process ends──▶ ended ──handed over, or without a sink──▶ removed for room
//! ```

use crate::cursor::Cursors;
use crate::spool::{files_in, private_folder};
use nix::fcntl::{Flock, FlockArg};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Bytes after which a file is ended.
pub(crate) const FILE_BYTES: u64 = 32 << 20;
/// Ending of files.
const ENDING: &str = ".jsonl";
/// Bytes that are read at a time.
const PORTION: usize = 256 << 10;

/// Log of this process, in a folder that it shares with earlier and later ones.
#[derive(Debug)]
pub(crate) struct Log {
    dir: PathBuf,
    /// Most bytes of all files together.
    keep: u64,
    current: Option<Current>,
    /// Number of files so far.
    files: u32,
}

#[derive(Debug)]
struct Current {
    /// Locked: nobody removes it.
    file: Flock<File>,
    bytes: u64,
}

impl Log {
    pub(crate) fn open(dir: &Path, keep: u64) -> io::Result<Self> {
        private_folder(dir)?;
        Ok(Self { dir: dir.to_owned(), keep, current: None, files: 0 })
    }

    /// Appends records. After an error none of them is there, as far as the file system still allows that.
    pub(crate) fn append(&mut self, records: &[u8]) -> io::Result<()> {
        if self.current.as_ref().is_some_and(|current| current.bytes >= FILE_BYTES) {
            self.end()?;
        }
        let current = match &mut self.current {
            Some(current) => current,
            None => {
                self.files += 1;
                self.current.insert(begin(&self.dir, self.files)?)
            }
        };
        if let Err(error) = current.file.write_all(records) {
            let _ = current.file.set_len(current.bytes); // the error counts
            return Err(error);
        }
        current.bytes += records.len() as u64;
        Ok(())
    }

    /// Flushes what was appended to the disk.
    pub(crate) fn flush(&self) -> io::Result<()> {
        self.current.as_ref().map_or(Ok(()), |current| current.file.sync_data())
    }

    /// Ends the file; the next record begins another.
    pub(crate) fn end(&mut self) -> io::Result<()> {
        self.flush()?;
        self.current = None;
        Ok(())
    }

    /// Removes the oldest files while all together are larger than allowed, except for those that a sink still needs.
    /// Returns whether they are small enough then. `handed_over`: how far a sink has taken them; `None` without a sink.
    pub(crate) fn make_room(&self, handed_over: Option<&Cursors>) -> io::Result<bool> {
        self.remove_oldest(|path, bytes| handed_over.is_none_or(|cursors| cursors.of(path) >= bytes))
    }

    /// Removes the oldest files while all together are larger than allowed. Returns how many records a sink has not taken
    /// of them.
    pub(crate) fn lose(&self, handed_over: &Cursors) -> io::Result<u64> {
        let mut lost = 0;
        self.remove_oldest(|path, _| {
            lost += lines_after(path, handed_over.of(path)).unwrap_or(0);
            true
        })?;
        Ok(lost)
    }

    /// Removes ended files that `may_go`, by path and size, while all together are larger than allowed. Returns whether
    /// they are small enough then.
    fn remove_oldest(&self, mut may_go: impl FnMut(&Path, u64) -> bool) -> io::Result<bool> {
        let mut files = Vec::new();
        for path in records_in(&self.dir)? {
            let bytes = fs::metadata(&path)?.len();
            files.push((path, bytes));
        }
        let mut total: u64 = files.iter().map(|(_, bytes)| bytes).sum();
        for (path, bytes) in files {
            if total <= self.keep {
                break;
            }
            if !is_locked(&path) && may_go(&path, bytes) {
                fs::remove_file(&path)?;
                total -= bytes;
            }
        }
        Ok(total <= self.keep)
    }
}

/// Number of lines after so many bytes.
fn lines_after(path: &Path, bytes: u64) -> io::Result<u64> {
    let mut file = File::open(path)?;
    file.seek(SeekFrom::Start(bytes))?;
    let (mut buffer, mut lines) = (vec![0; PORTION], 0);
    loop {
        let read = file.read(&mut buffer)?;
        if read == 0 {
            return Ok(lines);
        }
        lines += buffer[..read].iter().filter(|byte| **byte == b'\n').count() as u64;
    }
}

/// Begins a file. Its name is unique among those of all processes, and in the order of time among those of one.
fn begin(dir: &Path, number: u32) -> io::Result<Current> {
    loop {
        let begun = unix_ms_of(SystemTime::now());
        let path = dir.join(format!("{begun:013}-{number:05}-{:04x}{ENDING}", fastrand::u16(..)));
        let file = match OpenOptions::new().append(true).create_new(true).mode(0o600).open(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
            file => file?,
        };
        let file = Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, error)| io::Error::from(error))?;
        File::open(dir)?.sync_all()?;
        return Ok(Current { file, bytes: 0 });
    }
}

/// Milliseconds since the Unix epoch.
pub(crate) fn unix_ms_of(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Returns whether a process still writes a file.
pub(crate) fn is_locked(path: &Path) -> bool {
    File::open(path).is_ok_and(|file| Flock::lock(file, FlockArg::LockSharedNonblock).is_err())
}

/// Files of a log, in the order in which they were begun.
pub(crate) fn records_in(dir: &Path) -> io::Result<Vec<PathBuf>> {
    files_in(dir, ENDING)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(dir: &Path, keep: u64) -> Log {
        Log::open(dir, keep).unwrap()
    }

    /// Appends lines as an ended file.
    fn ended(log: &mut Log, line: &str, count: usize) {
        log.append(line.repeat(count).as_bytes()).unwrap();
        log.end().unwrap();
    }

    #[test]
    fn the_oldest_files_go_first_and_those_that_a_sink_needs_stay() {
        let dir = tempfile::tempdir().unwrap();
        let mut all = log(dir.path(), 1000);
        (0..4).for_each(|_| ended(&mut all, "123456789\n", 30));
        let files = || records_in(dir.path()).unwrap();
        let first = files();
        let mut cursors = Cursors::default();
        assert!(!all.make_room(Some(&cursors)).unwrap());
        assert_eq!(files(), first, "the sink has taken nothing");
        cursors.advance(&first[1], 300);
        assert!(all.make_room(Some(&cursors)).unwrap());
        assert_eq!(files(), [&first[..1], &first[2..]].concat());
        ended(&mut all, "123456789\n", 60);
        cursors.advance(&first[0], 100);
        assert_eq!(all.lose(&cursors).unwrap(), 20 + 30, "lines after the cursors of two files");
        assert!(all.make_room(None).unwrap());
        assert_eq!(files().len(), 2);
    }

    #[test]
    fn a_file_that_is_written_stays() {
        let dir = tempfile::tempdir().unwrap();
        let (mut writer, other) = (log(dir.path(), 10), log(dir.path(), 10));
        writer.append(b"1234567890\n").unwrap();
        assert!(!other.make_room(None).unwrap() && !writer.make_room(None).unwrap());
        assert_eq!(records_in(dir.path()).unwrap().len(), 1);
        writer.end().unwrap();
        assert!(other.make_room(None).unwrap());
        assert_eq!(records_in(dir.path()).unwrap().len(), 0);
    }
}
