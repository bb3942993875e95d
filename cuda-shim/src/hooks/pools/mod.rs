//! Memory pools: everything that a pool has taken from the device counts, in use or cached.
//!
//! Only the driver knows how much that is, and it changes without a call (a wait returns memory to the device). So each
//! pool's count follows the driver's own number, read after every call that can change it; the growth that an
//! allocation may cause is reserved before ([`table`]).
//!
//! In unified mode on CUDA 13 a managed pool stands in for the device's default pool and for every pool of the program
//! that can have one ([`stand_ins`]): allocations come from the managed pool and can be moved. The program never sees
//! its handle: for the driver, and in every answer, the pool is the one that the program knows. Before CUDA 13 there
//! are no managed pools, and pool memory stays as it is: `docs/decisions/gpu-accounting.md`.

mod stand_ins;
mod table;

use super::entry::hooks;
use super::ledger::{remember, size};
use super::stream;
use crate::abi::{CUresult, Handle, In, Location, OUT_OF_MEMORY, Out, PoolProperties, SUCCESS};
use crate::account;
use crate::driver::{self, ask, cuMemAllocFromPoolAsync, cuMemFreeAsync};
use crate::process::PerProcess;
use crate::ranges::{self, Kind, Range};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use table::{Pool, Pools, RESERVED_MEM_CURRENT};

const PINNED: i32 = 1;
const MANAGED: i32 = 2;
/// `CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT` to `_USED_MEM_HIGH`: numbers of bytes.
const AMOUNTS: std::ops::RangeInclusive<i32> = 5..=8;

hooks! {
    fn cuMemPoolCreate(pool: Out<Handle>, properties: In<PoolProperties>) |real| {
        let result = real(pool, properties);
        if let (SUCCESS, Some(pool), Some(properties)) = (result, pool.get(), properties.get()) {
            let device = is_plain(&properties).then_some(properties.location.id);
            lock().pools.insert(pool, Pool { device, stays: device.is_none(), ..Pool::new(kind(&properties)) });
        }
        result
    };
    fn cuMemPoolDestroy(pool: Handle) |real| {
        // Locked over the call: a pool that another thread creates meanwhile may get this handle.
        let mut pools = lock();
        let result = real(pool);
        if result == SUCCESS {
            pools.destroyed(pool);
        }
        result
    };
    fn cuMemPoolTrimTo(pool: Handle, keep: usize) |real| {
        let mut pools = lock();
        let kept = pools.trim_stand_in(pool, keep);
        let result = real(pool, keep.saturating_sub(kept));
        pools.settle(pool);
        result
    };
    fn cuMemPoolGetAttribute(pool: Handle, attribute: i32, value: Out<u64>) |real| {
        let result = real(pool, attribute, value);
        if result == SUCCESS && AMOUNTS.contains(&attribute) {
            let of_stand_in = stand_in(pool).map_or(0, |of| ask(|bytes| driver::cuMemPoolGetAttribute(of, attribute, bytes)).unwrap_or(0));
            value.get().into_iter().for_each(|bytes| value.set(bytes.saturating_add(of_stand_in)));
        }
        result
    };
    fn cuMemPoolSetAttribute(pool: Handle, attribute: i32, value: Out<u64>) |real| {
        let result = real(pool, attribute, value);
        if result == SUCCESS && let Some(of) = stand_in(pool) {
            driver::cuMemPoolSetAttribute(of, attribute, value);
        }
        result
    };
    fn cuMemPoolSetAccess(pool: Handle, access: u64, count: usize) |real| {
        let result = real(pool, access, count);
        // Managed pools have no access settings: new allocations come from the pool itself.
        if result == SUCCESS {
            lock().of(pool).stays = true;
        }
        result
    };
}

static POOLS: PerProcess<Mutex<Pools>> = PerProcess::new();
/// Set by the first use of a pool: most programs never use one.
static IS_USED: AtomicBool = AtomicBool::new(false);

fn lock() -> MutexGuard<'static, Pools> {
    POOLS.get(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

fn stand_in(pool: Handle) -> Option<Handle> {
    if IS_USED.load(Ordering::Acquire) { lock().stand_in(pool) } else { None }
}

/// Pool of the program for which a managed pool stands in; any other pool is returned as it is.
pub(super) fn known_as(pool: Handle) -> Handle {
    if IS_USED.load(Ordering::Acquire) { lock().stands_for(pool).unwrap_or(pool) } else { pool }
}

fn kind(properties: &PoolProperties) -> Kind {
    match properties {
        PoolProperties { location, .. } if location.is_host() => Kind::Host,
        PoolProperties { allocation_type: MANAGED, .. } => Kind::Managed,
        _ => Kind::Device,
    }
}

/// Device memory of this process alone, without a bound or a special use: managed pools support none of these.
fn is_plain(properties: &PoolProperties) -> bool {
    let PoolProperties { allocation_type, handle_types, location, max_bytes, usage, .. } = *properties;
    allocation_type == PINNED && location.kind == Location::DEVICE && (handle_types, max_bytes, usage) == (0, 0, 0)
}

/// Pool of allocations that name none; `None` where the driver has no pools, or the device has none.
pub(super) fn current(device: i32) -> Option<Handle> {
    ask(|pool| driver::cuDeviceGetMemPool(pool, device)).ok()
}

/// The driver knows this pool.
pub(super) fn exists(pool: Handle) -> bool {
    ask(|value| driver::cuMemPoolGetAttribute(pool, RESERVED_MEM_CURRENT, value)).is_ok()
}

/// Allocates from a pool or its stand-in, and reserves the growth that it may need. No call in here waits for a stream:
/// the stream may depend on this very thread.
pub(super) fn allocate(address: Out<u64>, bytes: usize, pool: Handle, stream: Handle, device: i32) -> CUresult {
    IS_USED.store(true, Ordering::Release);
    let mut pools = lock();
    let source = pools.source(pool, device, size(bytes));
    pools.settle(source);
    if !pools.reserve_growth(source, size(bytes)) {
        return OUT_OF_MEMORY;
    }
    let result = cuMemAllocFromPoolAsync(address, bytes, source, stream);
    let kind = pools.of(source).kind;
    if result == SUCCESS {
        pools.of(source).allocated += size(bytes);
    }
    let excess = pools.taken(source).saturating_sub(pools.of(source).charged);
    let is_within = excess == 0 || account::reserve(kind, excess, 0).is_ok();
    if is_within {
        pools.of(source).charged += excess;
    }
    if let (SUCCESS, Some(begin), false) = (result, address.get(), is_within) {
        // The pool took a larger step than foreseen, over the limit: undone, at the latest with the stream's next wait.
        cuMemFreeAsync(begin, stream);
        driver::cuMemPoolTrimTo(source, 0);
        pools.of(source).allocated -= size(bytes);
        pools.settle(source);
        return OUT_OF_MEMORY;
    }
    pools.settle(source);
    if let (SUCCESS, Some(begin)) = (result, address.get()) {
        pools.add(begin, source, size(bytes));
        drop(pools);
        if kind == Kind::Managed {
            account::came(size(bytes));
            let range = Range::new(begin, size(bytes), kind, stream::context(stream));
            remember(Range { is_pooled: true, is_converted: source != pool, ..range });
        }
        crate::control::allocated();
    }
    result
}

/// Frees an allocation of a pool; `None` for every other address.
pub(super) fn free(address: u64, call: impl FnOnce() -> CUresult) -> Option<CUresult> {
    if !IS_USED.load(Ordering::Acquire) {
        return None;
    }
    let (pool, bytes) = lock().allocations.remove(&address)?;
    let range = ranges::remove(address);
    let result = call();
    let mut pools = lock();
    if result == SUCCESS {
        account::left(range.map_or(0, |range| range.resident));
        pools.gone(pool, bytes);
    } else {
        pools.allocations.insert(address, (pool, bytes));
        range.into_iter().for_each(ranges::put_back);
    }
    Some(result)
}

/// Updates the counts after the driver may have returned memory to the device.
pub(super) fn settle() {
    if IS_USED.load(Ordering::Acquire) {
        lock().for_each(|_| {});
    }
}

/// Returns cached memory to the device.
pub(super) fn trim() {
    if IS_USED.load(Ordering::Acquire) {
        lock().trim();
    }
}
