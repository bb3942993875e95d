//! How much there is: the instance's share in place of the card. And what converted memory looks like.
//!
//! The driver is asked first, so whatever it refuses is refused in its words, and null pointers mean what they mean to it.

use super::driver::{ask, cuPointerGetAttribute as attribute};
use super::entry::{In, Out, SUCCESS, hooks};
use super::{deferred, graphs, pools};
use crate::account;
use crate::limit::{Mode, settings};

/// `CU_POINTER_ATTRIBUTE_MEMORY_TYPE` and two of its values.
const MEMORY_TYPE: i32 = 2;
const TYPE_HOST: u32 = 1;
const TYPE_DEVICE: u32 = 2;
/// `CU_POINTER_ATTRIBUTE_IS_MANAGED`.
const IS_MANAGED: i32 = 8;

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
    fn cuPointerGetAttribute(value: Out<u32>, which: i32, address: u64) |real| {
        let result = real(value, which, address);
        if result == SUCCESS && which == MEMORY_TYPE {
            look_as_asked_for(value, address);
        }
        result
    };
    fn cuPointerGetAttributes(count: u32, which: In<i32>, values: In<Out<u32>>, address: u64) |real| {
        let result = real(count, which, values, address);
        if result == SUCCESS {
            for number in (0..count as usize).filter(|number| which.at(*number).get() == Some(MEMORY_TYPE)) {
                values.at(number).get().into_iter().for_each(|value| look_as_asked_for(value, address));
            }
        }
        result
    };
}

fn share(free: u64, total: u64) -> (u64, u64) {
    deferred::collect();
    pools::settle();
    graphs::settle();
    account::share(free, total)
}

/// Managed memory is device memory to who asks for its type, wherever it is at the moment. That it is managed it says
/// to who asks for that: such a program does so to avoid what managed memory cannot do.
fn look_as_asked_for(kind: Out<u32>, address: u64) {
    if settings().mode == Mode::Unified
        && kind.get() == Some(TYPE_HOST)
        && ask(|value| attribute(value, IS_MANAGED, address)).is_ok_and(|is_managed| is_managed != 0)
    {
        kind.set(TYPE_DEVICE);
    }
}
