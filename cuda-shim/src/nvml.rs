//! NVML's two functions for the memory of a card: they report the instance's share of it.
#![allow(unsafe_code, reason = "exported functions with NVML's signatures")]

use crate::{account, real};
use std::ffi::{c_int, c_uint, c_void};
use std::ptr::NonNull;

/// `NVML_SUCCESS`.
const SUCCESS: c_int = 0;
/// `NVML_ERROR_FUNCTION_NOT_FOUND`.
const FUNCTION_NOT_FOUND: c_int = 13;

/// `nvmlMemory_t`, in bytes.
#[repr(C)]
struct Memory {
    total: u64,
    free: u64,
    used: u64,
}

/// `nvmlMemory_v2_t`, in bytes. The sum of the last three is the total.
#[repr(C)]
struct MemoryV2 {
    version: c_uint,
    total: u64,
    reserved: u64,
    free: u64,
    used: u64,
}

type GetMemoryInfo = unsafe extern "C" fn(*mut c_void, *mut Memory) -> c_int;
type GetMemoryInfoV2 = unsafe extern "C" fn(*mut c_void, *mut MemoryV2) -> c_int;

/// Hook for a function of NVML.
pub(crate) fn hook(symbol: &str) -> Option<NonNull<c_void>> {
    let address = match symbol {
        "nvmlDeviceGetMemoryInfo" => nvmlDeviceGetMemoryInfo as GetMemoryInfo as *mut c_void,
        "nvmlDeviceGetMemoryInfo_v2" => nvmlDeviceGetMemoryInfo_v2 as GetMemoryInfoV2 as *mut c_void,
        _ => return None,
    };
    NonNull::new(address)
}

/// NVML's function of the same name.
///
/// # Safety
/// Those of NVML's function.
#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetMemoryInfo(device: *mut c_void, memory: *mut Memory) -> c_int {
    let Some(real) = real::function!(nvmlDeviceGetMemoryInfo in NVML as GetMemoryInfo) else {
        return FUNCTION_NOT_FOUND;
    };
    // SAFETY: NVML's own function, with its caller's arguments.
    let result = unsafe { real(device, memory) };
    // SAFETY: null, or what NVML has just written to.
    if let (SUCCESS, true, Some(memory)) = (result, crate::active(), unsafe { memory.as_mut() }) {
        let (free, total) = account::share(memory.free, memory.total);
        if (free, total) != (memory.free, memory.total) {
            *memory = Memory { total, free, used: total.saturating_sub(free) };
        }
    }
    result
}

/// NVML's function of the same name.
///
/// # Safety
/// Those of NVML's function.
#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetMemoryInfo_v2(device: *mut c_void, memory: *mut MemoryV2) -> c_int {
    let Some(real) = real::function!(nvmlDeviceGetMemoryInfo_v2 in NVML as GetMemoryInfoV2) else {
        return FUNCTION_NOT_FOUND;
    };
    // SAFETY: NVML's own function, with its caller's arguments.
    let result = unsafe { real(device, memory) };
    // SAFETY: null, or what NVML has just written to.
    if let (SUCCESS, true, Some(memory)) = (result, crate::active(), unsafe { memory.as_mut() }) {
        let (free, total) = account::share(memory.free, memory.total);
        if (free, total) != (memory.free, memory.total) {
            *memory = MemoryV2 { version: memory.version, total, reserved: 0, free, used: total.saturating_sub(free) };
        }
    }
    result
}
