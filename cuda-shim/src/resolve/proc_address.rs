//! `cuGetProcAddress` and `cuGetProcAddress_v2`: the driver answers, and the address of a hooked entry is replaced with
//! the hook. Status and error are the driver's own.
//!
//! The name alone does not identify an entry: it means another function for another version of CUDA and for another
//! flavour of stream. The table tells what the request means; the driver's exported addresses tell whether the driver's
//! answer is another form.
#![allow(unsafe_code, reason = "exported functions with the driver's signatures")]

use super::driver_hook;
use crate::real;
use omni_cuda_entries::{Entry, Role, find, forms, resolve};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::NonNull;

/// `CUDA_SUCCESS`.
const SUCCESS: c_int = 0;
/// `CUDA_ERROR_NOT_FOUND`: there is no driver, or it is older than the entry.
const NOT_FOUND: c_int = 500;
/// `CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM`.
const PER_THREAD: u64 = 2;

type GetProcAddress = unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, u64) -> c_int;
type GetProcAddressV2 = unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, u64, *mut c_int) -> c_int;

/// Hook for the two, by exported symbol.
pub(super) fn hook(symbol: &str) -> Option<NonNull<c_void>> {
    let address = match symbol {
        "cuGetProcAddress" => cuGetProcAddress as GetProcAddress as *mut c_void,
        "cuGetProcAddress_v2" => cuGetProcAddress_v2 as GetProcAddressV2 as *mut c_void,
        _ => return None,
    };
    NonNull::new(address)
}

/// The driver's function of CUDA 11.3.
///
/// # Safety
/// Those of the driver's function.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuGetProcAddress(
    symbol: *const c_char,
    function: *mut *mut c_void,
    version: c_int,
    flags: u64,
) -> c_int {
    let Some(real) = real::function!(cuGetProcAddress as GetProcAddress) else { return NOT_FOUND };
    // SAFETY: the driver's own function, with its caller's arguments.
    let result = unsafe { real(symbol, function, version, flags) };
    // SAFETY: the driver has used the arguments with success, or nothing is done.
    unsafe { stand_in(result, symbol, function, version, flags) };
    result
}

/// The driver's function of CUDA 12.0.
///
/// # Safety
/// Those of the driver's function.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuGetProcAddress_v2(
    symbol: *const c_char,
    function: *mut *mut c_void,
    version: c_int,
    flags: u64,
    status: *mut c_int,
) -> c_int {
    let Some(real) = real::function!(cuGetProcAddress_v2 as GetProcAddressV2) else { return NOT_FOUND };
    // SAFETY: the driver's own function, with its caller's arguments.
    let result = unsafe { real(symbol, function, version, flags, status) };
    // SAFETY: the driver has used the arguments with success, or nothing is done.
    unsafe { stand_in(result, symbol, function, version, flags) };
    result
}

/// Replaces the driver's answer with the hook.
///
/// # Safety
/// `symbol` is null or a string, `function` null or writable.
unsafe fn stand_in(result: c_int, symbol: *const c_char, function: *mut *mut c_void, version: c_int, flags: u64) {
    if result != SUCCESS || symbol.is_null() || function.is_null() || !crate::active() {
        return;
    }
    // SAFETY: not null, and the caller answers for it.
    let name = unsafe { CStr::from_ptr(symbol) };
    // SAFETY: not null, and the driver has just written there.
    let answer = NonNull::new(unsafe { *function });
    if let (Ok(name), Some(answer)) = (name.to_str(), answer)
        && let Some(ours) = meant(name, version, flags, answer).and_then(|entry| driver_hook(entry.symbol))
    {
        // SAFETY: as above.
        unsafe { *function = ours.as_ptr() };
    }
}

/// Hooked entry that the driver has answered with, if it is one.
///
/// The meaning of the request comes first: a driver may export one address under several names. A driver that answers
/// with an address that it exports nowhere has answered the request as it was meant.
fn meant(name: &str, version: c_int, flags: u64, answer: NonNull<c_void>) -> Option<&'static Entry> {
    let version = u32::try_from(version).unwrap_or(0);
    let request =
        resolve(name, version, flags & PER_THREAD != 0).or_else(|| find(name)).or_else(|| forms(name).next())?;
    if request.role == Role::Other {
        return None;
    }
    let is_answer =
        |entry: &&Entry| CString::new(entry.symbol).is_ok_and(|symbol| real::DRIVER.entry(&symbol) == Some(answer));
    std::iter::once(request).chain(forms(request.base)).find(is_answer).or(Some(request))
}
