//! Imported memory: from another process, or from another interface on the same device.
//!
//! The importer's account has it, as device memory: see `docs/decisions/gpu-accounting.md`.

use super::entry::hooks;
use super::ledger::{free, keep, refusal, remember, size};
use super::reclaim::{allocate, reserve};
use crate::abi::{CUresult, Handle, In, Out, SUCCESS};
use crate::driver::{cuMemFree_v2, cuMemGetAddressRange_v2};
use crate::process::PerProcess;
use crate::ranges::{Kind, Range};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// `CUDA_EXTERNAL_MEMORY_HANDLE_DESC`.
#[repr(C)]
#[derive(Clone, Copy)]
struct External {
    kind: i32,
    handle: [u64; 2],
    bytes: u64,
}

/// `CUipcMemHandle`.
#[repr(C)]
#[derive(Clone, Copy)]
struct IpcHandle([u8; 64]);

hooks! {
    fn cuImportExternalMemory(memory: Out<Handle>, description: In<External>) |real| {
        let (Some(External { bytes, .. }), false) = (description.get(), memory.is_null()) else {
            return real(memory, description);
        };
        let result = allocate(Kind::Device, bytes, || real(memory, description));
        if let (SUCCESS, Some(memory)) = (result, memory.get()) {
            keep(memory, bytes, Kind::Device);
        }
        result
    };
    fn cuDestroyExternalMemory(memory: Handle) |real| free(memory, || real(memory));
    fn cuIpcOpenMemHandle(address: Out<u64>, handle: IpcHandle, flags: u32) |real| {
        opened(address, real(address, handle, flags))
    };
    fn cuIpcOpenMemHandle_v2(address: Out<u64>, handle: IpcHandle, flags: u32) |real| {
        opened(address, real(address, handle, flags))
    };
    fn cuIpcCloseMemHandle(address: u64) |real| closed(address, || real(address));
    fn cuMemPoolImportPointer(address: Out<u64>, pool: Handle, shared: In<[u64; 8]>) |real| {
        let result = real(address, pool, shared);
        let (SUCCESS, Some(begin)) = (result, address.get()) else { return result };
        if count(begin, Kind::Device) {
            return result;
        }
        cuMemFree_v2(begin);
        refusal()
    };
}

/// Number of opens of each address: the same handle gives the same address again.
static OPEN: PerProcess<Mutex<BTreeMap<u64, u64>>> = PerProcess::new();

fn open() -> MutexGuard<'static, BTreeMap<u64, u64>> {
    OPEN.get(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

/// Counts memory of another process that has been opened: only then its size is known.
fn opened(address: Out<u64>, result: CUresult) -> CUresult {
    let (SUCCESS, Some(begin)) = (result, address.get()) else { return result };
    let mut open = open();
    if let Some(times) = open.get_mut(&begin) {
        *times += 1;
    } else if count(begin, Kind::Device) {
        open.insert(begin, 1);
    } else {
        crate::driver::cuIpcCloseMemHandle(begin);
        return refusal();
    }
    result
}

fn closed(address: u64, call: impl FnOnce() -> CUresult) -> CUresult {
    let mut open = open();
    match open.get_mut(&address) {
        Some(times) if *times > 1 => {
            let result = call();
            *times -= u64::from(result == SUCCESS);
            result
        }
        Some(_) => {
            let result = free(address, call);
            if result == SUCCESS {
                open.remove(&address);
            }
            result
        }
        None => call(),
    }
}

/// Counts the allocation that begins at `address`; `false` when the limit does not allow it.
fn count(address: u64, kind: Kind) -> bool {
    let (mut begin, mut bytes) = (0, 0);
    if cuMemGetAddressRange_v2(Out::of(&mut begin), Out::of(&mut bytes), address) != SUCCESS {
        return false; // what has no size cannot be limited
    }
    let is_within = reserve(kind, size(bytes)).is_ok();
    if is_within {
        remember(Range::new(address, size(bytes), kind, 0));
    }
    is_within
}
