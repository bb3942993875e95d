//! Frees in the order of a stream, for converted memory of `cuMemAlloc`: managed memory has no such order, so an event
//! marks the place in the stream, and the memory is freed once the event has completed. Until then it counts.
//!
//! Every call that allocates, frees or waits collects completed ones. A synchronous allocation that would be refused
//! waits for all of them, up to [`PATIENCE`]; an allocation in the order of a stream never waits.

use super::stream;
use crate::abi::{CUresult, Handle, SUCCESS};
use crate::account;
use crate::driver::{self, ask, cuEventCreate, cuEventDestroy_v2, cuEventQuery, cuEventRecord, cuMemFree_v2};
use crate::process::PerProcess;
use crate::ranges::{self, Range};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// `CU_EVENT_DISABLE_TIMING`.
const NO_TIMING: u32 = 2;
/// Longest wait for a stream: it may depend on the very thread that waits.
const PATIENCE: Duration = Duration::from_secs(10);
/// `CUDA_ERROR_NOT_READY`.
const NOT_READY: CUresult = 600;
/// Interval of polling during such a wait.
const PAUSE: Duration = Duration::from_millis(1);

#[derive(Clone, Copy)]
struct Waiting {
    range: Range,
    event: Handle,
}

#[derive(Default)]
struct Deferred {
    waiting: Mutex<Vec<Waiting>>,
    /// Length of `waiting`, read without the lock.
    count: AtomicUsize,
    /// Held while frees are carried out, so that a wait for all of them includes those another thread has taken out.
    freeing: Mutex<()>,
}

static DEFERRED: PerProcess<Deferred> = PerProcess::new();
/// Set by the first free in a stream: most programs never make one.
static IS_USED: AtomicBool = AtomicBool::new(false);

/// Frees a range once the work that is in the stream now has completed. `None` when there is no such range any more.
pub(super) fn free(address: u64, stream: Handle) -> Option<CUresult> {
    IS_USED.store(true, Ordering::Release);
    let range = ranges::remove(address)?;
    match stream::in_context(stream, || mark(stream)).and_then(|marked| marked) {
        Ok(event) => {
            put(Waiting { range, event });
            Some(SUCCESS)
        }
        Err(error) => {
            ranges::put_back(range);
            Some(error)
        }
    }
}

/// Records an event at the end of a stream of the current context.
fn mark(stream: Handle) -> Result<Handle, CUresult> {
    let event = ask(|event| cuEventCreate(event, NO_TIMING))?;
    match cuEventRecord(event, stream) {
        SUCCESS => Ok(event),
        error => {
            cuEventDestroy_v2(event);
            Err(error)
        }
    }
}

/// The program has freed this address already, and the free is pending.
pub(super) fn holds(address: u64) -> bool {
    any_waits() && lock(deferred()).iter().any(|waiting| waiting.range.address == address)
}

/// Frees what can be freed without a wait.
#[inline]
pub(super) fn collect() {
    if any_waits() {
        free_what_is_done();
    }
}

#[cold]
fn free_what_is_done() {
    if let Ok(_freeing) = deferred().freeing.try_lock() {
        driver::outside_captures(|| free_where(|waiting| cuEventQuery(waiting.event) == SUCCESS));
    }
}

/// Waits for all pending frees, up to [`PATIENCE`].
pub(super) fn wait_for_all() {
    let end = Instant::now() + PATIENCE;
    let _freeing = deferred().freeing.lock().unwrap_or_else(PoisonError::into_inner);
    let is_done = |waiting: &Waiting| {
        while cuEventQuery(waiting.event) == NOT_READY {
            if Instant::now() > end {
                return false;
            }
            std::thread::sleep(PAUSE);
        }
        cuEventQuery(waiting.event) == SUCCESS
    };
    if deferred().count.load(Ordering::Acquire) > 0 {
        driver::outside_captures(|| free_where(is_done));
    }
}

/// Pending frees of a context that may end. They are taken out before the call: once the context is gone, the driver
/// may give the same addresses to other threads.
pub(super) struct OfContext {
    waiting: Vec<Waiting>,
    _freeing: MutexGuard<'static, ()>,
}

impl OfContext {
    pub(super) fn take(context: Handle) -> Self {
        let freeing = deferred().freeing.lock().unwrap_or_else(PoisonError::into_inner);
        Self { waiting: take(|waiting| waiting.range.context == context), _freeing: freeing }
    }

    /// Forgets memory that went with its context.
    pub(super) fn forget(self) {
        self.waiting.iter().for_each(|waiting| account::forget(&waiting.range));
    }

    /// Keeps the frees pending: the context lives on.
    pub(super) fn put_back(self) {
        self.waiting.into_iter().for_each(put);
    }
}

/// Takes all entries out before freeing, so that no two threads free the same one and none waits for the driver under
/// the lock.
fn free_where(is_done: impl Fn(&Waiting) -> bool) {
    for waiting in take(|_| true) {
        // Memory that cannot be freed now, because its event has not completed or the driver has failed, stays counted.
        if is_done(&waiting) && cuMemFree_v2(waiting.range.address) == SUCCESS {
            cuEventDestroy_v2(waiting.event);
            account::forget(&waiting.range);
        } else {
            put(waiting);
        }
    }
}

fn put(waiting: Waiting) {
    let deferred = deferred();
    lock(deferred).push(waiting);
    deferred.count.fetch_add(1, Ordering::Release);
}

fn take(which: impl Fn(&Waiting) -> bool) -> Vec<Waiting> {
    let deferred = deferred();
    let taken: Vec<Waiting> = lock(deferred).extract_if(.., |waiting| which(waiting)).collect();
    deferred.count.fetch_sub(taken.len(), Ordering::Release);
    taken
}

fn any_waits() -> bool {
    IS_USED.load(Ordering::Acquire) && deferred().count.load(Ordering::Acquire) > 0
}

fn deferred() -> &'static Deferred {
    DEFERRED.get(Deferred::default)
}

fn lock(deferred: &Deferred) -> MutexGuard<'_, Vec<Waiting>> {
    deferred.waiting.lock().unwrap_or_else(PoisonError::into_inner)
}
