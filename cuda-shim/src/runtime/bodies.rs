//! Bodies of the hooks of the runtime: they call the runtime's own function, and count for a runtime that bypasses the
//! driver's hooks.
//!
//! Each is entered from the exported function of its name by a jump, with that function's return address as its last
//! argument, in a register.
#![allow(unsafe_code, reason = "the runtime's functions and what their callers point to")]

use super::escaped;
use super::loaded::Function;
use crate::account;
use std::ffi::{c_int, c_uint, c_void};
use std::mem::transmute;
use std::ptr::{NonNull, null_mut};

/// `cudaSuccess`.
const SUCCESS: c_int = 0;
/// `cudaErrorMemoryAllocation`.
const OUT_OF_MEMORY: c_int = 2;
/// `cudaErrorInitializationError`: no runtime is loaded.
const NO_RUNTIME: c_int = 3;
/// Offset of `totalGlobalMem` in `cudaDeviceProp`, in all its layouts: after the name (256 bytes), the UUID (16), the
/// LUID (8) and its mask (4, and 4 of padding).
const TOTAL_GLOBAL_MEM: usize = 288;

type Address = *mut c_void;
type Stream = *mut c_void;
type Pool = *mut c_void;

/// `cudaPitchedPtr`.
#[repr(C)]
pub(super) struct Pitched {
    address: Address,
    pitch: usize,
    width: usize,
    height: usize,
}

/// `cudaExtent`. Larger than two words: the C ABI passes it in memory, not in registers.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Extent {
    width: usize,
    height: usize,
    depth: usize,
}

/// Calls the runtime's own function.
macro_rules! real {
    ($caller:ident, $name:ident($($argument:expr => $type:ty),*)) => {{
        static FUNCTION: Function = Function::new(concat!(stringify!($name), "\0"));
        match FUNCTION.of($caller) {
            None => NO_RUNTIME,
            // SAFETY: the address is that of the runtime's function, whose type this is; the arguments are its caller's.
            Some(real) => unsafe {
                transmute::<NonNull<c_void>, unsafe extern "C" fn($($type),*) -> c_int>(real)($($argument),*)
            },
        }
    }};
}

/// Calls the runtime for an allocation of `bytes` whose address it puts into `out`.
///
/// # Safety
/// `out` is null or what the runtime's caller has to give.
unsafe fn allocate(
    caller: usize,
    out: *mut Address,
    bytes: impl FnOnce() -> usize,
    runtime: impl FnOnce() -> c_int,
) -> c_int {
    if !crate::active() {
        return runtime();
    }
    let (result, has_escaped) = escaped::call(runtime);
    if result != SUCCESS || !has_escaped || out.is_null() {
        return result;
    }
    // SAFETY: not null, and the runtime has just written there.
    let address = unsafe { *out };
    if address.is_null() || escaped::count(address.addr(), u64::try_from(bytes()).unwrap_or(u64::MAX)) {
        return result;
    }
    real!(caller, cudaFree(address => Address));
    // SAFETY: as above.
    unsafe { *out = null_mut() };
    OUT_OF_MEMORY
}

pub(super) unsafe extern "C" fn malloc(out: *mut Address, bytes: usize, caller: usize) -> c_int {
    let runtime = || real!(caller, cudaMalloc(out => *mut Address, bytes => usize));
    // SAFETY: the caller's pointer.
    unsafe { allocate(caller, out, || bytes, runtime) }
}

pub(super) unsafe extern "C" fn malloc_managed(out: *mut Address, bytes: usize, flags: c_uint, caller: usize) -> c_int {
    let runtime = || real!(caller, cudaMallocManaged(out => *mut Address, bytes => usize, flags => c_uint));
    // SAFETY: the caller's pointer.
    unsafe { allocate(caller, out, || bytes, runtime) }
}

pub(super) unsafe extern "C" fn malloc_pitch(
    out: *mut Address,
    pitch: *mut usize,
    width: usize,
    height: usize,
    caller: usize,
) -> c_int {
    let runtime =
        || real!(caller, cudaMallocPitch(out => *mut Address, pitch => *mut usize, width => usize, height => usize));
    // SAFETY: only asked for after success, when the runtime has written there.
    let bytes = || unsafe { pitch.as_ref() }.map_or(width, |pitch| *pitch).saturating_mul(height);
    // SAFETY: the caller's pointer.
    unsafe { allocate(caller, out, bytes, runtime) }
}

pub(super) unsafe extern "C" fn malloc_3d(out: *mut Pitched, caller: usize, extent: Extent) -> c_int {
    let runtime = || real!(caller, cudaMalloc3D(out => *mut Pitched, extent => Extent));
    let bytes = || {
        // SAFETY: only asked for after success, when the runtime has written there.
        let pitch = unsafe { out.as_ref() }.map_or(extent.width, |made| made.pitch);
        pitch.saturating_mul(extent.height).saturating_mul(extent.depth)
    };
    // SAFETY: the address is the first field of what the caller's pointer leads to.
    unsafe { allocate(caller, out.cast(), bytes, runtime) }
}

pub(super) unsafe extern "C" fn malloc_async(out: *mut Address, bytes: usize, stream: Stream, caller: usize) -> c_int {
    let runtime = || real!(caller, cudaMallocAsync(out => *mut Address, bytes => usize, stream => Stream));
    // SAFETY: the caller's pointer.
    unsafe { allocate(caller, out, || bytes, runtime) }
}

pub(super) unsafe extern "C" fn malloc_async_ptsz(
    out: *mut Address,
    bytes: usize,
    stream: Stream,
    caller: usize,
) -> c_int {
    let runtime = || real!(caller, cudaMallocAsync_ptsz(out => *mut Address, bytes => usize, stream => Stream));
    // SAFETY: the caller's pointer.
    unsafe { allocate(caller, out, || bytes, runtime) }
}

pub(super) unsafe extern "C" fn malloc_from_pool(
    out: *mut Address,
    bytes: usize,
    pool: Pool,
    stream: Stream,
    caller: usize,
) -> c_int {
    let runtime =
        || real!(caller, cudaMallocFromPoolAsync(out => *mut Address, bytes => usize, pool => Pool, stream => Stream));
    // SAFETY: the caller's pointer.
    unsafe { allocate(caller, out, || bytes, runtime) }
}

pub(super) unsafe extern "C" fn malloc_from_pool_ptsz(
    out: *mut Address,
    bytes: usize,
    pool: Pool,
    stream: Stream,
    caller: usize,
) -> c_int {
    let runtime = || real!(caller, cudaMallocFromPoolAsync_ptsz(out => *mut Address, bytes => usize, pool => Pool, stream => Stream));
    // SAFETY: the caller's pointer.
    unsafe { allocate(caller, out, || bytes, runtime) }
}

pub(super) unsafe extern "C" fn free(address: Address, caller: usize) -> c_int {
    escaped::free(address.addr(), &SUCCESS, || real!(caller, cudaFree(address => Address)))
}

pub(super) unsafe extern "C" fn free_async(address: Address, stream: Stream, caller: usize) -> c_int {
    escaped::free(address.addr(), &SUCCESS, || real!(caller, cudaFreeAsync(address => Address, stream => Stream)))
}

pub(super) unsafe extern "C" fn free_async_ptsz(address: Address, stream: Stream, caller: usize) -> c_int {
    escaped::free(address.addr(), &SUCCESS, || real!(caller, cudaFreeAsync_ptsz(address => Address, stream => Stream)))
}

pub(super) unsafe extern "C" fn mem_get_info(free: *mut usize, total: *mut usize, caller: usize) -> c_int {
    let result = real!(caller, cudaMemGetInfo(free => *mut usize, total => *mut usize));
    if result == SUCCESS && crate::active() {
        // SAFETY: null, or what the runtime has just written to.
        let free = unsafe { free.as_mut() };
        // SAFETY: as above.
        let total = unsafe { total.as_mut() };
        if let (Some(free), Some(total)) = (free, total) {
            (*free, *total) = share(*free, *total);
        }
    }
    result
}

pub(super) unsafe extern "C" fn device_properties(properties: *mut u8, device: c_int, caller: usize) -> c_int {
    let result = real!(caller, cudaGetDeviceProperties(properties => *mut u8, device => c_int));
    // SAFETY: what the runtime has written to, on success.
    unsafe { show_share(result, properties) }
}

pub(super) unsafe extern "C" fn device_properties_v2(properties: *mut u8, device: c_int, caller: usize) -> c_int {
    let result = real!(caller, cudaGetDeviceProperties_v2(properties => *mut u8, device => c_int));
    // SAFETY: what the runtime has written to, on success.
    unsafe { show_share(result, properties) }
}

/// Replaces the size of the card in the properties with the instance's share.
///
/// # Safety
/// After success, `properties` is null or a `cudaDeviceProp` of some layout.
unsafe fn show_share(result: c_int, properties: *mut u8) -> c_int {
    if result == SUCCESS && crate::active() && !properties.is_null() {
        let total = properties.wrapping_add(TOTAL_GLOBAL_MEM).cast::<usize>();
        // SAFETY: the caller answers for it, and this field is in every layout.
        let size = unsafe { total.read_unaligned() };
        // SAFETY: as above.
        unsafe { total.write_unaligned(share(size, size).1) };
    }
    result
}

/// [`account::share`], in `usize`. Idempotent: answers of the driver's hooks are the share already, and stay as they
/// are.
fn share(free: usize, total: usize) -> (usize, usize) {
    let wide = |bytes: usize| u64::try_from(bytes).unwrap_or(u64::MAX);
    let (free, total) = account::share(wide(free), wide(total));
    let narrow = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
    (narrow(free), narrow(total))
}
