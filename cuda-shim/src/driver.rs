//! Calls of the real driver beside the functions that are hooked.

use crate::abi::{
    AllocNodeParams, AllocationProperties, Handle, In, Location, NOT_SUPPORTED, Out, PoolProperties, SUCCESS,
};
use std::sync::atomic::{AtomicU8, Ordering};

/// Defines safe functions that call the driver's. An entry that this driver does not have returns [`NOT_SUPPORTED`].
macro_rules! driver {
    ($( fn $symbol:ident($($name:ident: $type:ty),* $(,)?); )*) => {
        $(
            #[allow(unsafe_code, non_snake_case, clippy::too_many_arguments, reason = "the driver's function, as it is")]
            pub(super) fn $symbol($($name: $type),*) -> $crate::abi::CUresult {
                let Some(entry) = $crate::real::function!(
                    $symbol as unsafe extern "C" fn($($type),*) -> $crate::abi::CUresult
                ) else {
                    return $crate::abi::NOT_SUPPORTED;
                };
                // SAFETY: the types are the header's; pointers are places of ours, or the caller's.
                unsafe { entry($($name),*) }
            }
        )*
    };
}
pub(crate) use driver;

driver! {
    fn cuCtxGetApiVersion(context: Handle, version: Out<u32>);
    fn cuCtxGetCurrent(context: Out<Handle>);
    fn cuCtxGetDevice(device: Out<i32>);
    fn cuCtxPushCurrent_v2(context: Handle);
    fn cuCtxPopCurrent_v2(context: Out<Handle>);
    fn cuStreamGetCtx(stream: Handle, context: Out<Handle>);
    fn cuStreamGetDevice(stream: Handle, device: Out<i32>);
    fn cuDeviceGetAttribute(value: Out<i32>, attribute: i32, device: i32);
    fn cuDriverGetVersion(version: Out<i32>);
    fn cuMemAllocManaged(address: Out<u64>, bytes: usize, flags: u32);
    fn cuMemFree_v2(address: u64);
    fn cuMemAdvise(address: u64, bytes: usize, advice: i32, device: i32);
    fn cuMemAdvise_v2(address: u64, bytes: usize, advice: i32, location: Location);
    fn cuMemGetAddressRange_v2(base: Out<u64>, bytes: Out<usize>, address: u64);
    fn cuStreamIsCapturing(stream: Handle, status: Out<i32>);
    fn cuThreadExchangeStreamCaptureMode(mode: Out<i32>);
    fn cuEventCreate(event: Out<Handle>, flags: u32);
    fn cuEventRecord(event: Handle, stream: Handle);
    fn cuEventQuery(event: Handle);
    fn cuEventDestroy_v2(event: Handle);
    fn cuDeviceGetDefaultMemPool(pool: Out<Handle>, device: i32);
    fn cuDeviceGetMemPool(pool: Out<Handle>, device: i32);
    fn cuMemPoolCreate(pool: Out<Handle>, properties: In<PoolProperties>);
    fn cuMemPoolDestroy(pool: Handle);
    fn cuMemPoolGetAttribute(pool: Handle, attribute: i32, value: Out<u64>);
    fn cuMemPoolSetAttribute(pool: Handle, attribute: i32, value: Out<u64>);
    fn cuMemPoolTrimTo(pool: Handle, keep: usize);
    fn cuMemAllocFromPoolAsync(address: Out<u64>, bytes: usize, pool: Handle, stream: Handle);
    fn cuMemFreeAsync(address: u64, stream: Handle);
    fn cuIpcCloseMemHandle(address: u64);
    fn cuMemGetAllocationGranularity(granularity: Out<usize>, properties: In<AllocationProperties>, option: i32);
    fn cuDevicePrimaryCtxGetState(device: i32, flags: Out<u32>, active: Out<i32>);
    fn cuDevicePrimaryCtxRetain(context: Out<Handle>, device: i32);
    fn cuDevicePrimaryCtxRelease_v2(device: i32);
    fn cuDeviceGetGraphMemAttribute(device: i32, attribute: i32, value: Out<u64>);
    fn cuGraphGetNodes(graph: Handle, nodes: Out<Handle>, count: Out<usize>);
    fn cuGraphNodeGetType(node: Handle, kind: Out<i32>);
    fn cuGraphMemAllocNodeGetParams(node: Handle, parameters: Out<AllocNodeParams>);
    fn cuDeviceGraphMemTrim(device: i32);
    fn cuGraphChildGraphNodeGetGraph(node: Handle, graph: Out<Handle>);
}

const TEXTURE_ALIGNMENT: i32 = 14;
const CONCURRENT_MANAGED_ACCESS: i32 = 89;
const ADVISE_PREFERRED_LOCATION: i32 = 3;

/// Calls a function that answers through a pointer, and returns the answer or the error.
pub(crate) fn ask<T: Copy + Default>(call: impl FnOnce(Out<T>) -> i32) -> Result<T, i32> {
    let mut value = T::default();
    match call(Out::of(&mut value)) {
        SUCCESS => Ok(value),
        error => Err(error),
    }
}

/// Context of this thread; 0 for none.
pub(crate) fn context() -> Handle {
    ask(cuCtxGetCurrent).unwrap_or(0)
}

/// Device of this thread's context.
pub(crate) fn device() -> Result<i32, i32> {
    ask(cuCtxGetDevice)
}

/// Newest version of CUDA that the driver knows: 13000 is 13.0. 0 when it cannot be asked.
pub(crate) fn version() -> i32 {
    ask(cuDriverGetVersion).unwrap_or(0)
}

/// Device memory can be moved while programs run on the device: concurrent managed access.
pub(crate) fn can_move(device: i32) -> bool {
    const UNKNOWN: u8 = 0;
    static KNOWN: [AtomicU8; 64] = [const { AtomicU8::new(UNKNOWN) }; 64];
    let Some(known) = usize::try_from(device).ok().and_then(|device| KNOWN.get(device)) else { return false };
    if known.load(Ordering::Relaxed) == UNKNOWN {
        let Ok(answer) = ask(|value| cuDeviceGetAttribute(value, CONCURRENT_MANAGED_ACCESS, device)) else {
            return false;
        };
        known.store(1 + u8::from(answer != 0), Ordering::Relaxed);
    }
    known.load(Ordering::Relaxed) == 2
}

/// Allocates managed memory with `device` as its preferred location.
pub(crate) fn allocate_managed(address: Out<u64>, bytes: usize, device: i32) -> i32 {
    const ATTACH_GLOBAL: u32 = 1;
    let result = cuMemAllocManaged(address, bytes, ATTACH_GLOBAL);
    if let (SUCCESS, Some(address)) = (result, address.get()) {
        prefer(address, bytes, device);
    }
    result
}

/// Sets the preferred location. Only advice: memory for which it cannot be followed is slower, not wrong.
fn prefer(address: u64, bytes: usize, device: i32) {
    let location = Location { kind: Location::DEVICE, id: device };
    if cuMemAdvise_v2(address, bytes, ADVISE_PREFERRED_LOCATION, location) == NOT_SUPPORTED {
        cuMemAdvise(address, bytes, ADVISE_PREFERRED_LOCATION, device);
    }
}

/// Row alignment that suits every use of pitched memory; 512 when the device does not say.
pub(crate) fn row_alignment(device: i32) -> usize {
    let answer = ask(|value| cuDeviceGetAttribute(value, TEXTURE_ALIGNMENT, device));
    answer.ok().and_then(|bytes| usize::try_from(bytes).ok()).filter(|bytes| bytes.is_power_of_two()).unwrap_or(512)
}

/// Work put into this stream becomes part of a graph now.
pub(crate) fn is_capturing(stream: Handle) -> bool {
    ask(|status| cuStreamIsCapturing(stream, status)).is_ok_and(|status| status != 0)
}

/// Runs calls outside every capture, without breaking one that another stream of any thread is in. A driver without the
/// call (before 10.1) has no such rule to lift.
pub(crate) fn outside_captures<T>(calls: impl FnOnce() -> T) -> T {
    const RELAXED: i32 = 2;
    let mut mode = RELAXED;
    let was_exchanged = cuThreadExchangeStreamCaptureMode(Out::of(&mut mode)) == SUCCESS;
    let result = calls();
    if was_exchanged {
        cuThreadExchangeStreamCaptureMode(Out::of(&mut mode));
    }
    result
}
