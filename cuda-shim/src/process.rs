//! Values per process: after a fork the child makes its own.
//!
//! A fork copies memory in whatever state other threads have left it: a lock that one of them held stays locked for
//! ever. So the pointer to such a value lives in a page of its own that the kernel gives to the child filled with
//! zeros, and the child makes a new value. The parent's value is left alone in the child: it may be half changed.
//!
//! A leak checker looks for pointers in the variables of libraries and not in such pages: a list there keeps every value.
#![allow(unsafe_code, reason = "mmap of a page that a fork wipes")]

use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

/// Value that is made at its first use in each process, and never dropped.
pub(crate) struct PerProcess<T> {
    /// Page whose first word points to the value. Null until it is mapped; a fork keeps it.
    page: AtomicPtr<AtomicPtr<Kept<T>>>,
    /// Newest value, made here or before a fork.
    last: AtomicPtr<Kept<T>>,
}

/// Value, linked to the one made before it.
struct Kept<T> {
    value: T,
    _before: *mut Kept<T>,
}

impl<T: Send + Sync + 'static> PerProcess<T> {
    pub(crate) const fn new() -> Self {
        Self { page: AtomicPtr::new(null_mut()), last: AtomicPtr::new(null_mut()) }
    }

    /// Value of this process. `make` may run in several threads at once; one result is kept.
    #[inline]
    pub(crate) fn get(&'static self, make: impl FnOnce() -> T) -> &'static T {
        let value = self.cell().load(Ordering::Acquire);
        // SAFETY: what the cell points to came from `Box::into_raw`, is published whole, and is never freed.
        unsafe { value.as_ref() }.map_or_else(|| self.make(make), |kept| &kept.value)
    }

    #[cold]
    fn make(&'static self, make: impl FnOnce() -> T) -> &'static T {
        let before = self.last.load(Ordering::Acquire);
        let fresh = Box::into_raw(Box::new(Kept { value: make(), _before: before }));
        let first = self.cell().compare_exchange(null_mut(), fresh, Ordering::AcqRel, Ordering::Acquire);
        let value = first.map_or_else(
            |first| {
                // SAFETY: `fresh` came from `Box::into_raw` above and nobody else has seen it.
                drop(unsafe { Box::from_raw(fresh) });
                first
            },
            |_| {
                self.last.store(fresh, Ordering::Release);
                fresh
            },
        );
        // SAFETY: as in `get`, and not null: either ours, or another thread's.
        unsafe { &(*value).value }
    }

    #[inline]
    fn cell(&'static self) -> &'static AtomicPtr<Kept<T>> {
        let mut page = self.page.load(Ordering::Acquire);
        if page.is_null() {
            page = self.map();
        }
        // SAFETY: the page is never unmapped, is aligned, and zeros are a null pointer, whoever wrote them.
        unsafe { &*page }
    }

    #[cold]
    fn map(&'static self) -> *mut AtomicPtr<Kept<T>> {
        let (bytes, private) = (size_of::<AtomicPtr<Kept<T>>>(), libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a fresh private mapping touches no memory that is in use.
        let page = unsafe { libc::mmap(null_mut(), bytes, libc::PROT_READ | libc::PROT_WRITE, private, -1, 0) };
        let fresh: *mut AtomicPtr<Kept<T>> = if page == libc::MAP_FAILED {
            // No memory for one page: parent and child then share the value after a fork, the least of their troubles.
            Box::into_raw(Box::default())
        } else {
            // SAFETY: the page is ours. Kernels before 4.14 refuse, and a child then goes on with its parent's value.
            unsafe { libc::madvise(page, bytes, libc::MADV_WIPEONFORK) };
            page.cast()
        };
        match self.page.compare_exchange(null_mut(), fresh, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => fresh,
            Err(first) => first, // another thread was quicker: our page stays, once in a process's life
        }
    }
}
