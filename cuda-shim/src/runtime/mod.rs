//! Hooks of the CUDA runtime: allocations with an address, frees, and reports of memory, for programs that are linked
//! to it dynamically.
//!
//! They call the runtime, whose calls of the driver reach the driver's hooks: there memory is counted and limited. Left
//! to do here: counting for a runtime that bypasses those, and reporting the instance's share of the card. (Arrays and
//! pinned memory of such a runtime are not counted.)
#![allow(unsafe_code, reason = "functions without a frame")]

mod bodies;
mod escaped;
mod loaded;

use std::arch::naked_asm;
use std::ffi::{CStr, c_int, c_void};
use std::ptr::NonNull;

/// Exports a function of the runtime that jumps to `body`, which gets the return address as one more argument, in the
/// register after its own (the C ABI's order: rdi, rsi, rdx, rcx, r8).
macro_rules! runtime {
    ($( $name:ident, $register:literal, $body:ident; )*) => {
        $(
            /// The runtime's function of the same name.
            ///
            /// # Safety
            /// Those of the runtime's function.
            #[unsafe(no_mangle)]
            #[unsafe(naked)]
            unsafe extern "C" fn $name() -> c_int {
                naked_asm!(concat!("mov ", $register, ", [rsp]"), "jmp {body}", body = sym bodies::$body)
            }
        )*

        /// Hook for a function of the runtime.
        pub(crate) fn hook(name: &str) -> Option<NonNull<c_void>> {
            let address = match name {
                $( stringify!($name) => $name as unsafe extern "C" fn() -> c_int as *mut c_void, )*
                _ => return None,
            };
            NonNull::new(address)
        }
    };
}

runtime! {
    cudaMalloc, "rdx", malloc;
    cudaMallocManaged, "rcx", malloc_managed;
    cudaMallocPitch, "r8", malloc_pitch;
    cudaMalloc3D, "rsi", malloc_3d;
    cudaMallocAsync, "rcx", malloc_async;
    cudaMallocAsync_ptsz, "rcx", malloc_async_ptsz;
    cudaMallocFromPoolAsync, "r8", malloc_from_pool;
    cudaMallocFromPoolAsync_ptsz, "r8", malloc_from_pool_ptsz;
    cudaFree, "rsi", free;
    cudaFreeAsync, "rdx", free_async;
    cudaFreeAsync_ptsz, "rdx", free_async_ptsz;
    cudaMemGetInfo, "rdx", mem_get_info;
    cudaGetDeviceProperties, "rdx", device_properties;
    cudaGetDeviceProperties_v2, "rdx", device_properties_v2;
}

/// Function of whichever runtime is loaded.
pub(crate) fn any(name: &CStr) -> Option<NonNull<c_void>> {
    loaded::find(name, 0)
}
