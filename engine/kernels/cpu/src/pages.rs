//! Memory straight from the system, zeroed, which goes back to it at once.
//!
//! A step reads all weights, and keys and values from many places. With small pages it would miss the translation caches
//! every 4 KiB, which costs a fifth of the bandwidth of weights and a tenth of that of the cache. So the pages are large,
//! where the system has them.
#![allow(unsafe_code, reason = "mmap, madvise and munmap have no safe wrapper here")]

use half::bf16;
use omni_kernels::BackendError;
use std::ptr::NonNull;

/// Bytes of a large page.
pub(crate) const LARGE_PAGE: usize = 2 << 20;

/// Pages of anonymous memory. They take memory as they are written first.
#[derive(Debug)]
pub(crate) struct Pages {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the pages are owned, as those of a Box.
unsafe impl Send for Pages {}
// SAFETY: shared use is by & only, and writes need &mut.
unsafe impl Sync for Pages {}

/// Numbers that any bytes are.
pub(crate) trait Plain: Copy {}

impl Plain for f32 {}
impl Plain for bf16 {}

impl Pages {
    /// Maps so many bytes.
    pub(crate) fn new(bytes: usize, purpose: &'static str) -> Result<Self, BackendError> {
        if bytes == 0 {
            return Ok(Self { start: NonNull::<u128>::dangling().cast(), bytes });
        }
        let failure = |reason: String| BackendError::Memory { bytes: bytes as u64, purpose, reason };
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping at an address of the system's choice.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(failure(std::io::Error::last_os_error().to_string()));
        }
        let start = NonNull::new(start.cast()).ok_or_else(|| failure("mapped at address 0".to_owned()))?;
        let pages = Self { start, bytes };
        if bytes >= LARGE_PAGE {
            // SAFETY: the mapping is ours, and the advice does not change what it holds. It may be refused.
            unsafe { libc::madvise(start.as_ptr().cast(), bytes, libc::MADV_HUGEPAGE) };
        }
        Ok(pages)
    }

    /// Address of the first byte, for those who share the pages among several owners.
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Number of bytes.
    pub(crate) fn len(&self) -> usize {
        self.bytes
    }

    /// All bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping is ours, readable and initialised by the system.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }

    /// All bytes, to be written.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the mapping is ours, writable and initialised by the system.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
    }

    /// All numbers.
    fn elements<T: Plain>(&self) -> &[T] {
        let count = self.bytes / size_of::<T>();
        // SAFETY: pages are aligned for every number, any bytes are one, and nobody writes while they are borrowed.
        unsafe { std::slice::from_raw_parts(self.start.cast::<T>().as_ptr(), count) }
    }

    /// All numbers, to be written.
    pub(crate) fn elements_mut<T: Plain>(&mut self) -> &mut [T] {
        let count = self.bytes / size_of::<T>();
        // SAFETY: pages are aligned for every number, any bytes are one, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.cast::<T>().as_ptr(), count) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        if self.bytes > 0 {
            // SAFETY: the mapping is ours and no reference into it is left.
            unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
        }
    }
}

/// Numbers in pages of their own.
#[derive(Debug)]
pub(crate) struct Buffer(Pages);

impl Buffer {
    /// Takes memory for so many numbers.
    pub(crate) fn new(count: usize, purpose: &'static str) -> Result<Self, BackendError> {
        Ok(Self(Pages::new(count.saturating_mul(size_of::<f32>()), purpose)?))
    }
}

impl std::ops::Deref for Buffer {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        self.0.elements()
    }
}

impl std::ops::DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [f32] {
        self.0.elements_mut()
    }
}
