//! `cudaGetDeviceProperties`: the members that programs about memory read, at their places; all others are 0.
#![allow(unsafe_code, reason = "exported C functions and the driver's")]

use crate::driver::Driver;
use crate::error::{INVALID_VALUE, Status, code, ok};
use std::ffi::c_int;

/// `cudaDeviceProp` of one version of CUDA: its size, and where its members are, in bytes.
struct Layout {
    bytes: usize,
    /// Attribute of the driver, and the place of the `int` that shows it.
    ints: [(c_int, usize); 7],
}

const NAME_BYTES: c_int = 256;
const TOTAL_GLOBAL_MEM: usize = 288;

/// Attributes of `CUdevice_attribute`: warp size, threads of a block, compute capability (2), multiprocessors, managed
/// memory, concurrent managed access.
const CUDA_12: Layout =
    Layout { bytes: 1032, ints: [(10, 308), (1, 320), (75, 360), (76, 364), (16, 388), (83, 652), (89, 676)] };
const CUDA_13: Layout =
    Layout { bytes: 1008, ints: [(10, 308), (1, 320), (75, 360), (76, 364), (16, 384), (83, 636), (89, 656)] };

/// Writes the properties of a device.
///
/// # Safety
/// `out` is null or points to `layout.bytes` bytes.
unsafe fn write(out: *mut u8, ordinal: c_int, layout: &Layout) -> Result<(), Status> {
    if out.is_null() {
        return Err(INVALID_VALUE);
    }
    let driver = Driver::get()?;
    let (mut device, mut bytes) = (0, 0_usize);
    // SAFETY: `device` is alive.
    ok(unsafe { (driver.device)(&raw mut device, ordinal) })?;
    // SAFETY: `bytes` is alive.
    ok(unsafe { (driver.device_bytes)(&raw mut bytes, device) })?;
    // SAFETY: what the caller promises.
    let prop = unsafe { std::slice::from_raw_parts_mut(out, layout.bytes) };
    prop.fill(0);
    // SAFETY: the name's place at the beginning has this many bytes.
    ok(unsafe { (driver.device_name)(prop.as_mut_ptr().cast(), NAME_BYTES, device) })?;
    prop[TOTAL_GLOBAL_MEM..][..8].copy_from_slice(&bytes.to_ne_bytes());
    for (attribute, at) in layout.ints {
        let mut value = 0;
        // SAFETY: `value` is alive.
        ok(unsafe { (driver.device_attribute)(&raw mut value, attribute, device) })?;
        prop[at..at + 4].copy_from_slice(&value.to_ne_bytes());
    }
    Ok(())
}

/// Layout in the headers of CUDA 13.
///
/// # Safety
/// `out` is null or points to a `cudaDeviceProp` of CUDA 13.
#[unsafe(no_mangle)]
unsafe extern "C" fn cudaGetDeviceProperties(out: *mut u8, device: c_int) -> c_int {
    // SAFETY: what the caller promises.
    code(unsafe { write(out, device, &CUDA_13) })
}

/// Meaning of `cudaGetDeviceProperties` in the headers of CUDA 12.
///
/// # Safety
/// `out` is null or points to a `cudaDeviceProp` of CUDA 12.
#[unsafe(no_mangle)]
unsafe extern "C" fn cudaGetDeviceProperties_v2(out: *mut u8, device: c_int) -> c_int {
    // SAFETY: what the caller promises.
    code(unsafe { write(out, device, &CUDA_12) })
}
