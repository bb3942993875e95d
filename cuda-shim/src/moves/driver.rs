//! The driver's calls of a move, on the calling thread: a context, a stream of our own in it, prefetches.
//!
//! Every error is a `CUresult`, and none stops anything here. Which form of a prefetch is called goes by the driver's
//! version: with an ordinal since CUDA 8, with a location since 12.2, in batches since 13.0.
#![allow(unsafe_code, reason = "calls of the driver")]

use crate::real::function;
use std::ffi::{c_int, c_uint, c_ulonglong, c_void};
use std::ptr::null_mut;

/// Versions of the driver, as `cuDriverGetVersion` counts, that brought a form of the prefetch.
const WITH_LOCATIONS: c_int = 12_020;
const IN_BATCHES: c_int = 13_000;
/// `CUDA_ERROR_NOT_FOUND`: this driver has no such entry.
const NOT_FOUND: u32 = 500;
/// `CU_STREAM_CAPTURE_MODE_RELAXED`.
const CAPTURE_RELAXED: c_int = 2;
/// `CU_STREAM_NON_BLOCKING`: does not wait for the legacy stream, nor that for ours.
const NON_BLOCKING: c_uint = 1;
/// `CU_DEVICE_CPU`, where a device is meant.
const DEVICE_CPU: c_int = -1;
/// `CU_MEM_LOCATION_TYPE_DEVICE`.
const LOCATION_DEVICE: c_int = 1;
/// `CU_MEM_LOCATION_TYPE_HOST`.
const LOCATION_HOST: c_int = 2;

/// Where memory goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Host,
    /// With its ordinal.
    Device(c_int),
}

/// `CUmemLocation`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Location {
    kind: c_int,
    id: c_int,
}

impl From<Place> for Location {
    fn from(place: Place) -> Self {
        match place {
            Place::Host => Self { kind: LOCATION_HOST, id: 0 },
            Place::Device(id) => Self { kind: LOCATION_DEVICE, id },
        }
    }
}

/// Lets the driver take what this thread does as safe while another thread captures a stream: without it, our calls
/// would be refused or end that capture. A driver without the call (before 10.1) has no such rule to lift.
pub(super) fn relax_capture() {
    if let Some(exchange) = function!(cuThreadExchangeStreamCaptureMode as unsafe extern "C" fn(*mut c_int) -> c_int) {
        let mut mode = CAPTURE_RELAXED;
        // SAFETY: the driver writes the mode that was into a variable of ours.
        unsafe { exchange(&raw mut mode) };
    }
}

/// A context that is current on this thread until this is dropped.
pub(super) struct Current(());

impl Current {
    pub(super) fn new(context: u64) -> Result<Self, u32> {
        let push = function!(cuCtxPushCurrent_v2 as unsafe extern "C" fn(u64) -> c_int).ok_or(NOT_FOUND)?;
        // SAFETY: a handle that the driver gave; it checks by itself whether that still means a context.
        check(unsafe { push(context) })?;
        Ok(Self(()))
    }

    pub(super) fn device(&self) -> Result<c_int, u32> {
        let get = function!(cuCtxGetDevice as unsafe extern "C" fn(*mut c_int) -> c_int).ok_or(NOT_FOUND)?;
        let mut device = 0;
        // SAFETY: the driver writes into a variable of ours.
        check(unsafe { get(&raw mut device) })?;
        Ok(device)
    }

    pub(super) fn stream(&self) -> Result<Stream<'_>, u32> {
        type Create = unsafe extern "C" fn(*mut *mut c_void, c_uint) -> c_int;
        let create = function!(cuStreamCreate as Create).ok_or(NOT_FOUND)?;
        let mut stream = null_mut();
        // SAFETY: the driver writes into a variable of ours.
        check(unsafe { create(&raw mut stream, NON_BLOCKING) })?;
        Ok(Stream { stream, version: version(), _context: self })
    }
}

impl Drop for Current {
    fn drop(&mut self) {
        if let Some(pop) = function!(cuCtxPopCurrent_v2 as unsafe extern "C" fn(*mut u64) -> c_int) {
            let mut context = 0;
            // SAFETY: the driver writes into a variable of ours; this thread pushed once and nobody else uses it.
            unsafe { pop(&raw mut context) };
        }
    }
}

/// A stream of our own in a context that is current.
pub(super) struct Stream<'a> {
    stream: *mut c_void,
    /// Of the driver.
    version: c_int,
    _context: &'a Current,
}

impl Stream<'_> {
    /// Begins to move one range.
    pub(super) fn prefetch(&self, address: u64, bytes: u64, to: Place) -> Result<(), u32> {
        type Ordinal = unsafe extern "C" fn(u64, usize, c_int, *mut c_void) -> c_int;
        type Located = unsafe extern "C" fn(u64, usize, Location, c_uint, *mut c_void) -> c_int;
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        if self.version >= WITH_LOCATIONS {
            let prefetch = function!(cuMemPrefetchAsync_v2 as Located).ok_or(NOT_FOUND)?;
            // SAFETY: addresses are the driver's to check; the stream is ours and alive.
            return check(unsafe { prefetch(address, bytes, to.into(), 0, self.stream) });
        }
        let prefetch = function!(cuMemPrefetchAsync as Ordinal).ok_or(NOT_FOUND)?;
        let device = match to {
            Place::Host => DEVICE_CPU,
            Place::Device(ordinal) => ordinal,
        };
        // SAFETY: as above.
        check(unsafe { prefetch(address, bytes, device, self.stream) })
    }

    /// Begins to move many ranges with one call; an error where the driver has no such call.
    pub(super) fn prefetch_all(&self, addresses: &mut [u64], sizes: &mut [usize], to: Place) -> Result<(), u32> {
        type Batch = unsafe extern "C" fn(
            *mut u64,
            *mut usize,
            usize,
            *mut Location,
            *mut usize,
            usize,
            c_ulonglong,
            *mut c_void,
        ) -> c_int;
        if self.version < IN_BATCHES {
            return Err(NOT_FOUND);
        }
        let prefetch = function!(cuMemPrefetchBatchAsync as Batch).ok_or(NOT_FOUND)?;
        let count = addresses.len().min(sizes.len());
        let (mut location, mut first) = (Location::from(to), 0);
        let (addresses, sizes) = (addresses.as_mut_ptr(), sizes.as_mut_ptr());
        let (location, first) = (&raw mut location, &raw mut first);
        // SAFETY: both arrays have `count` elements, there is one location from operation 0 on, all live through the
        // call; the stream is ours and alive.
        check(unsafe { prefetch(addresses, sizes, count, location, first, 1, 0, self.stream) })
    }

    /// Waits until everything that was begun has ended.
    pub(super) fn synchronize(&self) -> Result<(), u32> {
        let synchronize = function!(cuStreamSynchronize as unsafe extern "C" fn(*mut c_void) -> c_int);
        // SAFETY: the stream is ours and alive.
        check(unsafe { synchronize.ok_or(NOT_FOUND)?(self.stream) })
    }
}

impl Drop for Stream<'_> {
    fn drop(&mut self) {
        if let Some(destroy) = function!(cuStreamDestroy_v2 as unsafe extern "C" fn(*mut c_void) -> c_int) {
            // SAFETY: the stream is ours and not used again; its context is current still.
            unsafe { destroy(self.stream) };
        }
    }
}

/// 0 when it cannot be asked.
fn version() -> c_int {
    let mut version = 0;
    if let Some(get) = function!(cuDriverGetVersion as unsafe extern "C" fn(*mut c_int) -> c_int) {
        // SAFETY: the driver writes into a variable of ours.
        unsafe { get(&raw mut version) };
    }
    version
}

fn check(result: c_int) -> Result<(), u32> {
    match result {
        0 => Ok(()),
        error => Err(u32::try_from(error).unwrap_or(u32::MAX)),
    }
}
