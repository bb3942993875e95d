//! Memory that a property takes: the most at a time, by an allocator that counts for each thread.
#![allow(unsafe_code, reason = "an allocator is an unsafe trait")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

thread_local! {
    /// Bytes that this thread has taken and not given back; below 0 where it gives back what others took.
    static HELD: Cell<isize> = const { Cell::new(0) };
    /// Greatest value of that since it was last set.
    static MOST: Cell<isize> = const { Cell::new(0) };
}

fn count(taken: usize, given_back: usize) {
    let held = HELD.get().wrapping_add_unsigned(taken).wrapping_sub_unsigned(given_back);
    HELD.set(held);
    MOST.set(MOST.get().max(held));
}

// SAFETY: all calls go to the system's allocator, with the caller's arguments. The counters have no destructor and are
// made without an allocation.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 0);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 0);
        // SAFETY: the caller keeps the contract of `alloc_zeroed`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(0, layout.size());
        // SAFETY: the pointer is of `alloc`, which is the system's.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size, layout.size());
        // SAFETY: the pointer is of `alloc`, which is the system's.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

/// Runs something that may hold so many bytes at a time on this thread.
///
/// # Panics
/// It takes more.
pub(crate) fn at_most<T>(bytes: usize, run: impl FnOnce() -> T) -> T {
    let before = HELD.get();
    MOST.set(before);
    let result = run();
    let most = MOST.get().wrapping_sub(before).unsigned_abs();
    assert!(most <= bytes, "{most} bytes were held at a time, and {bytes} are allowed");
    result
}

#[cfg(test)]
mod tests {
    use super::at_most;
    use std::panic::catch_unwind;

    #[test]
    fn the_most_at_a_time_is_counted() {
        let several = || (0..10).map(|_| vec![1_u8; 1000].len()).sum::<usize>();
        assert_eq!(at_most(1100, several), 10_000);
        assert!(catch_unwind(|| at_most(900, several)).is_err());
        assert!(catch_unwind(|| at_most(1_000_000, || vec![0_u8; 1_000_001])).is_err());
        assert!(catch_unwind(|| at_most(1500, || (vec![1_u8; 1000], vec![1_u8; 1000]))).is_err());
    }
}
