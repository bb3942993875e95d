//! Error codes, what they are called, and the last one of each thread.
#![allow(unsafe_code, reason = "exported C functions")]

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int};

/// `CUresult`, and `cudaError_t` with the same numbers.
pub(crate) type Status = c_int;

/// `cudaErrorInvalidValue`.
pub(crate) const INVALID_VALUE: Status = 1;
/// `cudaErrorInsufficientDriver`: also when there is no driver at all.
pub(crate) const INSUFFICIENT_DRIVER: Status = 35;
/// `cudaErrorInvalidDevice`.
pub(crate) const INVALID_DEVICE: Status = 101;
/// `cudaErrorNotReady`: an answer, not an error, and so not remembered.
const NOT_READY: Status = 600;

const NAMES: &[(Status, &CStr, &CStr)] = &[
    (0, c"cudaSuccess", c"no error"),
    (INVALID_VALUE, c"cudaErrorInvalidValue", c"invalid argument"),
    (2, c"cudaErrorMemoryAllocation", c"out of memory"),
    (3, c"cudaErrorInitializationError", c"initialization error"),
    (INSUFFICIENT_DRIVER, c"cudaErrorInsufficientDriver", c"the driver is missing or too old for this runtime"),
    (100, c"cudaErrorNoDevice", c"no CUDA-capable device is detected"),
    (INVALID_DEVICE, c"cudaErrorInvalidDevice", c"invalid device ordinal"),
    (400, c"cudaErrorInvalidResourceHandle", c"invalid resource handle"),
    (NOT_READY, c"cudaErrorNotReady", c"device not ready"),
    (801, c"cudaErrorNotSupported", c"operation not supported"),
    (999, c"cudaErrorUnknown", c"unknown error"),
];

thread_local! {
    static LAST: Cell<Status> = const { Cell::new(0) };
}

/// A status as a result.
pub(crate) fn ok(status: Status) -> Result<(), Status> {
    if status == 0 { Ok(()) } else { Err(status) }
}

/// The code of a result; a failure is remembered for this thread.
pub(crate) fn code(result: Result<(), Status>) -> Status {
    let status = result.err().unwrap_or(0);
    if status != 0 && status != NOT_READY {
        LAST.set(status);
    }
    status
}

fn named(error: Status) -> Option<&'static (Status, &'static CStr, &'static CStr)> {
    NAMES.iter().find(|(code, _, _)| *code == error)
}

/// The last failure of this thread, which is then forgotten.
#[unsafe(no_mangle)]
extern "C" fn cudaGetLastError() -> c_int {
    LAST.replace(0)
}

/// The last failure of this thread.
#[unsafe(no_mangle)]
extern "C" fn cudaPeekAtLastError() -> c_int {
    LAST.get()
}

/// The enumerator's name.
#[unsafe(no_mangle)]
extern "C" fn cudaGetErrorName(error: c_int) -> *const c_char {
    named(error).map_or(c"unrecognized error code", |(_, name, _)| *name).as_ptr()
}

/// Text for a code.
#[unsafe(no_mangle)]
extern "C" fn cudaGetErrorString(error: c_int) -> *const c_char {
    named(error).map_or(c"unrecognized error code", |(_, _, text)| *text).as_ptr()
}
