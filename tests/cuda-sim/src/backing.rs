//! Host memory that stands for device memory. Untouched gigabytes cost nothing, and nothing here touches pages without need.
#![allow(unsafe_code, reason = "mappings, and copies between addresses that C callers give")]

use crate::error::Error;
use crate::sharable::Place;
use std::ffi::c_void;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

const PAGE: u64 = 4096;
/// Pages that one question about their presence is about: 1 GiB.
const PAGES_AT_ONCE: usize = 1 << 18;

/// Mapping of zeros, until it is written.
#[derive(Debug)]
pub(crate) struct Region {
    base: u64,
    bytes: u64,
}

impl Region {
    /// # Errors
    /// The host has no such range of addresses left.
    pub(crate) fn new(bytes: u64) -> Result<Self, Error> {
        Self::mapped(bytes, 0)
    }

    /// Below 2 GiB, for the entries of 32 bits.
    pub(crate) fn low(bytes: u64) -> Result<Self, Error> {
        Self::mapped(bytes, libc::MAP_32BIT)
    }

    fn mapped(bytes: u64, more: i32) -> Result<Self, Error> {
        let length = usize::try_from(bytes.max(1)).map_err(|_| Error::OUT_OF_MEMORY)?;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | more;
        // SAFETY: a fresh mapping, placed by the kernel.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), length, protection, flags, -1, 0) };
        if at == libc::MAP_FAILED {
            return Err(Error::OUT_OF_MEMORY);
        }
        Ok(Self { base: at.expose_provenance() as u64, bytes: length as u64 })
    }

    /// Region mapped at a place.
    pub(crate) fn at(place: Place) -> Self {
        let (base, bytes) = (place.base, place.bytes);
        // The addresses are the region's now.
        std::mem::forget(place);
        Self { base, bytes }
    }

    pub(crate) fn base(&self) -> u64 {
        self.base
    }

    /// Parts of `range`, counted from the region's beginning, that the host has written or read: whole pages.
    pub(crate) fn touched(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        let mut found: Vec<Range<u64>> = Vec::new();
        let mut answer = Vec::new();
        let (mut at, end) = (range.start / PAGE * PAGE, range.end.min(self.bytes));
        while at < end {
            let pages = usize::try_from((end - at).div_ceil(PAGE)).unwrap_or(PAGES_AT_ONCE).min(PAGES_AT_ONCE);
            let length = pages as u64 * PAGE;
            answer.resize(pages, 0_u8);
            // SAFETY: pages of this mapping, and one byte for each of them.
            let done = unsafe { libc::mincore(pointer(self.base + at), pages << 12, answer.as_mut_ptr()) };
            let present = answer.iter().enumerate().filter(|(_, byte)| done == 0 && **byte & 1 == 1);
            for (page, _) in present {
                let start = at + page as u64 * PAGE;
                let one = start.max(range.start)..(start + PAGE).min(end);
                match found.last_mut() {
                    Some(last) if last.end == one.start => last.end = one.end,
                    _ => found.push(one),
                }
            }
            at += length;
        }
        found
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: mapped by us with this length; who still has its address uses freed memory, as on a card.
        unsafe { libc::munmap(pointer(self.base), usize::try_from(self.bytes).unwrap_or(0)) };
    }
}

/// Copies between any two addresses; they may overlap.
pub(crate) fn copy(to: u64, from: u64, bytes: u64) {
    if to != from && bytes > 0 {
        // SAFETY: the caller of the API vouches for both ranges; ranges of our own memory were checked.
        unsafe { std::ptr::copy(pointer(from).cast::<u8>(), pointer(to).cast(), usize::try_from(bytes).unwrap_or(0)) };
    }
}

/// A value of 32 or 64 bits, as others write it meanwhile. The address is a multiple of its size.
pub(crate) fn load(at: u64, is_wide: bool) -> u64 {
    if is_wide {
        // SAFETY: memory that the driver handed out, aligned, as its caller checked.
        unsafe { AtomicU64::from_ptr(pointer(at).cast()) }.load(Ordering::Acquire)
    } else {
        // SAFETY: as above.
        unsafe { AtomicU32::from_ptr(pointer(at).cast()) }.load(Ordering::Acquire).into()
    }
}

/// Writes the value: its lower half, where it has 32 bits.
#[allow(clippy::cast_possible_truncation, reason = "said above")]
pub(crate) fn store(at: u64, value: u64, is_wide: bool) {
    if is_wide {
        // SAFETY: as in `load`.
        unsafe { AtomicU64::from_ptr(pointer(at).cast()) }.store(value, Ordering::Release);
    } else {
        // SAFETY: as in `load`.
        unsafe { AtomicU32::from_ptr(pointer(at).cast()) }.store(value as u32, Ordering::Release);
    }
}

/// Fills memory of ours with a pattern. Zeros over whole pages give the pages back.
pub(crate) fn fill(at: u64, pattern: &[u8], count: u64) {
    let bytes = count * pattern.len() as u64;
    let (first, end) = (at.next_multiple_of(PAGE), (at + bytes) / PAGE * PAGE);
    if pattern.iter().all(|byte| *byte == 0) && first < end {
        fill_each(at, &[0], first - at);
        let (start, length) = (pointer(first), usize::try_from(end - first).unwrap_or(0));
        // SAFETY: whole pages of a mapping of ours: they read as zeros afterwards. This is for those with a file behind.
        if unsafe { libc::madvise(start, length, libc::MADV_REMOVE) } != 0 {
            // SAFETY: as above; this is for those without one.
            unsafe { libc::madvise(start, length, libc::MADV_DONTNEED) };
        }
        fill_each(end, &[0], at + bytes - end);
    } else {
        fill_each(at, pattern, count);
    }
}

fn fill_each(at: u64, pattern: &[u8], count: u64) {
    if let [byte] = pattern {
        // SAFETY: memory of ours, whose bounds were checked.
        unsafe { std::ptr::write_bytes(pointer(at).cast::<u8>(), *byte, usize::try_from(count).unwrap_or(0)) };
        return;
    }
    for number in 0..count {
        copy(at + number * pattern.len() as u64, pattern.as_ptr().expose_provenance() as u64, pattern.len() as u64);
    }
}

fn pointer(address: u64) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(usize::try_from(address).unwrap_or(0))
}
