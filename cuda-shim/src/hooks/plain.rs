//! `cuMemAlloc` and its variants, managed memory, and `cuMemFree`.
//!
//! Unified mode converts device memory: it is allocated as managed memory that prefers the device, wherever the device
//! can move it. Small allocations stay device memory as long as their sum is small ([`ranges::stays_small`]). The first
//! version of these functions (CUDA 2) has addresses of 32 bits, too small for managed memory: it stays device memory.

use super::entry::hooks;
use super::ledger::{free, keep, refusal, remember, size};
use super::reclaim::{allocate, reserve};
use super::{deferred, pools};
use crate::abi::{CUresult, INVALID_VALUE, Out, SUCCESS};
use crate::account;
use crate::account::settings;
use crate::driver::{allocate_managed, can_move, context, device, row_alignment};
use crate::ranges::{self, Kind, Range};
use omni_gpu_protocol::account::Mode;

hooks! {
    fn cuMemAlloc(address: Out<u32>, bytes: u32) |real| short(address, u64::from(bytes), |_| real(address, bytes));
    fn cuMemAlloc_v2(address: Out<u64>, bytes: usize) |real| {
        if address.is_null() || bytes == 0 {
            return real(address, bytes);
        }
        deferred::collect();
        match movable_device(bytes) {
            Some(device) => converted(address, bytes, device),
            None => counted(address, bytes, Kind::Device, || real(address, bytes)),
        }
    };
    fn cuMemAllocManaged(address: Out<u64>, bytes: usize, flags: u32) |real| {
        if address.is_null() || bytes == 0 {
            return real(address, bytes, flags);
        }
        deferred::collect();
        counted(address, bytes, Kind::Managed, || real(address, bytes, flags))
    };
    fn cuMemAllocPitch(address: Out<u32>, pitch: Out<u32>, width: u32, height: u32, element: u32) |real| {
        let bytes = rows(width as usize, height as usize, device().map_or(512, row_alignment)).map_or(0, size);
        short(address, bytes, |_| real(address, pitch, width, height, element))
    };
    fn cuMemAllocPitch_v2(address: Out<u64>, pitch: Out<usize>, width: usize, height: usize, element: u32) |real| {
        let asks_for_nothing = width == 0 || height == 0 || !matches!(element, 4 | 8 | 16);
        let Ok(device) = device() else { return real(address, pitch, width, height, element) };
        let alignment = row_alignment(device);
        let (Some(bytes), false, false) = (rows(width, height, alignment), address.is_null(), pitch.is_null()) else {
            return real(address, pitch, width, height, element);
        };
        if asks_for_nothing {
            return real(address, pitch, width, height, element);
        }
        deferred::collect();
        if movable_device(bytes).is_none() {
            return pitched(address, pitch, bytes, height, || real(address, pitch, width, height, element));
        }
        let result = converted(address, bytes, device);
        if result == SUCCESS {
            pitch.set(bytes / height);
        }
        result
    };
    fn cuMemFree(address: u32) |real| freed(u64::from(address), || real(address));
    fn cuMemFree_v2(address: u64) |real| freed(address, || real(address));
}

/// Device of this thread's context, if an allocation of this size is to be converted there.
fn movable_device(bytes: usize) -> Option<i32> {
    match settings().mode {
        Mode::Unified if ranges::stays_small(size(bytes), 0) => None,
        Mode::Unified => device().ok().filter(|device| can_move(*device)),
        Mode::Device => None,
    }
}

/// Allocates managed memory in place of device memory.
fn converted(address: Out<u64>, bytes: usize, device: i32) -> CUresult {
    let result = allocate(Kind::Managed, size(bytes), || allocate_managed(address, bytes, device));
    if let (SUCCESS, Some(address)) = (result, address.get()) {
        remember(Range { is_converted: true, ..Range::new(address, size(bytes), Kind::Managed, context()) });
        crate::control::allocated();
    }
    result
}

/// Allocates and counts memory whose address the call returns.
fn counted(address: Out<u64>, bytes: usize, kind: Kind, call: impl FnOnce() -> CUresult) -> CUresult {
    let result = allocate(kind, size(bytes), call);
    if let (SUCCESS, Some(address)) = (result, address.get()) {
        keep(address, size(bytes), kind);
    }
    result
}

fn freed(address: u64, call: impl Fn() -> CUresult) -> CUresult {
    deferred::collect();
    if deferred::holds(address) {
        return INVALID_VALUE;
    }
    pools::free(address, &call).unwrap_or_else(|| free(address, call))
}

/// Allocates through the first version of a function, with addresses of 32 bits.
fn short(address: Out<u32>, bytes: u64, call: impl FnOnce(()) -> CUresult) -> CUresult {
    if address.is_null() || bytes == 0 {
        return call(());
    }
    let result = allocate(Kind::Device, bytes, || call(()));
    if let (SUCCESS, Some(address)) = (result, address.get()) {
        keep(u64::from(address), bytes, Kind::Device);
    }
    result
}

/// Bytes of `height` rows that begin `alignment` apart.
fn rows(width: usize, height: usize, alignment: usize) -> Option<usize> {
    width.checked_next_multiple_of(alignment)?.checked_mul(height)
}

/// Allocates rows whose pitch the driver chooses: the true size is known afterwards, and counted or undone.
fn pitched(
    address: Out<u64>,
    pitch: Out<usize>,
    expected: usize,
    height: usize,
    call: impl FnOnce() -> CUresult,
) -> CUresult {
    let result = allocate(Kind::Device, size(expected), call);
    let (SUCCESS, Some(begin), Some(pitch)) = (result, address.get(), pitch.get()) else { return result };
    let bytes = pitch.checked_mul(height).map_or(u64::MAX, size);
    match bytes.checked_sub(size(expected)) {
        Some(0) => {}
        Some(more) => {
            if reserve(Kind::Device, more).is_err() {
                crate::driver::cuMemFree_v2(begin);
                account::give_back(Kind::Device, size(expected));
                return refusal();
            }
        }
        None => account::give_back(Kind::Device, size(expected) - bytes),
    }
    keep(begin, bytes, Kind::Device);
    result
}
