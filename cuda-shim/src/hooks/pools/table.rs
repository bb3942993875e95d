//! Table of this process's pools: the count of each, and the allocations from it.

use super::super::ledger::remember;
use super::super::{deferred, graph_memory};
use crate::abi::Handle;
use crate::account;
use crate::driver::{self, ask, cuMemPoolGetAttribute};
use crate::ranges::{self, Kind, Range};
use std::collections::BTreeMap;

/// `CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT`.
pub(super) const RESERVED_MEM_CURRENT: i32 = 5;
/// `CU_MEMPOOL_ATTR_USED_MEM_CURRENT`.
const USED_MEM_CURRENT: i32 = 7;
/// Steps in which a pool is assumed to grow, which only the driver knows: the largest seen, and the smallest possible.
const STEPS: [u64; 3] = [32 << 20, 2 << 20, 1];

#[derive(Clone, Copy)]
pub(super) struct Pool {
    pub(super) kind: Kind,
    /// Bytes counted for the pool.
    pub(super) charged: u64,
    /// Bytes allocated from it and not freed.
    pub(super) allocated: u64,
    /// Device that it was created for, where a managed pool can stand in for it.
    pub(super) device: Option<i32>,
    /// No managed pool may stand in for it (any more).
    pub(super) stays: bool,
    /// The managed pool that stands in for it.
    pub(super) stand_in: Option<Handle>,
}

impl Pool {
    pub(super) fn new(kind: Kind) -> Self {
        Self { kind, charged: 0, allocated: 0, device: None, stays: false, stand_in: None }
    }
}

#[derive(Default)]
pub(super) struct Pools {
    /// Pools of the program that it has used, and their stand-ins.
    pub(super) pools: BTreeMap<Handle, Pool>,
    /// Address to pool and size.
    pub(super) allocations: BTreeMap<u64, (Handle, u64)>,
    /// Bytes in allocations that are too small to be converted.
    pub(super) small: u64,
}

impl Pools {
    pub(super) fn of(&mut self, pool: Handle) -> &mut Pool {
        self.pools.entry(pool).or_insert(Pool::new(Kind::Device))
    }

    /// Records an allocation that is counted already.
    pub(super) fn add(&mut self, address: u64, pool: Handle, bytes: u64) {
        self.allocations.insert(address, (pool, bytes));
        self.small += self.as_small(pool, bytes);
    }

    /// Records a free. The count of a pool that was destroyed before ended with the pool.
    pub(super) fn gone(&mut self, pool: Handle, bytes: u64) {
        self.small = self.small.saturating_sub(self.as_small(pool, bytes));
        if let Some(of) = self.pools.get_mut(&pool) {
            of.allocated = of.allocated.saturating_sub(bytes);
            self.settle(pool);
        }
    }

    fn as_small(&self, pool: Handle, bytes: u64) -> u64 {
        let is_device = self.pools.get(&pool).is_some_and(|pool| pool.kind == Kind::Device);
        if is_device && bytes < ranges::SMALL { bytes } else { 0 }
    }

    /// Bytes that the pool has taken from the device: the driver's number, and at least the sum of its allocations. A
    /// driver may count nothing for managed memory that is not on the device.
    pub(super) fn taken(&mut self, pool: Handle) -> u64 {
        let reserved = ask(|value| cuMemPoolGetAttribute(pool, RESERVED_MEM_CURRENT, value)).unwrap_or(0);
        reserved.max(self.of(pool).allocated)
    }

    /// Sets the count to the driver's number.
    pub(super) fn settle(&mut self, pool: Handle) {
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

    pub(super) fn for_each(&mut self, before: impl Fn(Handle)) {
        let pools: Vec<Handle> = self.pools.keys().copied().collect();
        for pool in pools {
            before(pool);
            self.settle(pool);
        }
    }

    pub(super) fn trim(&mut self) {
        self.for_each(|pool| {
            driver::cuMemPoolTrimTo(pool, 0);
        });
    }

    /// Reserves the growth that `bytes` more may need, and counts it for the pool; `false` beyond the limit.
    pub(super) fn reserve_growth(&mut self, pool: Handle, bytes: u64) -> bool {
        self.reserve_step(pool, bytes) || {
            deferred::collect();
            self.trim();
            graph_memory::trim();
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

    /// Removes a destroyed pool; its live allocations are counted one by one until they are freed.
    pub(super) fn dissolve(&mut self, pool: Handle) {
        let Some(Pool { kind, charged, .. }) = self.pools.remove(&pool) else { return };
        let left: Vec<(u64, (Handle, u64))> = self.allocations.extract_if(.., |_, (of, _)| *of == pool).collect();
        let bytes: u64 = left.iter().map(|(_, (_, bytes))| bytes).sum();
        for (address, (_, bytes)) in left {
            if kind == Kind::Device && bytes < ranges::SMALL {
                self.small = self.small.saturating_sub(bytes);
            }
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
