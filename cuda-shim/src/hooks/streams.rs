//! Allocation and free in the order of a stream, and the waits after which more memory is known to be free.
//!
//! The stream determines where memory comes from, not the thread's context: the thread may have none, or one of another
//! device. In unified mode it comes from a managed pool where the driver has them (CUDA 13); on an older driver it is
//! plain device memory: both keep the stream's order. An allocation during a capture becomes a node of the graph, and
//! is not converted.

use super::entry::hooks;
use super::ledger::{free, keep, size};
use super::reclaim::reserve;
use super::{deferred, graph_memory, graphs, pools, stream};
use crate::abi::{CUresult, Handle, INVALID_VALUE, OUT_OF_MEMORY, Out, SUCCESS};
use crate::driver::{self, is_capturing};
use crate::ranges::{self, Kind};

hooks! {
    fn cuMemAllocAsync(address: Out<u64>, bytes: usize, stream: Handle) |real| {
        allocate(address, bytes, None, stream, || real(address, bytes, stream))
    };
    fn cuMemAllocAsync_ptsz(address: Out<u64>, bytes: usize, stream: Handle) |real| {
        allocate(address, bytes, None, of_thread(stream), || real(address, bytes, stream))
    };
    fn cuMemAllocFromPoolAsync(address: Out<u64>, bytes: usize, pool: Handle, stream: Handle) |real| {
        allocate(address, bytes, Some(pool), stream, || real(address, bytes, pool, stream))
    };
    fn cuMemAllocFromPoolAsync_ptsz(address: Out<u64>, bytes: usize, pool: Handle, stream: Handle) |real| {
        allocate(address, bytes, Some(pool), of_thread(stream), || real(address, bytes, pool, stream))
    };
    fn cuMemFreeAsync(address: u64, stream: Handle) |real| freed(address, stream, || real(address, stream));
    fn cuMemFreeAsync_ptsz(address: u64, stream: Handle) |real| freed(address, of_thread(stream), || real(address, stream));
    fn cuStreamSynchronize(stream: Handle) |real| waited(real(stream));
    fn cuStreamSynchronize_ptsz(stream: Handle) |real| waited(real(stream));
    fn cuEventSynchronize(event: Handle) |real| waited(real(event));
    fn cuCtxSynchronize() |real| waited(real());
    fn cuCtxSynchronize_v2(context: Handle) |real| waited(real(context));
}

/// Replaces a null stream in the flavour for the per-thread default stream: `CU_STREAM_PER_THREAD`.
fn of_thread(stream: Handle) -> Handle {
    if stream == 0 { 2 } else { stream }
}

fn allocate(
    address: Out<u64>,
    bytes: usize,
    pool: Option<Handle>,
    stream: Handle,
    real: impl Fn() -> CUresult,
) -> CUresult {
    if address.is_null() || bytes == 0 {
        return real();
    }
    if is_capturing(stream) {
        return graphs::captured(bytes, real);
    }
    deferred::collect();
    let Ok(device) = stream::device_of(stream) else { return unplaced(address, bytes, stream, real) };
    match pool
        .filter(|pool| pools::exists(*pool))
        .or_else(|| if pool.is_none() { pools::current(device) } else { None })
    {
        Some(pool) => pools::allocate(address, bytes, pool, stream, device),
        None => unplaced(address, bytes, stream, real),
    }
}

/// Allocates where the device or pool cannot be determined, which the driver normally refuses with its own error. If it
/// allocates all the same, the memory is counted or freed again.
fn unplaced(address: Out<u64>, bytes: usize, stream: Handle, real: impl Fn() -> CUresult) -> CUresult {
    let result = real();
    let (SUCCESS, Some(begin)) = (result, address.get()) else { return result };
    if reserve(Kind::Device, size(bytes)).is_err() {
        driver::cuMemFreeAsync(begin, stream);
        return OUT_OF_MEMORY;
    }
    keep(begin, size(bytes), Kind::Device);
    result
}

fn freed(address: u64, stream: Handle, call: impl Fn() -> CUresult) -> CUresult {
    deferred::collect();
    if deferred::holds(address) {
        return INVALID_VALUE;
    }
    if let Some(result) = pools::free(address, &call) {
        return result;
    }
    match ranges::get(address) {
        Some(range) if range.is_converted && !is_capturing(stream) => {
            deferred::free(address, stream).unwrap_or_else(call)
        }
        _ => free(address, call),
    }
}

/// Updates the counts after a wait: more may be free than before.
fn waited(result: CUresult) -> CUresult {
    deferred::collect();
    pools::settle();
    graph_memory::settle();
    result
}
