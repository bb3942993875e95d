//! Memory of launched graphs: each device's graph memory as it is counted, and the allocations of executable graphs.
//!
//! All graphs of a device share its graph memory. Its size is the driver's own number (`RESERVED_MEM_CURRENT`), read
//! after every call that can change it; the growth that a launch may cause is reserved before.

use super::deferred;
use super::ledger::refusal;
use crate::abi::{CUresult, Handle, SUCCESS};
use crate::account;
use crate::driver::{self, ask, cuDeviceGetGraphMemAttribute, device};
use crate::process::PerProcess;
use crate::ranges::Kind;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

const USED_MEM_CURRENT: i32 = 0;
const RESERVED_MEM_CURRENT: i32 = 2;

#[derive(Default)]
struct Graphs {
    /// Bytes that the nodes of an executable graph allocate.
    execs: BTreeMap<Handle, u64>,
    /// Graph memory of each device as it is counted.
    charged: BTreeMap<i32, u64>,
}

static GRAPHS: PerProcess<Mutex<Graphs>> = PerProcess::new();
/// Set by the first memory node.
static IS_USED: AtomicBool = AtomicBool::new(false);

fn lock() -> MutexGuard<'static, Graphs> {
    GRAPHS.get(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

/// `true` once this process has had a memory node.
pub(super) fn is_used() -> bool {
    IS_USED.load(Ordering::Acquire)
}

/// Turns the bookkeeping on, for a process's first memory node.
pub(super) fn set_used() {
    IS_USED.store(true, Ordering::Release);
}

/// Records the allocations of a new executable graph.
pub(super) fn insert(exec: Handle, bytes: u64) {
    if bytes > 0 {
        lock().execs.insert(exec, bytes);
    }
}

/// Destroys an executable graph. Its entry is removed before the call: another thread's new graph may get this handle.
pub(super) fn destroy(exec: Handle, call: impl FnOnce() -> CUresult) -> CUresult {
    let bytes = lock().execs.remove(&exec);
    let result = call();
    if let (true, Some(bytes)) = (result != SUCCESS, bytes) {
        lock().execs.insert(exec, bytes);
    }
    result
}

/// Launches or uploads an executable graph, if the growth of graph memory that it may cause fits the limit.
pub(super) fn launch(exec: Handle, call: impl FnOnce() -> CUresult) -> CUresult {
    if !is_used() {
        return call();
    }
    let mut graphs = lock();
    let (Some(bytes), Ok(device)) = (graphs.execs.get(&exec).copied(), device()) else {
        drop(graphs);
        return call();
    };
    if !graphs.reserve_growth(device, bytes) {
        return refusal();
    }
    let result = call();
    graphs.settle(device);
    result
}

/// Updates the count after the driver may have returned memory to the device.
pub(super) fn settle() {
    if is_used() {
        lock().settle_all();
    }
}

/// Returns unused graph memory to the device.
pub(super) fn trim() {
    if is_used() {
        lock().trim();
    }
}

impl Graphs {
    fn settle(&mut self, device: i32) {
        let Ok(taken) = ask(|value| cuDeviceGetGraphMemAttribute(device, RESERVED_MEM_CURRENT, value)) else { return };
        let charged = self.charged.entry(device).or_default();
        match taken.checked_sub(*charged) {
            Some(0) => {}
            Some(more) => {
                if account::charge(Kind::Device, more).is_err() {
                    return;
                }
            }
            None => account::give_back(Kind::Device, *charged - taken),
        }
        *charged = taken;
    }

    fn settle_all(&mut self) {
        let devices: Vec<i32> = self.charged.keys().copied().collect();
        devices.into_iter().for_each(|device| self.settle(device));
    }

    fn trim(&mut self) {
        self.charged.keys().for_each(|device| {
            driver::cuDeviceGraphMemTrim(*device);
        });
        self.settle_all();
    }

    /// Reserves the growth of graph memory that a launch may cause, and counts it as the device's.
    fn reserve_growth(&mut self, device: i32, bytes: u64) -> bool {
        self.settle(device);
        self.reserve(device, bytes) || {
            deferred::wait_for_all();
            self.trim();
            self.reserve(device, bytes)
        }
    }

    fn reserve(&mut self, device: i32, bytes: u64) -> bool {
        let used = ask(|value| cuDeviceGetGraphMemAttribute(device, USED_MEM_CURRENT, value)).unwrap_or(0);
        let charged = self.charged.entry(device).or_default();
        let growth = used.saturating_add(bytes).saturating_sub(*charged);
        let is_reserved = account::reserve(Kind::Device, growth, 0).is_ok();
        if is_reserved {
            *charged += growth;
        }
        is_reserved
    }
}
