//! Reservation of memory before the driver allocates it, and what is reclaimed first when the limit is reached.

use super::ledger::refusal;
use super::{deferred, graph_memory, pools};
use crate::abi::{CUresult, SUCCESS};
use crate::account::{self, Full};
use crate::ranges::{Kind, Range};

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
    graph_memory::trim();
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
