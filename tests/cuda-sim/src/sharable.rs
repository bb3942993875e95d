//! Memory that other processes can have too: files without a name, mapped where they are wanted.
//!
//! Backs memory handles (`cuMemCreate`), memory shared by IPC handles, and external memory. The file is the memory: it
//! lives as long as any process has it open or mapped.
#![allow(unsafe_code, reason = "memfd, mappings at fixed places, descriptors that programs hand over")]

use crate::backing::Region;
use crate::error::{Answer, Error};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::{CString, c_void};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::os::unix::fs::{FileExt, MetadataExt};

/// Beginning of all labels.
pub(crate) const LABEL: &str = "omni-cuda-sim";

/// A file that is memory.
#[derive(Debug)]
pub(crate) struct Sharable(File);

impl Sharable {
    /// Zeros. The label can be read from the descriptor, in every process: at most 200 bytes, without NUL.
    ///
    /// # Errors
    /// The host has no room for it.
    pub(crate) fn new(label: &str, bytes: u64) -> Result<Self, Error> {
        let name = CString::new(label).map_err(|_| Error::INVALID_VALUE)?;
        // SAFETY: a C string that lives through the call.
        let descriptor = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) };
        if descriptor < 0 {
            return Err(Error::OUT_OF_MEMORY);
        }
        // SAFETY: just made, and nobody else's.
        let file = unsafe { File::from_raw_fd(descriptor) };
        file.set_len(bytes).map_err(|_| Error::OUT_OF_MEMORY)?;
        Ok(Self(file))
    }

    /// File that a program passed. Its descriptor stays its own.
    ///
    /// # Errors
    /// When it is not open, or no file.
    pub(crate) fn of(descriptor: RawFd) -> Result<Self, Error> {
        // SAFETY: takes numbers only.
        let own = unsafe { libc::fcntl(descriptor, libc::F_DUPFD_CLOEXEC, 0) };
        if own < 0 {
            return Err(Error::INVALID_VALUE);
        }
        // SAFETY: just made, and nobody else's.
        Ok(Self(unsafe { File::from_raw_fd(own) }))
    }

    /// Takes a descriptor from the program, which gave it away.
    pub(crate) fn close(descriptor: RawFd) {
        // SAFETY: the program's own promise: the number is nobody else's any more.
        unsafe { libc::close(descriptor) };
    }

    /// Memory of another process, by its number there.
    pub(crate) fn open(pid: u32, descriptor: RawFd) -> io::Result<Self> {
        File::options().read(true).write(true).open(format!("/proc/{pid}/fd/{descriptor}")).map(Self)
    }

    /// A descriptor for the program to keep, and to close.
    pub(crate) fn hand_out(&self) -> Result<RawFd, Error> {
        // SAFETY: takes numbers only.
        let descriptor = unsafe { libc::fcntl(self.0.as_raw_fd(), libc::F_DUPFD_CLOEXEC, 0) };
        if descriptor < 0 { Err(Error::OUT_OF_MEMORY) } else { Ok(descriptor) }
    }

    /// The number at its beginning; 0 when it cannot be read.
    pub(crate) fn load(&self) -> u64 {
        let mut word = [0; 8];
        self.0.read_exact_at(&mut word, 0).map_or(0, |()| u64::from_le_bytes(word))
    }

    /// Writes the number at its beginning. A file of memory takes it, or the host has no memory left at all.
    pub(crate) fn store(&self, word: u64) {
        let _ = self.0.write_all_at(&word.to_le_bytes(), 0);
    }

    pub(crate) fn descriptor(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.0.metadata().map_or(0, |metadata| metadata.len())
    }

    /// Inode, the same in every process.
    pub(crate) fn inode(&self) -> u64 {
        self.0.metadata().map_or(0, |metadata| metadata.ino())
    }

    /// Made by this driver, in whichever process.
    pub(crate) fn is_ours(&self) -> bool {
        self.label().starts_with(LABEL)
    }

    /// The label of [`Self::new`]; empty for files of others.
    pub(crate) fn label(&self) -> String {
        let link = std::fs::read_link(format!("/proc/self/fd/{}", self.0.as_raw_fd())).unwrap_or_default();
        let name = link.to_string_lossy().into_owned();
        name.strip_prefix("/memfd:").and_then(|name| name.strip_suffix(" (deleted)")).unwrap_or_default().to_owned()
    }

    /// Maps a part of it wherever there is room.
    ///
    /// # Errors
    /// When there is none, or the file is no memory.
    pub(crate) fn map(&self, offset: u64, bytes: u64) -> Result<Place, Error> {
        let place = Place::reserve(bytes, 0, 0)?;
        self.map_over(place.base, offset, bytes)?;
        Ok(place)
    }

    /// Maps it over addresses of ours, in place of what is there.
    pub(crate) fn map_over(&self, base: u64, offset: u64, bytes: u64) -> Answer {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        put(base, bytes, protection, libc::MAP_SHARED, self.0.as_raw_fd(), offset)
    }

    /// Takes over what is at these addresses of ours, which are mapped from here afterwards. `touched` are the parts,
    /// counted from `base`, that are not zeros.
    fn take_over(&self, base: u64, bytes: u64, touched: &[Range<u64>]) -> Answer {
        for part in touched {
            let length = usize::try_from(part.end - part.start).map_err(|_| Error::OUT_OF_MEMORY)?;
            // SAFETY: mapped memory of ours, as the caller vouches.
            let there = unsafe { std::slice::from_raw_parts(pointer(base + part.start).cast::<u8>(), length) };
            self.0.write_all_at(there, part.start).map_err(|_| Error::OUT_OF_MEMORY)?;
        }
        self.map_over(base, 0, bytes)
    }
}

/// The file of the memory at `base` that other processes may have: the one in `given`, or a new one that takes over what
/// is there.
///
/// # Errors
/// The host has no room for it.
pub(crate) fn give<'a>(
    given: &'a mut HashMap<u64, Sharable>,
    label: &str,
    base: u64,
    bytes: u64,
    region: &Region,
) -> Result<&'a Sharable, Error> {
    match given.entry(base) {
        Entry::Occupied(known) => Ok(known.into_mut()),
        Entry::Vacant(place) => {
            let file = Sharable::new(label, bytes)?;
            file.take_over(base, bytes, &region.touched(&(0..bytes)))?;
            Ok(place.insert(file))
        }
    }
}

/// Addresses of ours, given back at the end. They lead nowhere until something is mapped there.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) base: u64,
    pub(crate) bytes: u64,
}

impl Place {
    /// `alignment` is a power of two or 0, `hint` an address that would be welcome.
    ///
    /// # Errors
    /// When there is no such range of addresses left.
    pub(crate) fn reserve(bytes: u64, alignment: u64, hint: u64) -> Result<Self, Error> {
        let more = alignment.max(PAGE) - PAGE;
        let whole = bytes.checked_next_multiple_of(PAGE).and_then(|bytes| bytes.checked_add(more));
        let whole = whole.filter(|bytes| *bytes > 0).ok_or(Error::OUT_OF_MEMORY)?;
        let length = usize::try_from(whole).map_err(|_| Error::OUT_OF_MEMORY)?;
        // SAFETY: a fresh mapping, placed by the kernel, that allows nothing.
        let at = unsafe { libc::mmap(pointer(hint), length, libc::PROT_NONE, NOTHING, -1, 0) };
        if at == libc::MAP_FAILED {
            return Err(Error::OUT_OF_MEMORY);
        }
        let (start, end) = (at.expose_provenance() as u64, at.expose_provenance() as u64 + whole);
        let base = start.next_multiple_of(alignment.max(PAGE));
        let used = base + bytes.next_multiple_of(PAGE);
        unmap(start, base - start);
        unmap(used, end - used);
        Ok(Self { base, bytes: used - base })
    }

    /// Takes a mapping away; its addresses stay ours.
    pub(crate) fn clear(base: u64, bytes: u64) -> Answer {
        put(base, bytes, libc::PROT_NONE, NOTHING, -1, 0)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        unmap(self.base, self.bytes);
    }
}

const PAGE: u64 = 4096;
const NOTHING: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;

fn put(base: u64, bytes: u64, protection: i32, flags: i32, descriptor: RawFd, offset: u64) -> Answer {
    let length = usize::try_from(bytes).map_err(|_| Error::INVALID_VALUE)?;
    let offset = i64::try_from(offset).map_err(|_| Error::INVALID_VALUE)?;
    // SAFETY: addresses of ours, as the callers vouch: nothing of the program's is replaced.
    let at = unsafe { libc::mmap(pointer(base), length, protection, flags | libc::MAP_FIXED, descriptor, offset) };
    if at == libc::MAP_FAILED { Err(Error::OUT_OF_MEMORY) } else { Ok(()) }
}

fn unmap(base: u64, bytes: u64) {
    if bytes > 0 {
        // SAFETY: addresses of ours; who still uses them uses freed memory, as on a card.
        unsafe { libc::munmap(pointer(base), usize::try_from(bytes).unwrap_or(0)) };
    }
}

fn pointer(address: u64) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(usize::try_from(address).unwrap_or(0))
}
