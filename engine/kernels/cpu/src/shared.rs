//! Memory that the threads of a step write in parts that do not overlap.
#![allow(unsafe_code, reason = "threads write disjoint parts of one buffer, which the borrow checker cannot see")]

use std::marker::PhantomData;
use std::ops::Range;
use std::ptr::NonNull;

/// Slice whose parts are lent to threads.
pub(crate) struct Shared<'a, T> {
    start: NonNull<T>,
    len: usize,
    borrow: PhantomData<&'a mut [T]>,
}

// SAFETY: the slice is lent as &mut to one thread a part, which T's Send allows, and as & to many, which T's Sync allows.
unsafe impl<T: Send + Sync> Sync for Shared<'_, T> {}
// SAFETY: the value stands for a &mut [T], which may go to another thread.
unsafe impl<T: Send> Send for Shared<'_, T> {}

impl<'a, T> Shared<'a, T> {
    /// Borrows a slice.
    pub(crate) fn new(slice: &'a mut [T]) -> Self {
        let len = slice.len();
        Self { start: NonNull::from(slice).cast(), len, borrow: PhantomData }
    }

    /// Lends a part for reading.
    ///
    /// # Safety
    /// The caller lets no thread write the part while it is lent.
    pub(crate) unsafe fn read(&self, part: Range<usize>) -> &[T] {
        assert!(part.start <= part.end && part.end <= self.len, "a part within the slice");
        // SAFETY: the part is within the slice.
        let start = unsafe { self.start.add(part.start) };
        // SAFETY: the part is within the slice, whose elements are initialised, and nobody writes it.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), part.len()) }
    }

    /// Lends a part for writing.
    ///
    /// # Safety
    /// The caller lets no other thread read or write the part while it is lent.
    #[allow(clippy::mut_from_ref, reason = "callers lend disjoint parts")]
    pub(crate) unsafe fn write(&self, part: Range<usize>) -> &mut [T] {
        assert!(part.start <= part.end && part.end <= self.len, "a part within the slice");
        // SAFETY: the part is within the slice.
        let start = unsafe { self.start.add(part.start) };
        // SAFETY: the part is within the slice, whose elements are initialised, and nobody else uses it.
        unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), part.len()) }
    }
}
