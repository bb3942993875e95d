//! The order in which an allocation is counted, made and remembered, and a free is forgotten: the same for all kinds.

use crate::abi::{CUresult, OUT_OF_MEMORY, SUCCESS};
use crate::account;
use crate::driver::{context, device};
use crate::ranges::{self, Kind, Range};

/// Beyond the limit; without a context, though, the driver would have said so first.
pub(super) fn refusal() -> CUresult {
    device().err().unwrap_or(OUT_OF_MEMORY)
}

/// Remembers what was allocated, and counted already.
pub(super) fn keep(address: u64, bytes: u64, kind: Kind) {
    remember(Range::new(address, bytes, kind, context()));
    crate::control::allocated();
}

/// Puts a range into the table, counted already.
pub(super) fn remember(range: Range) {
    ranges::insert(range).iter().for_each(account::forget);
}

/// Frees what begins at `address`; what is not ours goes to the driver as it is.
pub(super) fn free(address: u64, call: impl FnOnce() -> CUresult) -> CUresult {
    let Some(range) = ranges::remove(address) else { return call() };
    let result = call();
    if result == SUCCESS {
        account::forget(&range);
    } else {
        ranges::put_back(range);
    }
    result
}

/// A size of the API as the account counts it.
pub(super) fn size(bytes: usize) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}
