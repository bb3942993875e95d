//! The content of one file: opened as it was listed, copied with its holes, hashed.

use crate::SnapshotError;
use crate::beneath::open_beneath;
use crate::progress::{Progress, Source};
use crate::status::kind_of;
use crate::tree::{Entry, FileEntry, Identity};
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::stat::{SFlag, fstat};
use nix::unistd::{Whence, lseek};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::Path;

const BUFFER: usize = 128 * 1024;
/// Bytes that are copied between two steps.
const PIECE: u64 = 32 << 20;

/// Opens what was listed, and no other file: a directory on its way could have been exchanged for another, which the second
/// listing does not show once it is back. Should it be a FIFO by now, `O_NONBLOCK` does not wait for it.
pub(crate) fn open_listed(source: Source<'_>, entry: &Entry, file: &FileEntry) -> Result<File, SnapshotError> {
    source.progress.step()?;
    let path = &entry.path;
    let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let fd = open_beneath(source.root, entry.place(), flags).map_err(SnapshotError::source_at("open", path))?;
    let stat = fstat(&fd).map_err(SnapshotError::source_at("look at", path))?;
    let regular = kind_of(&stat) == SFlag::S_IFREG;
    if regular && Identity::of(&stat) == file.identity {
        Ok(fd.into())
    } else {
        Err(SnapshotError::Changing { path: path.to_owned() })
    }
}

/// Copies exactly `size` bytes into an empty file, so that a file that grows is not followed; that it grew is noticed by the
/// second listing. Holes stay holes, and a file system that can share the blocks of both does.
pub(crate) fn copy_content(
    from: &File,
    to: &File,
    size: u64,
    path: &Path,
    progress: &dyn Progress,
) -> Result<(), SnapshotError> {
    to.set_len(size).map_err(SnapshotError::store_at("write", path))?;
    let mut at = 0;
    while let Some((start, end)) = next_data(from, at, size) {
        at = end.min(start.saturating_add(PIECE));
        copy_range(from, to, start, at, path)?;
        progress.step()?;
    }
    Ok(())
}

/// The standard library has the kernel copy, which shares blocks or takes them from file to file.
fn copy_range(mut from: &File, mut to: &File, start: u64, end: u64, path: &Path) -> Result<(), SnapshotError> {
    from.seek(SeekFrom::Start(start)).map_err(|error| source_failed(&error, path))?;
    to.seek(SeekFrom::Start(start)).map_err(SnapshotError::store_at("write", path))?;
    match io::copy(&mut from.take(end - start), &mut to) {
        Ok(copied) if copied == end - start => Ok(()),
        Ok(_) => Err(SnapshotError::Changing { path: path.to_owned() }),
        Err(error) => match error.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => {
                Err(SnapshotError::store_at("write", path)(error))
            }
            _ => Err(source_failed(&error, path)),
        },
    }
}

/// The error of a read from the model's directory.
pub(crate) fn source_failed(error: &io::Error, path: &Path) -> SnapshotError {
    SnapshotError::source_at("read", path)(Errno::from_raw(error.raw_os_error().unwrap_or_default()))
}

/// The next range from `at` on that holds data, up to `size`. A file system that does not know holes has none.
fn next_data(file: &File, at: u64, size: u64) -> Option<(u64, u64)> {
    let seek = |at: u64, whence| lseek(file, i64::try_from(at).unwrap_or(i64::MAX), whence);
    let start = match seek(at, Whence::SeekData) {
        _ if at >= size => return None,
        Ok(start) => u64::try_from(start).unwrap_or(at),
        Err(Errno::ENXIO) => return None,
        Err(_) => return Some((at, size)),
    };
    let end = seek(start, Whence::SeekHole).ok().and_then(|end| u64::try_from(end).ok()).unwrap_or(size);
    (start < size).then_some((start, end.min(size)))
}

/// SHA-256 of the first `size` bytes; holes are not read.
pub(crate) fn hash_content(
    file: &File,
    size: u64,
    progress: &dyn Progress,
    failed: impl Fn(io::Error) -> SnapshotError,
) -> Result<[u8; 32], SnapshotError> {
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; BUFFER];
    let zeros = vec![0; BUFFER];
    let mut at = 0;
    while at < size {
        let (start, end) = next_data(file, at, size).unwrap_or((size, size));
        while at < start {
            progress.step()?;
            let most = usize::try_from(start - at).unwrap_or(BUFFER).min(BUFFER);
            hasher.update(zeros.get(..most).unwrap_or_default());
            at += most as u64;
        }
        while at < end {
            progress.step()?;
            let most = usize::try_from(end - at).unwrap_or(BUFFER).min(BUFFER);
            match file.read_at(buffer.get_mut(..most).unwrap_or_default(), at) {
                Ok(0) => return Err(failed(ErrorKind::UnexpectedEof.into())),
                Ok(read) => {
                    hasher.update(buffer.get(..read).unwrap_or_default());
                    at += read as u64;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(failed(error)),
            }
        }
    }
    Ok(hasher.finalize().into())
}
