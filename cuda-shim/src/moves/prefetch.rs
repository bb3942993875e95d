//! The driver's calls of a move, on the calling thread: context, stream, prefetches.
//!
//! Errors are `CUresult`s, and none stops anything here. The driver's version selects the form of the prefetch: with an
//! ordinal since CUDA 8, with a location since 12.2, in batches since 13.0.

use crate::abi::{CUresult, Handle, Location, NOT_SUPPORTED, Out, SUCCESS};
use crate::driver::{self, ask, driver};

driver! {
    fn cuCtxPushCurrent_v2(context: Handle);
    fn cuCtxPopCurrent_v2(context: Out<Handle>);
    fn cuStreamCreate(stream: Out<Handle>, flags: u32);
    fn cuStreamSynchronize(stream: Handle);
    fn cuStreamDestroy_v2(stream: Handle);
    fn cuMemPrefetchAsync(address: u64, bytes: usize, device: i32, stream: Handle);
    fn cuMemPrefetchAsync_v2(address: u64, bytes: usize, location: Location, flags: u32, stream: Handle);
    fn cuMemPrefetchBatchAsync(
        addresses: Out<u64>,
        sizes: Out<usize>,
        count: usize,
        locations: Out<Location>,
        firsts: Out<usize>,
        locations_count: usize,
        flags: u64,
        stream: Handle,
    );
}

/// Versions of the driver, as `cuDriverGetVersion` counts, that introduced a form of the prefetch.
const WITH_LOCATIONS: i32 = 12_020;
const IN_BATCHES: i32 = 13_000;
/// `CU_STREAM_NON_BLOCKING`: neither this stream nor the legacy stream waits for the other.
const NON_BLOCKING: u32 = 1;
/// `CU_DEVICE_CPU`, in place of a device.
const DEVICE_CPU: i32 = -1;

/// Destination of a move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Host,
    /// Device with this ordinal.
    Device(i32),
}

impl From<Place> for Location {
    fn from(place: Place) -> Self {
        match place {
            Place::Host => Self { kind: Self::HOST, id: 0 },
            Place::Device(id) => Self { kind: Self::DEVICE, id },
        }
    }
}

/// Context that is current on this thread until this is dropped.
pub(super) struct Current(());

impl Current {
    pub(super) fn new(context: Handle) -> Result<Self, CUresult> {
        check(cuCtxPushCurrent_v2(context))?;
        Ok(Self(()))
    }

    pub(super) fn device(&self) -> Result<i32, CUresult> {
        driver::device()
    }

    pub(super) fn stream(&self) -> Result<Stream<'_>, CUresult> {
        let stream = ask(|stream| cuStreamCreate(stream, NON_BLOCKING))?;
        Ok(Stream { stream, version: driver::version(), _context: self })
    }
}

impl Drop for Current {
    fn drop(&mut self) {
        cuCtxPopCurrent_v2(Out::of(&mut 0));
    }
}

/// Stream of a move's own, in a current context.
pub(super) struct Stream<'a> {
    stream: Handle,
    /// Version of the driver.
    version: i32,
    _context: &'a Current,
}

impl Stream<'_> {
    /// Starts a prefetch of one range.
    pub(super) fn prefetch(&self, address: u64, bytes: u64, to: Place) -> Result<(), CUresult> {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        if self.version >= WITH_LOCATIONS {
            return check(cuMemPrefetchAsync_v2(address, bytes, to.into(), 0, self.stream));
        }
        let device = match to {
            Place::Host => DEVICE_CPU,
            Place::Device(ordinal) => ordinal,
        };
        check(cuMemPrefetchAsync(address, bytes, device, self.stream))
    }

    /// Starts prefetches of many ranges with one call; an error where the driver has no such call.
    pub(super) fn prefetch_all(&self, addresses: &mut [u64], sizes: &mut [usize], to: Place) -> Result<(), CUresult> {
        if self.version < IN_BATCHES {
            return Err(NOT_SUPPORTED);
        }
        // Both arrays have `count` elements, and there is one location, from operation 0 on.
        let count = addresses.len().min(sizes.len());
        let (addresses, sizes) = (Out::array(addresses), Out::array(sizes));
        let (mut location, mut first) = (Location::from(to), 0);
        let (location, first) = (Out::of(&mut location), Out::of(&mut first));
        check(cuMemPrefetchBatchAsync(addresses, sizes, count, location, first, 1, 0, self.stream))
    }

    /// Waits until all prefetches have ended.
    pub(super) fn synchronize(&self) -> Result<(), CUresult> {
        check(cuStreamSynchronize(self.stream))
    }
}

impl Drop for Stream<'_> {
    fn drop(&mut self) {
        cuStreamDestroy_v2(self.stream);
    }
}

fn check(result: CUresult) -> Result<(), CUresult> {
    if result == SUCCESS { Ok(()) } else { Err(result) }
}
