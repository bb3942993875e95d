//! Segments: files of a spool that are mapped into memory, so that a record is written without a system call.
//!
//! ```text
//!   number: u64 │ length: u64 │ whole records, `length` bytes │ room
//! ```
//!
//! The kernel keeps stores to a shared mapping of a file, as it keeps written bytes: a killed process loses none of them.
//!
//! Invariants:
//! - the length is stored after the records that it counts: a kill in between leaves whole records alone;
//! - the file has its blocks before it is mapped, and nobody cuts it: no store finds the file system full.

#![allow(unsafe_code, reason = "a mapping of a file is memory that the compiler does not know")]

use nix::errno::Errno;
use nix::fcntl::posix_fallocate;
use nix::libc::off_t;
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use std::ffi::c_void;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::num::NonZeroUsize;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a segment. A few of them stay in the processor's cache.
pub(crate) const SEGMENT: NonZeroUsize = NonZeroUsize::new(256 << 10).unwrap();
/// Bytes before the records.
const HEADER: usize = size_of::<Header>();
/// Most bytes of records in a segment.
pub(crate) const ROOM: usize = SEGMENT.get() - HEADER;

/// Begin of the file, in the byte order of the machine: it does not outlive the machine's memory.
#[derive(Debug)]
#[repr(C)]
struct Header {
    /// Place among the segments of a process.
    number: AtomicU64,
    /// Bytes of whole records.
    length: AtomicU64,
}

/// Segment that this process writes.
#[derive(Debug)]
pub(crate) struct Segment {
    path: PathBuf,
    /// Begin of the mapping, of `SEGMENT` bytes.
    start: NonNull<c_void>,
    length: usize,
}

// SAFETY: The mapping belongs to this value alone, wherever it is.
unsafe impl Send for Segment {}

impl Segment {
    /// Creates a segment without records.
    pub(crate) fn create(path: PathBuf, number: u64) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
        let mapped = allocate(&file).and_then(|()| map(&file));
        let start = mapped.inspect_err(|_| drop(fs::remove_file(&path)))?; // the error counts
        let segment = Self { path, start, length: 0 };
        segment.header().number.store(number, Ordering::Relaxed);
        Ok(segment)
    }

    /// Empties a segment, which gets another number.
    pub(crate) fn clear(&mut self, number: u64) {
        self.length = 0;
        self.header().length.store(0, Ordering::Release);
        self.header().number.store(number, Ordering::Release);
    }

    /// Appends a record; `false` if there is no room.
    pub(crate) fn append(&mut self, record: &[u8]) -> bool {
        let Some(room) = self.room().get_mut(..record.len()) else { return false };
        room.copy_from_slice(record);
        self.length += record.len();
        // Released: the compiler may not move it before the copy, and a kill is between two instructions.
        self.header().length.store(self.length as u64, Ordering::Release);
        true
    }

    /// The records.
    pub(crate) fn records(&self) -> &[u8] {
        // SAFETY: So many bytes after the header are mapped and written, and `append` needs the value for itself.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().cast::<u8>().wrapping_add(HEADER), self.length) }
    }

    /// Removes the file.
    pub(crate) fn remove(&self) -> io::Result<()> {
        fs::remove_file(&self.path)
    }

    fn room(&mut self) -> &mut [u8] {
        let start = self.start.as_ptr().cast::<u8>().wrapping_add(HEADER + self.length);
        // SAFETY: The bytes up to the end of the mapping, readable and writable, while the value is borrowed for it.
        unsafe { std::slice::from_raw_parts_mut(start, ROOM - self.length) }
    }

    fn header(&self) -> &Header {
        // SAFETY: A mapping begins at a page, and any bytes are a header. Nothing else refers to them.
        unsafe { self.start.cast::<Header>().as_ref() }
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: The mapping is of this length and belongs to this value, which nobody borrows any more.
        let _ = unsafe { munmap(self.start, SEGMENT.get()) }; // it cannot fail
    }
}

fn allocate(file: &File) -> nix::Result<()> {
    loop {
        match posix_fallocate(file, 0, SEGMENT.get() as off_t) {
            Err(Errno::EINTR) => {}
            done => return done,
        }
    }
}

fn map(file: &File) -> nix::Result<NonNull<c_void>> {
    let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    // SAFETY: A new mapping at a place of the kernel's choice changes no memory that is in use.
    unsafe { mmap(None, SEGMENT, access, MapFlags::MAP_SHARED, file, 0) }
}

/// Number and records of a segment of a process that is gone.
pub(crate) fn read(path: &Path) -> io::Result<(u64, Vec<u8>)> {
    let mut bytes = Vec::new();
    File::open(path)?.take(SEGMENT.get() as u64).read_to_end(&mut bytes)?;
    let field = |at: usize| {
        let bytes = bytes.get(at..at + 8)?;
        Some(u64::from_ne_bytes(bytes.try_into().ok()?))
    };
    // Without a header, the process was killed before the first record.
    let (Some(number), Some(length)) = (field(0), field(8)) else { return Ok((0, Vec::new())) };
    let end = HEADER.saturating_add(usize::try_from(length).unwrap_or(usize::MAX));
    bytes.truncate(end);
    bytes.drain(..HEADER);
    Ok((number, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_was_appended_is_in_the_file_at_once(
            rounds in prop::collection::vec(prop::collection::vec((any::<u8>(), 0_usize..90_000), 0..9), 1..4),
        ) {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("segment");
            let mut segment = Segment::create(path.clone(), 0).unwrap();
            for (number, records) in (1..).zip(rounds) {
                segment.clear(number);
                prop_assert_eq!(read(&path).unwrap(), (number, Vec::new()));
                let mut expected = Vec::new();
                for (byte, length) in records {
                    let record = vec![byte; length];
                    let fits = expected.len() + record.len() <= ROOM;
                    prop_assert_eq!(segment.append(&record), fits);
                    if fits {
                        expected.extend_from_slice(&record);
                    }
                    prop_assert!(segment.records() == expected);
                    prop_assert!(read(&path).unwrap() == (number, expected.clone()));
                }
            }
        }

        #[test]
        fn any_file_can_be_read(bytes in prop::collection::vec(any::<u8>(), 0..64), cut in 0_usize..64) {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("segment");
            fs::write(&path, &bytes[..cut.min(bytes.len())]).unwrap();
            prop_assert!(read(&path).unwrap().1.len() <= 48);
        }
    }

    #[test]
    fn a_record_after_the_length_was_not_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("segment");
        let mut segment = Segment::create(path.clone(), 7).unwrap();
        assert!(segment.append(b"whole\n"));
        segment.room()[..4].copy_from_slice(b"half");
        drop(segment);
        assert_eq!(read(&path).unwrap(), (7, b"whole\n".to_vec()));
    }

    #[test]
    fn a_segment_that_the_file_system_has_no_room_for_is_not_there() {
        let dir = tempfile::tempdir().unwrap();
        let error = Segment::create(dir.path().join("none/segment"), 1).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        assert!(Segment::create(dir.path().join("segment"), 1).is_ok());
        assert!(Segment::create(dir.path().join("segment"), 1).is_err(), "it is another's");
    }
}
