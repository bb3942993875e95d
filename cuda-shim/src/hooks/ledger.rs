//! The order in which an allocation is counted, made and remembered, and a free is forgotten: the same for all kinds.

use super::driver::{context, device};
use super::entry::{CUresult, OUT_OF_MEMORY, SUCCESS};
use super::{deferred, graphs, pools};
use crate::account::{self, Full};
use crate::ranges::{self, Kind, Range};

/// Counts a fresh allocation of `bytes`; what is only cached by pools or waits to be freed gives way first.
#[inline]
pub(super) fn reserve(kind: Kind, bytes: u64) -> Result<(), Full> {
    account::reserve(kind, bytes, kind.resident(bytes)).or_else(|_| {
        make_room();
        account::reserve(kind, bytes, kind.resident(bytes))
    })
}

#[cold]
fn make_room() {
    deferred::wait_for_all();
    pools::trim();
    graphs::trim();
}

/// Reserves, calls the driver, and gives back what the driver refused.
pub(super) fn allocate(kind: Kind, bytes: u64, call: impl FnOnce() -> CUresult) -> CUresult {
    if reserve(kind, bytes).is_err() {
        return refusal();
    }
    let result = call();
    if result != SUCCESS {
        account::forget(&Range::new(0, bytes, kind, 0));
    }
    result
}

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
