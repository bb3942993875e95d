//! Place of a stream: the context in which it was made, and that context's device, whichever context is current.

use crate::abi::{CUresult, Handle, NOT_SUPPORTED, Out, SUCCESS};
use crate::driver::{self, ask, cuCtxPopCurrent_v2, cuCtxPushCurrent_v2, cuStreamGetCtx, cuStreamGetDevice, device};

/// `CU_STREAM_LEGACY`, `CU_STREAM_PER_THREAD`, and null: streams of the current context.
const OF_CURRENT: std::ops::RangeInclusive<Handle> = 0..=2;
/// `CUDA_ERROR_INVALID_HANDLE`.
const INVALID_HANDLE: CUresult = 400;

/// Device of a stream, or the driver's error for an invalid stream.
pub(super) fn device_of(stream: Handle) -> Result<i32, CUresult> {
    if OF_CURRENT.contains(&stream) {
        return device();
    }
    // `cuStreamGetDevice` came with CUDA 12.8.
    match ask(|device| cuStreamGetDevice(stream, device)) {
        Err(NOT_SUPPORTED) => in_context(stream, device).and_then(|device| device),
        answer => answer,
    }
}

/// Context of a stream; 0 where there is none, or it is not known.
pub(super) fn context(stream: Handle) -> Handle {
    context_of(stream).unwrap_or(0)
}

/// Runs `call` in the context of a stream.
pub(super) fn in_context<T>(stream: Handle, call: impl FnOnce() -> T) -> Result<T, CUresult> {
    let context = context_of(stream)?;
    if context == driver::context() {
        return Ok(call());
    }
    match cuCtxPushCurrent_v2(context) {
        SUCCESS => {}
        error => return Err(error),
    }
    let result = call();
    cuCtxPopCurrent_v2(Out::of(&mut 0));
    Ok(result)
}

fn context_of(stream: Handle) -> Result<Handle, CUresult> {
    if OF_CURRENT.contains(&stream) {
        return ask(driver::cuCtxGetCurrent);
    }
    match ask(|context| cuStreamGetCtx(stream, context)) {
        Ok(0) => Err(INVALID_HANDLE),
        answer => answer,
    }
}
