//! Operations on each row of some buffers, shared among threads.
#![allow(unsafe_code, reason = "threads write different rows of the same buffers")]

use crate::shared::Shared;
use crate::threads::Threads;

/// Numbers below which other threads are not worth waking, and would have to fetch the rows from the caches of this one.
const ALONE: usize = 32 << 10;

/// Rows of a buffer.
pub(super) struct Rows<'a> {
    /// Numbers of all rows, and perhaps more.
    pub(super) numbers: &'a mut [f32],
    /// Numbers of a row.
    pub(super) width: usize,
}

/// Calls `work` with each row's number and its part of each buffer.
pub(super) fn each_row<const N: usize>(
    threads: &Threads,
    rows: usize,
    buffers: [Rows<'_>; N],
    work: impl Fn(usize, [&mut [f32]; N]) + Sync,
) {
    each_row_weighted(threads, (rows, 1), buffers, work);
}

/// Does the same, where the work of a number takes `weight` times the usual one.
pub(super) fn each_row_weighted<const N: usize>(
    threads: &Threads,
    (rows, weight): (usize, usize),
    buffers: [Rows<'_>; N],
    work: impl Fn(usize, [&mut [f32]; N]) + Sync,
) {
    let widths = buffers.each_ref().map(|buffer| buffer.width);
    let shared = buffers.map(|buffer| Shared::new(buffer.numbers));
    let one = |row: usize| {
        let mut parts = std::array::from_fn(|_| <&mut [f32]>::default());
        for ((part, shared), width) in parts.iter_mut().zip(&shared).zip(widths) {
            // SAFETY: each row is worked on once, by one thread, and parts of different rows do not overlap.
            *part = unsafe { shared.write(row * width..(row + 1) * width) };
        }
        work(row, parts);
    };
    if rows * weight * widths.iter().sum::<usize>() <= ALONE {
        (0..rows).for_each(one);
    } else {
        threads.run(|part, parts| (rows * part / parts..rows * (part + 1) / parts).for_each(one));
    }
}
