//! Memory of a runtime that bypasses the driver's hooks: counted after its call.
//!
//! A runtime that is linked or opened as usual calls the driver's hooks, which count. A runtime that was opened in some
//! way that leads past a preload (and past the proxy) does not; allocations of its callers still pass through the hooks
//! of the runtime.

use crate::account;
use crate::process::PerProcess;
use crate::ranges::Kind;
use crate::real::passed;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Allocations that were counted here: address and bytes.
static ESCAPED: PerProcess<Mutex<BTreeMap<usize, u64>>> = PerProcess::new();
/// Set by the first such allocation, in this process or in one that it was forked from.
static ANY: AtomicBool = AtomicBool::new(false);

/// Calls a runtime; `true` when it reached the driver without a hook.
pub(super) fn call<T>(runtime: impl FnOnce() -> T) -> (T, bool) {
    let before = passed();
    let result = runtime();
    (result, passed() == before)
}

/// Counts an allocation; `false` when the limit does not allow it.
#[must_use]
pub(super) fn count(address: usize, bytes: u64) -> bool {
    let fits = account::reserve(Kind::Device, bytes, 0).is_ok();
    if fits {
        ANY.store(true, Ordering::Relaxed);
        table().insert(address, bytes);
    }
    fits
}

/// Frees an allocation that may have been counted here. It is uncounted first: once the runtime has freed it, the
/// address may come back to another thread.
pub(super) fn free<T: PartialEq>(address: usize, success: &T, runtime: impl FnOnce() -> T) -> T {
    let counted = if ANY.load(Ordering::Relaxed) { table().remove(&address) } else { None };
    let result = runtime();
    if let Some(bytes) = counted {
        if result == *success {
            account::give_back(Kind::Device, bytes);
        } else {
            table().insert(address, bytes);
        }
    }
    result
}

fn table() -> MutexGuard<'static, BTreeMap<usize, u64>> {
    ESCAPED.get(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}
