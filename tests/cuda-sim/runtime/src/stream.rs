//! Streams: made, waited for, ended.
#![allow(unsafe_code, reason = "exported C functions and the driver's")]

use crate::device::ready;
use crate::driver::Handle;
use crate::error::{INVALID_VALUE, code, ok};
use std::ffi::{c_int, c_uint};

/// Makes a stream.
#[unsafe(no_mangle)]
extern "C" fn cudaStreamCreateWithFlags(out: Option<&mut Handle>, flags: c_uint) -> c_int {
    let Some(out) = out else { return code(Err(INVALID_VALUE)) };
    // SAFETY: `out` is alive.
    code(ready().and_then(|driver| ok(unsafe { (driver.stream_create)(out, flags) })))
}

/// Makes a stream that waits for the default one.
#[unsafe(no_mangle)]
extern "C" fn cudaStreamCreate(out: Option<&mut Handle>) -> c_int {
    cudaStreamCreateWithFlags(out, 0)
}

/// Ends a stream.
///
/// # Safety
/// A stream of [`cudaStreamCreate`].
#[unsafe(no_mangle)]
unsafe extern "C" fn cudaStreamDestroy(stream: Handle) -> c_int {
    // SAFETY: what the caller promises.
    code(ready().and_then(|driver| ok(unsafe { (driver.stream_destroy)(stream) })))
}

/// Waits until everything in a stream is done.
///
/// # Safety
/// Null, or a stream of [`cudaStreamCreate`].
#[unsafe(no_mangle)]
unsafe extern "C" fn cudaStreamSynchronize(stream: Handle) -> c_int {
    // SAFETY: what the caller promises.
    code(ready().and_then(|driver| ok(unsafe { (driver.stream_synchronize)(stream) })))
}
