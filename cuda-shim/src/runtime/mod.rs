//! The functions of a dynamically linked CUDA runtime that bring memory, free it, or say how much there is.

use std::ffi::{CStr, c_void};
use std::ptr::NonNull;

/// What stands for a function of the runtime.
pub(crate) fn hook(_symbol: &str) -> Option<NonNull<c_void>> {
    None
}

/// The function of whichever runtime is loaded.
pub(crate) fn any(_name: &CStr) -> Option<NonNull<c_void>> {
    None
}
