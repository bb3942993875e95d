//! Table and account after the driver's answer: remembering an allocation, forgetting a freed one; the same for all
//! kinds.

use crate::abi::{CUresult, OUT_OF_MEMORY, SUCCESS};
use crate::account;
use crate::driver::{context, device};
use crate::ranges::{self, Kind, Range};

/// Error for an allocation beyond the limit: out of memory, or the driver's own error where the thread has no context.
pub(super) fn refusal() -> CUresult {
    device().err().unwrap_or(OUT_OF_MEMORY)
}

/// Remembers an allocation of the current context that is counted already, and reports it to the control thread.
pub(super) fn keep(address: u64, bytes: u64, kind: Kind) {
    remember(Range::new(address, bytes, kind, context()));
    crate::control::allocated();
}

/// Puts a range that is counted already into the table.
pub(super) fn remember(range: Range) {
    ranges::insert(range).iter().for_each(account::forget);
}

/// Frees the allocation that begins at `address`; an unknown address goes to the driver as it is.
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

/// Converts a size of the API to a size of the account.
pub(super) fn size(bytes: usize) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}
