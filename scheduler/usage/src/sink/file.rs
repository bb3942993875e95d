//! A file as a sink. It is opened for each batch, so that it may be moved away at any time.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Checks that the file can be written, and makes it where it is missing.
pub(super) fn check(path: &Path) -> io::Result<()> {
    open(path).map(drop)
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).append(true).create(true).mode(0o640).open(path)
}

/// Appends lines, and flushes them to the disk.
pub(super) fn append(path: &Path, lines: &[u8]) -> io::Result<()> {
    let mut file = open(path)?;
    if !ends_a_line(&mut file)? {
        file.write_all(b"\n")?; // half a batch of a process that was killed: it comes again
    }
    file.write_all(lines)?;
    file.sync_data()
}

fn ends_a_line(file: &mut File) -> io::Result<bool> {
    if file.seek(SeekFrom::End(0))? == 0 {
        return Ok(true);
    }
    file.seek(SeekFrom::End(-1))?;
    let mut last = [0];
    file.read_exact(&mut last)?;
    Ok(last == *b"\n")
}
