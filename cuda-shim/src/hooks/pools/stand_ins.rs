//! Stand-ins: managed pools behind pools of the program. Which pool may have one, and operations that apply to both.

use super::MANAGED;
use super::table::{Pool, Pools, RESERVED_MEM_CURRENT};
use crate::abi::{Handle, In, Location, Out, PoolProperties, SUCCESS};
use crate::account::settings;
use crate::driver::{self, ask, cuMemPoolGetAttribute};
use crate::ranges::{self, Kind};
use omni_gpu_protocol::account::Mode;

/// First version of the driver with managed pools.
const MANAGED_POOLS: i32 = 13_000;
/// `CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES` to `_RELEASE_THRESHOLD`: attributes that a program can set.
const SETTINGS: std::ops::RangeInclusive<i32> = 1..=4;

impl Pools {
    /// Pool that serves an allocation from `pool` in a stream of `device`: its stand-in, or itself.
    pub(super) fn source(&mut self, pool: Handle, device: i32, bytes: u64) -> Handle {
        if !has_managed_pools(device) || ranges::stays_small(bytes, self.small) {
            return pool;
        }
        self.stand_in(pool).filter(|_| !self.of(pool).stays).or_else(|| self.make(pool, device)).unwrap_or(pool)
    }

    pub(super) fn stand_in(&self, pool: Handle) -> Option<Handle> {
        self.pools.get(&pool)?.stand_in
    }

    /// Pool of the program for which this one stands in.
    pub(super) fn stands_for(&self, pool: Handle) -> Option<Handle> {
        self.pools.iter().find(|(_, known)| known.stand_in == Some(pool)).map(|(handle, _)| *handle)
    }

    /// Creates the stand-in of a pool that may have one: created by the program for a device, or the device's default
    /// pool.
    fn make(&mut self, pool: Handle, device: i32) -> Option<Handle> {
        let Pool { device: made_for, stays, .. } = *self.of(pool);
        let is_default = || ask(|default| driver::cuDeviceGetDefaultMemPool(default, device)) == Ok(pool);
        if stays || !(made_for == Some(device) || (made_for.is_none() && is_default())) {
            return None;
        }
        let location = Location { kind: Location::DEVICE, id: device };
        let properties = PoolProperties::new(MANAGED, location);
        let Ok(made) = ask(|made| driver::cuMemPoolCreate(made, In::of(&properties))) else {
            self.of(pool).stays = true;
            return None;
        };
        for attribute in SETTINGS {
            let mut value = 0_u64;
            if cuMemPoolGetAttribute(pool, attribute, Out::of(&mut value)) == SUCCESS {
                driver::cuMemPoolSetAttribute(made, attribute, Out::of(&mut value));
            }
        }
        self.pools.insert(made, Pool::new(Kind::Managed));
        self.of(pool).stand_in = Some(made);
        Some(made)
    }

    /// Removes a destroyed pool, and destroys its stand-in.
    pub(super) fn destroyed(&mut self, pool: Handle) {
        if let Some(stand_in) = self.stand_in(pool) {
            driver::cuMemPoolDestroy(stand_in);
            self.dissolve(stand_in);
        }
        self.dissolve(pool);
    }

    /// Trims the stand-in of a pool, and returns the bytes that it keeps.
    pub(super) fn trim_stand_in(&mut self, pool: Handle, keep: usize) -> usize {
        let Some(stand_in) = self.stand_in(pool) else { return 0 };
        driver::cuMemPoolTrimTo(stand_in, keep);
        self.settle(stand_in);
        let kept = ask(|value| cuMemPoolGetAttribute(stand_in, RESERVED_MEM_CURRENT, value)).unwrap_or(0);
        usize::try_from(kept).unwrap_or(usize::MAX)
    }
}

fn has_managed_pools(device: i32) -> bool {
    settings().mode == Mode::Unified && driver::version() >= MANAGED_POOLS && driver::can_move(device)
}
