//! Calls of the driver by name, with plain numbers as arguments: under `LD_PRELOAD` through the shim.
#![allow(unsafe_code, reason = "functions of the driver, found by name")]

use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::sync::{Mutex, OnceLock, PoisonError};

type Any = unsafe extern "C" fn(u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64) -> i32;

/// Calls a function; 801 when there is none of this name. Six arguments go in registers, the others where a structure
/// that is passed by value would be.
pub(crate) fn call(name: &str, arguments: &[u64]) -> i32 {
    let Some(address) = symbol(name) else { return 801 };
    // SAFETY: C functions of the driver take numbers and pointers; what they do not take they do not look at.
    let function = unsafe { std::mem::transmute::<usize, Any>(address) };
    let a = |number: usize| arguments.get(number).copied().unwrap_or(0);
    // SAFETY: pointers are to places of the caller or null, which the driver and the shim must bear.
    unsafe { function(a(0), a(1), a(2), a(3), a(4), a(5), a(6), a(7), a(8), a(9), a(10), a(11), a(12), a(13)) }
}

fn symbol(name: &str) -> Option<usize> {
    static KNOWN: OnceLock<Mutex<HashMap<String, Option<usize>>>> = OnceLock::new();
    let mut known = KNOWN.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
    if known.is_empty() {
        // SAFETY: a string that ends with a zero.
        let driver = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
        assert!(!driver.is_null(), "no driver");
    }
    *known.entry(name.to_owned()).or_insert_with(|| {
        let name = CString::new(name).unwrap();
        // SAFETY: a string that ends with a zero.
        let address: *mut c_void = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
        (!address.is_null()).then(|| address.expose_provenance())
    })
}

/// Address of a local place, as the driver wants it.
pub(crate) fn at<T>(place: &mut T) -> u64 {
    u64::try_from((&raw mut *place).expose_provenance()).unwrap()
}
