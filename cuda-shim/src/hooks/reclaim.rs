//! Reservation before the driver allocates, and reclaim of cached memory when the limit is reached.
//!
//! Reclaimed are pending frees, memory that pools keep, and unused graph memory.

use super::ledger::refusal;
use super::{deferred, graph_memory, pools};
use crate::abi::{CUresult, SUCCESS};
use crate::account::{self, Full};
use crate::ranges::{Kind, Range};

/// Counts a new allocation of `bytes`, after a reclaim if it does not fit at once.
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

/// Reserves, calls the driver, and gives the reservation back if the driver refused.
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
