//! Memory: allocated, freed, copied, set, counted.
//!
//! An allocation of no bytes succeeds with a null pointer, and freeing null succeeds, as the runtime documents for both.
#![allow(unsafe_code, reason = "exported C functions and the driver's")]

use crate::device::ready;
use crate::driver::{Address, Driver, Handle};
use crate::error::{INVALID_VALUE, Status, code, ok};
use std::ffi::{c_int, c_uint, c_void};
use std::ptr::null_mut;

/// Pointer to which an address is written: null from a caller is `None`.
type Out<'a> = Option<&'a mut *mut c_void>;

/// An element size that every alignment rule of pitched memory accepts.
const ELEMENT: c_uint = 16;
/// The last value of `cudaMemcpyKind`: the driver knows both sides by their addresses, so the kind says nothing more.
const KIND_DEFAULT: c_int = 4;

/// Writes what `allocate` puts into an address to `out`; null for no bytes.
fn allocated(out: Out<'_>, bytes: usize, allocate: impl FnOnce(&Driver, *mut Address) -> Status) -> c_int {
    let Some(out) = out else { return code(Err(INVALID_VALUE)) };
    *out = null_mut();
    let mut address = 0;
    let result = ready().and_then(|driver| if bytes == 0 { Ok(()) } else { ok(allocate(driver, &raw mut address)) });
    *out = address as *mut c_void;
    code(result)
}

/// Device memory.
#[unsafe(no_mangle)]
extern "C" fn cudaMalloc(out: Out<'_>, bytes: usize) -> c_int {
    // SAFETY: the address lives through the call; the driver checks what else it is told.
    allocated(out, bytes, |driver, address| unsafe { (driver.alloc)(address, bytes) })
}

/// Managed memory; `flags` as in `cudaMemAttachGlobal` and `cudaMemAttachHost`, the driver's own numbers.
#[unsafe(no_mangle)]
extern "C" fn cudaMallocManaged(out: Out<'_>, bytes: usize, flags: c_uint) -> c_int {
    // SAFETY: the address lives through the call; the driver checks what else it is told.
    allocated(out, bytes, |driver, address| unsafe { (driver.alloc_managed)(address, bytes, flags) })
}

/// Device memory for rows, each beginning where copies are fast.
#[unsafe(no_mangle)]
extern "C" fn cudaMallocPitch(out: Out<'_>, pitch: Option<&mut usize>, width: usize, height: usize) -> c_int {
    let Some(pitch) = pitch else { return code(Err(INVALID_VALUE)) };
    let bytes = width.saturating_mul(height);
    // SAFETY: the address lives through the call; the driver checks what else it is told.
    allocated(out, bytes, |driver, address| unsafe { (driver.alloc_pitch)(address, pitch, width, height, ELEMENT) })
}

/// Device memory from the device's pool, in the order of a stream.
#[unsafe(no_mangle)]
extern "C" fn cudaMallocAsync(out: Out<'_>, bytes: usize, stream: Handle) -> c_int {
    // SAFETY: the address lives through the call; the driver checks what else it is told.
    allocated(out, bytes, |driver, address| unsafe { (driver.alloc_async)(address, bytes, stream) })
}

/// The same for programs built for the per-thread default stream.
#[unsafe(no_mangle)]
extern "C" fn cudaMallocAsync_ptsz(out: Out<'_>, bytes: usize, stream: Handle) -> c_int {
    // SAFETY: the address lives through the call; the driver checks what else it is told.
    allocated(out, bytes, |driver, address| unsafe { (driver.alloc_async_ptsz)(address, bytes, stream) })
}

/// Pinned host memory; `flags` as in `cudaHostAllocDefault` and its kin, the driver's own numbers.
#[unsafe(no_mangle)]
extern "C" fn cudaHostAlloc(out: Out<'_>, bytes: usize, flags: c_uint) -> c_int {
    // SAFETY: the address lives through the call; the driver checks what else it is told.
    allocated(out, bytes, |driver, address| unsafe { (driver.host_alloc)(address.cast(), bytes, flags) })
}

/// Pinned host memory.
#[unsafe(no_mangle)]
extern "C" fn cudaMallocHost(out: Out<'_>, bytes: usize) -> c_int {
    cudaHostAlloc(out, bytes, 0)
}

fn freed(pointer: *mut c_void, free: impl FnOnce(&Driver, Address) -> Status) -> c_int {
    code(ready().and_then(|driver| if pointer.is_null() { Ok(()) } else { ok(free(driver, pointer as Address)) }))
}

/// Frees device or managed memory.
#[unsafe(no_mangle)]
extern "C" fn cudaFree(pointer: *mut c_void) -> c_int {
    // SAFETY: the driver checks the address.
    freed(pointer, |driver, address| unsafe { (driver.free)(address) })
}

/// Frees device memory in the order of a stream.
#[unsafe(no_mangle)]
extern "C" fn cudaFreeAsync(pointer: *mut c_void, stream: Handle) -> c_int {
    // SAFETY: the driver checks address and stream.
    freed(pointer, |driver, address| unsafe { (driver.free_async)(address, stream) })
}

/// The same for programs built for the per-thread default stream.
#[unsafe(no_mangle)]
extern "C" fn cudaFreeAsync_ptsz(pointer: *mut c_void, stream: Handle) -> c_int {
    // SAFETY: the driver checks address and stream.
    freed(pointer, |driver, address| unsafe { (driver.free_async_ptsz)(address, stream) })
}

/// Frees pinned host memory.
#[unsafe(no_mangle)]
extern "C" fn cudaFreeHost(pointer: *mut c_void) -> c_int {
    // SAFETY: the driver checks the address.
    freed(pointer, |driver, _| unsafe { (driver.host_free)(pointer) })
}

/// Free and total memory of the device.
#[unsafe(no_mangle)]
extern "C" fn cudaMemGetInfo(free: *mut usize, total: *mut usize) -> c_int {
    // SAFETY: the program's pointers, which the driver checks for null.
    code(ready().and_then(|driver| ok(unsafe { (driver.info)(free, total) })))
}

/// Copies bytes.
///
/// # Safety
/// `to` and `from` have this many bytes, on the host or the device.
#[unsafe(no_mangle)]
unsafe extern "C" fn cudaMemcpy(to: *mut c_void, from: *const c_void, bytes: usize, kind: c_int) -> c_int {
    if !(0..=KIND_DEFAULT).contains(&kind) {
        return code(Err(INVALID_VALUE));
    }
    // SAFETY: what the caller promises.
    code(ready().and_then(|driver| ok(unsafe { (driver.copy)(to as Address, from as Address, bytes) })))
}

/// Copies bytes in the order of a stream.
///
/// # Safety
/// As for [`cudaMemcpy`], until the stream is done; `stream` is null or a stream.
#[unsafe(no_mangle)]
unsafe extern "C" fn cudaMemcpyAsync(
    to: *mut c_void,
    from: *const c_void,
    bytes: usize,
    kind: c_int,
    stream: Handle,
) -> c_int {
    if !(0..=KIND_DEFAULT).contains(&kind) {
        return code(Err(INVALID_VALUE));
    }
    // SAFETY: what the caller promises.
    code(ready().and_then(|driver| ok(unsafe { (driver.copy_async)(to as Address, from as Address, bytes, stream) })))
}

/// Fills bytes with the low byte of `value`.
///
/// # Safety
/// `to` has this many bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn cudaMemset(to: *mut c_void, value: c_int, bytes: usize) -> c_int {
    // SAFETY: what the caller promises.
    code(ready().and_then(|driver| ok(unsafe { (driver.set)(to as Address, value.to_le_bytes()[0], bytes) })))
}

/// Fills bytes in the order of a stream.
///
/// # Safety
/// As for [`cudaMemset`], until the stream is done; `stream` is null or a stream.
#[unsafe(no_mangle)]
unsafe extern "C" fn cudaMemsetAsync(to: *mut c_void, value: c_int, bytes: usize, stream: Handle) -> c_int {
    // SAFETY: what the caller promises.
    code(
        ready()
            .and_then(|driver| ok(unsafe { (driver.set_async)(to as Address, value.to_le_bytes()[0], bytes, stream) })),
    )
}
