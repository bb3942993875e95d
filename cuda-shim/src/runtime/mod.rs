//! The functions of a CUDA runtime that bring memory with an address, free it, or say how much there is, for programs
//! that are linked to it dynamically.
//!
//! They go on to the runtime, whose calls of the driver meet our functions there: that is where memory is counted and
//! limited. Here only two things are left to do: to count for a runtime that has passed those by, and to see to it that
//! its answers about the card are the instance's share. (Arrays and pinned memory of such a runtime are not counted.)
#![allow(unsafe_code, reason = "functions without a frame")]

mod bodies;
mod escaped;
mod loaded;

use std::arch::naked_asm;
use std::ffi::{CStr, c_int, c_void};
use std::ptr::NonNull;

/// Exports a function of the runtime: what it does is in `body`, which gets the address that it returns to as one
/// argument more, in the register that comes after its own (the C ABI's order: rdi, rsi, rdx, rcx, r8).
macro_rules! runtime {
    ($( $name:ident, $register:literal, $body:ident; )*) => {
        $(
            /// As the runtime's.
            ///
            /// # Safety
            /// As the runtime's.
            #[unsafe(no_mangle)]
            #[unsafe(naked)]
            unsafe extern "C" fn $name() -> c_int {
                naked_asm!(concat!("mov ", $register, ", [rsp]"), "jmp {body}", body = sym bodies::$body)
            }
        )*

        /// What stands for a function of the runtime.
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

/// The function of whichever runtime is loaded.
pub(crate) fn any(name: &CStr) -> Option<NonNull<c_void>> {
    loaded::find(name, 0)
}
