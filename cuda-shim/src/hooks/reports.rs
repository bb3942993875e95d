//! Reports of memory: the instance's share in place of the card's memory, and converted memory shown as device memory.
//!
//! The driver is asked first: its refusals stay its own, and null pointers mean what they mean to it.

use super::entry::hooks;
use super::{deferred, graph_memory, pools};
use crate::abi::{INVALID_VALUE, In, Out, SUCCESS};
use crate::account::settings;
use crate::driver::{ask, cuMemGetAddressRange_v2};
use crate::{account, ranges};
use omni_gpu_protocol::account::Mode;

/// `CU_POINTER_ATTRIBUTE_MEMORY_TYPE`, and its value for device memory.
const MEMORY_TYPE: i32 = 2;
const TYPE_DEVICE: u32 = 2;
/// `CU_POINTER_ATTRIBUTE_HOST_POINTER`: device memory has none.
const HOST_POINTER: i32 = 4;
/// `CU_POINTER_ATTRIBUTE_IS_MANAGED`.
const IS_MANAGED: i32 = 8;
/// `CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE`.
const MEMPOOL_HANDLE: i32 = 17;

hooks! {
    fn cuMemGetInfo(free: Out<u32>, total: Out<u32>) |real| {
        let result = real(free, total);
        if result == SUCCESS {
            let wide = |place: Out<u32>| place.get().map_or(u64::MAX, u64::from);
            let narrow = |bytes| u32::try_from(bytes).unwrap_or(u32::MAX);
            let (share_free, share_total) = share(wide(free), wide(total));
            free.set(narrow(share_free));
            total.set(narrow(share_total));
        }
        result
    };
    fn cuMemGetInfo_v2(free: Out<u64>, total: Out<u64>) |real| {
        let result = real(free, total);
        if result == SUCCESS {
            let (share_free, share_total) = share(free.get().unwrap_or(u64::MAX), total.get().unwrap_or(u64::MAX));
            free.set(share_free);
            total.set(share_total);
        }
        result
    };
    fn cuDeviceTotalMem(bytes: Out<u32>, device: i32) |real| {
        let result = real(bytes, device);
        let limit = settings().limit.map_or(u32::MAX, |limit| u32::try_from(limit).unwrap_or(u32::MAX));
        if let (SUCCESS, Some(total)) = (result, bytes.get()) {
            bytes.set(total.min(limit));
        }
        result
    };
    fn cuDeviceTotalMem_v2(bytes: Out<u64>, device: i32) |real| {
        let result = real(bytes, device);
        if let (SUCCESS, Some(total)) = (result, bytes.get()) {
            bytes.set(total.min(settings().limit.unwrap_or(u64::MAX)));
        }
        result
    };
    fn cuPointerGetAttribute(value: Out<u64>, which: i32, address: u64) |real| {
        if which == HOST_POINTER && !value.is_null() && is_converted(address) {
            return INVALID_VALUE;
        }
        let result = real(value, which, address);
        if result == SUCCESS {
            look_as_asked_for(value, which, address);
        }
        result
    };
    fn cuPointerGetAttributes(count: u32, which: In<i32>, values: In<Out<u64>>, address: u64) |real| {
        let result = real(count, which, values, address);
        if result == SUCCESS {
            for number in 0..count as usize {
                if let (Some(which), Some(value)) = (which.at(number).get(), values.at(number).get()) {
                    look_as_asked_for(value, which, address);
                }
            }
        }
        result
    };
}

fn share(free: u64, total: u64) -> (u64, u64) {
    deferred::collect();
    pools::settle();
    graph_memory::settle();
    account::share(free, total)
}

/// Changes an answer about converted memory to that for device memory. Capabilities (IPC, GPUDirect RDMA) are reported
/// as they are.
fn look_as_asked_for(value: Out<u64>, which: i32, address: u64) {
    match which {
        MEMORY_TYPE if is_converted(address) => value.cast::<u32>().set(TYPE_DEVICE),
        // The caller's boolean may be one byte.
        IS_MANAGED if is_converted(address) => value.cast::<u8>().set(0),
        HOST_POINTER if is_converted(address) => value.set(0),
        MEMPOOL_HANDLE => value.get().into_iter().for_each(|pool| value.set(pools::known_as(pool))),
        _ => {}
    }
}

/// The address lies in converted memory: managed, but requested as device memory.
fn is_converted(address: u64) -> bool {
    settings().mode == Mode::Unified
        && ask(|base| cuMemGetAddressRange_v2(base, Out::null(), address))
            .is_ok_and(|base| ranges::get(base).is_some_and(|range| range.is_converted))
}
