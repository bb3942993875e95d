//! Devices: how many, which one a thread uses, and its primary context, which the first call that needs one makes.
#![allow(unsafe_code, reason = "exported C functions and the driver's")]

use crate::driver::{Driver, Handle};
use crate::error::{INVALID_DEVICE, INVALID_VALUE, Status, code, ok};
use std::cell::Cell;
use std::ffi::c_int;
use std::ptr::null_mut;

thread_local! {
    static DEVICE: Cell<c_int> = const { Cell::new(0) };
}

/// The driver, with a context current on this thread: its own, or the primary one of the thread's device.
///
/// # Errors
/// Errors of [`Driver::get`], and of making the context.
pub(crate) fn ready() -> Result<&'static Driver, Status> {
    let driver = Driver::get()?;
    let mut current: Handle = null_mut();
    // SAFETY: `current` is alive.
    ok(unsafe { (driver.get_current)(&raw mut current) })?;
    if current.is_null() {
        enter(driver, DEVICE.get())?;
    }
    Ok(driver)
}

/// Retained once for each entering and never released: the runtime keeps primary contexts until the process ends.
fn enter(driver: &Driver, ordinal: c_int) -> Result<(), Status> {
    let (mut device, mut context) = (0, null_mut());
    // SAFETY: `device` is alive.
    ok(unsafe { (driver.device)(&raw mut device, ordinal) })?;
    // SAFETY: `context` is alive, `device` came from the driver.
    ok(unsafe { (driver.primary_retain)(&raw mut context, device) })?;
    // SAFETY: the context just retained.
    ok(unsafe { (driver.set_current)(context) })
}

fn count() -> Result<c_int, Status> {
    let mut count = 0;
    // SAFETY: `count` is alive.
    ok(unsafe { (Driver::get()?.device_count)(&raw mut count) })?;
    Ok(count)
}

/// Number of devices.
#[unsafe(no_mangle)]
extern "C" fn cudaGetDeviceCount(out: Option<&mut c_int>) -> c_int {
    code(out.ok_or(INVALID_VALUE).and_then(|out| {
        *out = 0;
        *out = count()?;
        Ok(())
    }))
}

/// The thread's device.
#[unsafe(no_mangle)]
extern "C" fn cudaGetDevice(out: Option<&mut c_int>) -> c_int {
    code(out.ok_or(INVALID_VALUE).map(|out| *out = DEVICE.get()))
}

/// Makes a device the thread's, and its primary context current.
#[unsafe(no_mangle)]
extern "C" fn cudaSetDevice(device: c_int) -> c_int {
    let set = || {
        if !(0..count()?).contains(&device) {
            return Err(INVALID_DEVICE);
        }
        enter(Driver::get()?, device)?;
        DEVICE.set(device);
        Ok(())
    };
    code(set())
}

/// Waits for everything on the thread's device.
#[unsafe(no_mangle)]
extern "C" fn cudaDeviceSynchronize() -> c_int {
    // SAFETY: takes nothing.
    code(ready().and_then(|driver| ok(unsafe { (driver.synchronize)() })))
}

/// Frees everything on the thread's device.
#[unsafe(no_mangle)]
extern "C" fn cudaDeviceReset() -> c_int {
    let reset = || {
        let driver = ready()?;
        let mut device = 0;
        // SAFETY: `device` is alive.
        ok(unsafe { (driver.device)(&raw mut device, DEVICE.get()) })?;
        // SAFETY: a device that the driver named.
        ok(unsafe { (driver.primary_reset)(device) })
    };
    code(reset())
}

/// The newest CUDA that the driver serves; 0 without a driver.
#[unsafe(no_mangle)]
extern "C" fn cudaDriverGetVersion(out: Option<&mut c_int>) -> c_int {
    let Some(out) = out else { return code(Err(INVALID_VALUE)) };
    *out = 0;
    // SAFETY: `out` is alive.
    code(Driver::get().map_or(Ok(()), |driver| ok(unsafe { (driver.version)(out) })))
}
