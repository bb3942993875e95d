//! Allocation and free in the order of a stream, and the waits after which memory is known to be free.
//!
//! In unified mode the memory comes from a managed pool where the driver has such (CUDA 13), so its order stays the
//! stream's. An older driver has none: the memory is allocated at once, and freed when the work before the free is done.
//! What is allocated during a capture becomes a node of the graph, and nothing is converted.

use super::driver::{Handle, allocate_managed, can_move, device, is_capturing, outside_captures};
use super::entry::{CUresult, INVALID_VALUE, Out, hooks};
use super::ledger::free;
use super::plain::counted;
use super::{deferred, graphs, pools};
use crate::limit::{Mode, settings};
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

/// What a null stream means in the flavour for the per-thread default stream: `CU_STREAM_PER_THREAD`.
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
    let Ok(device) = device() else { return real() };
    let may_convert = settings().mode == Mode::Unified && can_move(device);
    match pools::choose(pool, device, may_convert) {
        pools::Choice::Converted => {
            counted(address, bytes, Kind::Managed, || outside_captures(|| allocate_managed(address, bytes, device)))
        }
        pools::Choice::Pool(pool) => pools::allocate(address, bytes, pool, stream),
        pools::Choice::Unknown => real(),
    }
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
        Some(range) if range.kind == Kind::Managed && !is_capturing(stream) => {
            deferred::free(address, stream).unwrap_or_else(call)
        }
        _ => free(address, call),
    }
}

/// After a wait more may be free than before.
fn waited(result: CUresult) -> CUresult {
    deferred::collect();
    pools::settle();
    graphs::settle();
    result
}
