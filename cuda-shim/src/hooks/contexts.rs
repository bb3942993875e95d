//! What goes with a context: everything that was allocated in it, except what pools and handles hold.

use super::deferred::OfContext;
use super::driver::{self, Handle, ask, cuCtxGetApiVersion, cuDevicePrimaryCtxGetState, cuDevicePrimaryCtxRetain};
use super::entry::{CONTEXT_IS_GONE, CUresult, Out, SUCCESS, hooks};
use crate::{account, moves, ranges};

hooks! {
    fn cuCtxDestroy(context: Handle) |real| destroyed(context, || real(context));
    fn cuCtxDestroy_v2(context: Handle) |real| destroyed(context, || real(context));
    fn cuCtxDetach(context: Handle) |real| detached(context, || real(context));
    fn cuDevicePrimaryCtxRelease(device: i32) |real| released(device, || real(device));
    fn cuDevicePrimaryCtxRelease_v2(device: i32) |real| released(device, || real(device));
    fn cuDevicePrimaryCtxReset(device: i32) |real| reset(device, || real(device));
    fn cuDevicePrimaryCtxReset_v2(device: i32) |real| reset(device, || real(device));
}

fn destroyed(context: Handle, call: impl FnOnce() -> CUresult) -> CUresult {
    ended(context, call, || true)
}

/// The last one destroys it, and which one is the last only shows afterwards. Another error than these says nothing about
/// the context: its memory stays counted.
fn detached(context: Handle, call: impl FnOnce() -> CUresult) -> CUresult {
    ended(context, call, || {
        let version = ask(|version| cuCtxGetApiVersion(context, version));
        version.is_err_and(|error| CONTEXT_IS_GONE.contains(&error))
    })
}

/// A call that may be the end of a context: `is_gone` says so after it went well.
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

/// The last release destroys it, and which one is the last only shows afterwards.
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

/// The primary context of a device, if there is one now.
fn primary(device: i32) -> Option<Handle> {
    if !is_active(device) {
        return None;
    }
    let context = ask(|context| cuDevicePrimaryCtxRetain(context, device)).ok()?;
    driver::cuDevicePrimaryCtxRelease_v2(device);
    Some(context)
}
