//! Contexts: with its end goes everything that was allocated in it, except what pools and handles hold.

use super::deferred::OfContext;
use super::entry::hooks;
use super::ledger::size;
use super::reclaim::reserve;
use crate::abi::{CONTEXT_IS_GONE, CUresult, Handle, OUT_OF_MEMORY, Out, SUCCESS};
use crate::driver::{self, ask, context, cuCtxGetApiVersion, cuDevicePrimaryCtxGetState, cuDevicePrimaryCtxRetain};
use crate::ranges::{self, Kind, Range};
use crate::{account, moves};

hooks! {
    fn cuCtxDestroy(context: Handle) |real| destroyed(context, || real(context));
    fn cuCtxDestroy_v2(context: Handle) |real| destroyed(context, || real(context));
    fn cuCtxDetach(context: Handle) |real| detached(context, || real(context));
    fn cuDevicePrimaryCtxRelease(device: i32) |real| released(device, || real(device));
    fn cuDevicePrimaryCtxRelease_v2(device: i32) |real| released(device, || real(device));
    fn cuDevicePrimaryCtxReset(device: i32) |real| reset(device, || real(device));
    fn cuDevicePrimaryCtxReset_v2(device: i32) |real| reset(device, || real(device));
    fn cuCtxSetLimit(limit: i32, value: usize) |real| {
        match context() {
            0 => real(limit, value),
            context if limit == MALLOC_HEAP_SIZE => heap(context, size(value), || real(limit, value)),
            _ => real(limit, value),
        }
    };
}

/// `CU_LIMIT_MALLOC_HEAP_SIZE`: heap of device code.
const MALLOC_HEAP_SIZE: i32 = 2;
/// Heap of a new context: part of the memory that the context itself takes.
const FIRST_HEAP: u64 = 8 << 20;

/// Counts the heap of a context, under the context's own handle, from the request on: the driver does not say when it
/// takes the memory.
fn heap(context: Handle, bytes: u64, call: impl FnOnce() -> CUresult) -> CUresult {
    let before = ranges::remove(context).unwrap_or(Range::new(context, 0, Kind::Device, context));
    let after = Range::new(context, bytes.saturating_sub(FIRST_HEAP), Kind::Device, context);
    let more = after.bytes.saturating_sub(before.bytes);
    let has_room = reserve(Kind::Device, more).is_ok();
    let result = if has_room { call() } else { OUT_OF_MEMORY };
    let (kept, given_back) = match result {
        SUCCESS => (after, before.bytes.saturating_sub(after.bytes)),
        _ => (before, if has_room { more } else { 0 }),
    };
    account::give_back(Kind::Device, given_back);
    if kept.bytes > 0 {
        ranges::put_back(kept);
    }
    result
}

fn destroyed(context: Handle, call: impl FnOnce() -> CUresult) -> CUresult {
    ended(context, call, || true)
}

/// Detaches a context. The last detach destroys it, which shows only afterwards, by these errors. Any other error says
/// nothing about the context: its memory stays counted.
fn detached(context: Handle, call: impl FnOnce() -> CUresult) -> CUresult {
    ended(context, call, || {
        let version = ask(|version| cuCtxGetApiVersion(context, version));
        version.is_err_and(|error| CONTEXT_IS_GONE.contains(&error))
    })
}

/// Makes a call that may end a context, and forgets its memory if `is_gone` is true after a success.
fn ended(context: Handle, call: impl FnOnce() -> CUresult, is_gone: impl FnOnce() -> bool) -> CUresult {
    let _still = moves::none_runs();
    if context == 0 {
        return call();
    }
    let (ranges, waiting) = (ranges::remove_context(context), OfContext::take(context));
    let result = call();
    if result == SUCCESS && is_gone() {
        ranges.iter().for_each(account::forget);
        waiting.forget();
    } else {
        ranges.into_iter().for_each(ranges::put_back);
        waiting.put_back();
    }
    result
}

/// Releases a primary context. The last release destroys it, which shows only afterwards.
fn released(device: i32, call: impl FnOnce() -> CUresult) -> CUresult {
    let _still = moves::none_runs();
    let Some(context) = primary(device) else { return call() };
    let waiting = OfContext::take(context);
    let result = call();
    if result == SUCCESS && !is_active(device) {
        ranges::remove_context(context).iter().for_each(account::forget);
        waiting.forget();
    } else {
        waiting.put_back();
    }
    result
}

fn reset(device: i32, call: impl FnOnce() -> CUresult) -> CUresult {
    match primary(device) {
        Some(context) => destroyed(context, call),
        None => call(),
    }
}

fn is_active(device: i32) -> bool {
    let mut flags = 0;
    ask(|active| cuDevicePrimaryCtxGetState(device, Out::of(&mut flags), active)).is_ok_and(|active| active != 0)
}

/// Primary context of a device, if there is one now.
fn primary(device: i32) -> Option<Handle> {
    if !is_active(device) {
        return None;
    }
    let context = ask(|context| cuDevicePrimaryCtxRetain(context, device)).ok()?;
    driver::cuDevicePrimaryCtxRelease_v2(device);
    Some(context)
}
