//! Pinned host memory: counted, not limited.

use super::entry::hooks;
use super::ledger::{free, keep, size};
use crate::abi::{CUresult, Out, SUCCESS};
use crate::account;
use crate::ranges::Kind;

hooks! {
    fn cuMemAllocHost(address: Out<u64>, bytes: u32) |real| pinned(u64::from(bytes), || real(address, bytes), || address.get());
    fn cuMemAllocHost_v2(address: Out<u64>, bytes: usize) |real| pinned(size(bytes), || real(address, bytes), || address.get());
    fn cuMemHostAlloc(address: Out<u64>, bytes: usize, flags: u32) |real| {
        pinned(size(bytes), || real(address, bytes, flags), || address.get())
    };
    fn cuMemHostRegister(address: u64, bytes: usize, flags: u32) |real| {
        pinned(size(bytes), || real(address, bytes, flags), || Some(address))
    };
    fn cuMemHostRegister_v2(address: u64, bytes: usize, flags: u32) |real| {
        pinned(size(bytes), || real(address, bytes, flags), || Some(address))
    };
    fn cuMemFreeHost(address: u64) |real| free(address, || real(address));
    fn cuMemHostUnregister(address: u64) |real| free(address, || real(address));
}

/// Pins memory and counts it. Without an account it is pinned all the same.
fn pinned(bytes: u64, call: impl FnOnce() -> CUresult, address: impl FnOnce() -> Option<u64>) -> CUresult {
    let is_counted = account::reserve(Kind::Host, bytes, 0).is_ok();
    let result = call();
    match (result, address()) {
        (SUCCESS, Some(address)) if is_counted => keep(address, bytes, Kind::Host),
        _ if is_counted => account::give_back(Kind::Host, bytes),
        _ => {}
    }
    result
}
