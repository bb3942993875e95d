//! Pools of memory: what a pool has taken from the device counts, whether it is in use or kept for later.
//!
//! How much that is only the driver knows, and it changes without a call (a wait gives memory back to the device). So
//! each pool's part of the account follows the driver's own number, asked for after everything that can change it; the
//! growth that an allocation may cause is reserved before. In unified mode on CUDA 13 the device's default pool is a
//! managed one of ours, and pools that a program makes are managed where they may be: what comes out can be moved.

use super::driver::{
    self, Handle, Location, ask, context, cuMemAllocFromPoolAsync, cuMemFreeAsync, cuMemPoolGetAttribute,
};
use super::entry::{CUresult, INVALID_VALUE, In, Out, SUCCESS, hooks};
use super::ledger::{refusal, remember, size};
use super::{deferred, graphs};
use crate::account;
use crate::limit::{Mode, settings};
use crate::process::PerProcess;
use crate::ranges::{self, Kind, Range};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// `CUmemPoolProps`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Properties {
    allocation_type: i32,
    handle_types: i32,
    pub location: Location,
    security: u64,
    max_bytes: usize,
    rest: [u64; 7],
}

const PINNED: i32 = 1;
const MANAGED: i32 = 2;
const RESERVED_MEM_CURRENT: i32 = 5;
const USED_MEM_CURRENT: i32 = 7;
/// The version of the driver since which pools can be managed memory.
const MANAGED_POOLS: i32 = 13_000;
/// In which steps a pool grows is the driver's affair: the largest step seen, and the least there can be.
const STEPS: [u64; 3] = [32 << 20, 2 << 20, 1];

hooks! {
    fn cuMemPoolCreate(pool: Out<Handle>, properties: In<Properties>) |real| {
        let Some(asked) = properties.get() else { return real(pool, properties) };
        let given = Properties { allocation_type: if is_movable(&asked) { MANAGED } else { asked.allocation_type }, ..asked };
        let result = real(pool, In::of(&given));
        if let (SUCCESS, Some(pool)) = (result, pool.get()) {
            let is_shareable = given.handle_types != 0;
            lock().pools.insert(pool, Pool { is_shareable, ..Pool::new(kind(&given)) });
        }
        result
    };
    fn cuMemPoolDestroy(pool: Handle) |real| {
        // Held over the call: a pool that is created meanwhile may get this handle.
        let mut pools = lock();
        // The program takes it for the device's default pool, which cannot be destroyed.
        if pools.defaults.values().any(|default| *default == Some(pool)) {
            return INVALID_VALUE;
        }
        let result = real(pool);
        if result == SUCCESS {
            pools.dissolve(pool);
        }
        result
    };
    fn cuMemPoolTrimTo(pool: Handle, keep: usize) |real| {
        let result = real(pool, keep);
        lock().settle(pool);
        result
    };
    fn cuDeviceGetDefaultMemPool(pool: Out<Handle>, device: i32) |real| {
        let result = real(pool, device);
        if let (SUCCESS, Some(ours)) = (result, managed_default(device)) {
            pool.set(ours);
        }
        result
    };
    fn cuDeviceGetMemPool(pool: Out<Handle>, device: i32) |real| {
        let result = real(pool, device);
        if let (SUCCESS, Some(theirs)) = (result, pool.get()) {
            pool.set(ours_for(theirs, device));
        }
        result
    };
    fn cuMemGetDefaultMemPool(pool: Out<Handle>, location: In<Location>, kind: i32) |real| {
        of_location(pool, location, kind, real(pool, location, kind))
    };
    fn cuMemGetMemPool(pool: Out<Handle>, location: In<Location>, kind: i32) |real| {
        of_location(pool, location, kind, real(pool, location, kind))
    };
}

/// Where memory asked for in a stream comes from.
pub(super) enum Choice {
    /// From nowhere: it is allocated as managed memory at once.
    Converted,
    Pool(Handle),
    /// The driver has no pools, or this device has none: it says so best itself.
    Unknown,
}

#[derive(Clone, Copy)]
struct Pool {
    kind: Kind,
    /// What the account says of it.
    charged: u64,
    /// What was allocated from it and not freed.
    allocated: u64,
    /// Other processes can have its memory, which managed memory they cannot: it stays as it is.
    is_shareable: bool,
}

impl Pool {
    fn new(kind: Kind) -> Self {
        Self { kind, charged: 0, allocated: 0, is_shareable: false }
    }
}

#[derive(Default)]
struct Pools {
    pools: BTreeMap<Handle, Pool>,
    /// Address to pool and size.
    allocations: BTreeMap<u64, (Handle, u64)>,
    /// The managed pool that stands for each device's default pool; `None` when it cannot be.
    defaults: BTreeMap<i32, Option<Handle>>,
}

static POOLS: PerProcess<Mutex<Pools>> = PerProcess::new();
/// Whether there can be anything in the table: most programs never use a pool.
static IS_USED: AtomicBool = AtomicBool::new(false);

fn lock() -> MutexGuard<'static, Pools> {
    POOLS.get(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

fn kind(properties: &Properties) -> Kind {
    match properties {
        Properties { location, .. } if location.is_host() => Kind::Host,
        Properties { allocation_type: MANAGED, .. } => Kind::Managed,
        _ => Kind::Device,
    }
}

/// Memory of the device, for this process alone, on a driver and a device that can make it managed.
fn is_movable(properties: &Properties) -> bool {
    let of_device = properties.location.kind == Location::DEVICE && properties.allocation_type == PINNED;
    of_device && properties.handle_types == 0 && has_managed_pools(properties.location.id)
}

fn has_managed_pools(device: i32) -> bool {
    settings().mode == Mode::Unified && driver::version() >= MANAGED_POOLS && driver::can_move(device)
}

/// The managed pool that stands for the default pool of a device.
fn managed_default(device: i32) -> Option<Handle> {
    if !has_managed_pools(device) {
        return None;
    }
    let mut pools = lock();
    if let Some(known) = pools.defaults.get(&device) {
        return *known;
    }
    let location = Location { kind: Location::DEVICE, id: device };
    let properties =
        Properties { allocation_type: MANAGED, handle_types: 0, location, security: 0, max_bytes: 0, rest: [0; 7] };
    let pool = ask(|pool| driver::cuMemPoolCreate(pool, In::of(&properties))).ok();
    pools.defaults.insert(device, pool);
    pools.pools.extend(pool.map(|pool| (pool, Pool::new(Kind::Managed))));
    pool
}

/// Ours in place of the driver's default pool; every other pool as it is.
fn ours_for(pool: Handle, device: i32) -> Handle {
    let is_default =
        ask(|default| driver::cuDeviceGetDefaultMemPool(default, device)).is_ok_and(|default| default == pool);
    if is_default { managed_default(device).unwrap_or(pool) } else { pool }
}

fn of_location(pool: Out<Handle>, location: In<Location>, kind: i32, result: CUresult) -> CUresult {
    if let (SUCCESS, Some(location), Some(theirs)) = (result, location.get(), pool.get())
        && location.kind == Location::DEVICE
        && kind == PINNED
    {
        pool.set(ours_for(theirs, location.id));
    }
    result
}

/// Where an allocation comes from that names a pool, or none.
pub(super) fn choose(pool: Option<Handle>, device: i32, may_convert: bool) -> Choice {
    let pool = match pool {
        Some(pool) => pool,
        None => match ask(|pool| driver::cuDeviceGetMemPool(pool, device)) {
            Ok(pool) => ours_for(pool, device),
            Err(_) => return Choice::Unknown,
        },
    };
    let is_plain = lock().pools.get(&pool).is_none_or(|pool| pool.kind == Kind::Device && !pool.is_shareable);
    if may_convert && is_plain && !has_managed_pools(device) { Choice::Converted } else { Choice::Pool(pool) }
}

/// Allocates from a pool and reserves what the pool may have to grow by.
pub(super) fn allocate(address: Out<u64>, bytes: usize, pool: Handle, stream: Handle) -> CUresult {
    IS_USED.store(true, Ordering::Release);
    let mut pools = lock();
    pools.settle(pool);
    if !pools.reserve_growth(pool, size(bytes)) {
        return refusal();
    }
    let result = cuMemAllocFromPoolAsync(address, bytes, pool, stream);
    let kind = pools.of(pool).kind;
    if result == SUCCESS {
        pools.of(pool).allocated += size(bytes);
    }
    let excess = pools.taken(pool).saturating_sub(pools.of(pool).charged);
    let is_within = excess == 0 || account::reserve(kind, excess, 0).is_ok();
    if is_within {
        pools.of(pool).charged += excess;
    }
    if let (SUCCESS, Some(begin), false) = (result, address.get(), is_within) {
        // It took a larger step than could be foreseen, over the limit: undone, at the latest with the stream's next wait.
        cuMemFreeAsync(begin, stream);
        driver::cuMemPoolTrimTo(pool, 0);
        pools.of(pool).allocated -= size(bytes);
        pools.settle(pool);
        return refusal();
    }
    pools.settle(pool);
    if let (SUCCESS, Some(begin)) = (result, address.get()) {
        pools.allocations.insert(begin, (pool, size(bytes)));
        drop(pools);
        if kind == Kind::Managed {
            account::came(size(bytes));
            remember(Range { is_pooled: true, ..Range::new(begin, size(bytes), kind, context()) });
        }
        crate::control::allocated();
    }
    result
}

/// Frees what came from a pool; `None` for everything else.
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
        // Not there any more: destroyed meanwhile, and this with it as far as the account goes.
        if let Some(of) = pools.pools.get_mut(&pool) {
            of.allocated = of.allocated.saturating_sub(bytes);
            pools.settle(pool);
        }
    } else {
        pools.allocations.insert(address, (pool, bytes));
        range.into_iter().for_each(ranges::put_back);
    }
    Some(result)
}

/// Follows what the driver has given back to the device meanwhile.
pub(super) fn settle() {
    if IS_USED.load(Ordering::Acquire) {
        lock().for_each(|_| {});
    }
}

/// Gives back to the device what pools keep for later.
pub(super) fn trim() {
    if IS_USED.load(Ordering::Acquire) {
        lock().trim();
    }
}

impl Pools {
    fn of(&mut self, pool: Handle) -> &mut Pool {
        self.pools.entry(pool).or_insert(Pool::new(Kind::Device))
    }

    /// What the pool has taken from the device: the driver's number, and at least what was allocated from it. A driver
    /// may count nothing for managed memory that is not on the device.
    fn taken(&mut self, pool: Handle) -> u64 {
        let reserved = ask(|value| cuMemPoolGetAttribute(pool, RESERVED_MEM_CURRENT, value)).unwrap_or(0);
        reserved.max(self.of(pool).allocated)
    }

    /// Makes the account say what the driver says.
    fn settle(&mut self, pool: Handle) {
        let taken = self.taken(pool);
        let pool = self.of(pool);
        match taken.checked_sub(pool.charged) {
            Some(0) => {}
            Some(more) => {
                if account::charge(pool.kind, more).is_err() {
                    return;
                }
            }
            None => account::give_back(pool.kind, pool.charged - taken),
        }
        pool.charged = taken;
    }

    fn for_each(&mut self, before: impl Fn(Handle)) {
        let pools: Vec<Handle> = self.pools.keys().copied().collect();
        for pool in pools {
            before(pool);
            self.settle(pool);
        }
    }

    fn trim(&mut self) {
        self.for_each(|pool| {
            driver::cuMemPoolTrimTo(pool, 0);
        });
    }

    /// Reserves what the pool may have to take for `bytes` more, and counts it as the pool's; `false` beyond the limit.
    fn reserve_growth(&mut self, pool: Handle, bytes: u64) -> bool {
        self.reserve_step(pool, bytes) || {
            deferred::wait_for_all();
            self.trim();
            graphs::trim();
            self.reserve_step(pool, bytes)
        }
    }

    fn reserve_step(&mut self, pool: Handle, bytes: u64) -> bool {
        let used = ask(|value| cuMemPoolGetAttribute(pool, USED_MEM_CURRENT, value)).unwrap_or(0);
        let Pool { kind, charged, allocated, .. } = *self.of(pool);
        let growth = used.max(allocated).saturating_add(bytes).saturating_sub(charged);
        if growth == 0 {
            return true;
        }
        let mut steps = STEPS.iter().filter_map(|step| growth.checked_next_multiple_of(*step));
        let reserved = steps.find(|growth| account::reserve(kind, *growth, 0).is_ok());
        self.of(pool).charged += reserved.unwrap_or(0);
        reserved.is_some()
    }

    /// The pool is gone; what was allocated from it lives until it is freed, and counts by itself.
    fn dissolve(&mut self, pool: Handle) {
        let Some(Pool { kind, charged, .. }) = self.pools.remove(&pool) else { return };
        let left: Vec<(u64, (Handle, u64))> = self.allocations.extract_if(.., |_, (of, _)| *of == pool).collect();
        let bytes: u64 = left.iter().map(|(_, (_, bytes))| bytes).sum();
        for (address, (_, bytes)) in left {
            if ranges::get(address).is_none() {
                remember(Range::new(address, bytes, kind, 0));
            }
        }
        match bytes.checked_sub(charged) {
            Some(more) => {
                account::charge(kind, more).ok();
            }
            None => account::give_back(kind, charged - bytes),
        }
    }
}
