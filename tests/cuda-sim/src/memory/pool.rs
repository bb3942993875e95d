//! Memory pools: what they are, and what they hold of a card.
//!
//! A pool of device memory reserves bytes of the card for what was allocated from it. What is freed stays reserved up to
//! the release threshold; the rest goes back at once (the real driver waits for the next synchronisation). A managed
//! pool (CUDA 13) reserves nothing: its memory takes the card's bytes while it is there.

use crate::abi::Handle;
use crate::error::Error;
use crate::machine;
use crate::memory::managed::{CPU, NOWHERE};
use crate::memory::residency;
use crate::objects::Objects;
use crate::sharable::Sharable;
use std::collections::BTreeMap;

/// A memory pool.
#[derive(Debug)]
pub(crate) struct Pool {
    /// Device whose card it takes; for managed pools, of the process that counts it.
    pub(crate) device: usize,
    /// Managed pools: where their memory shall be.
    pub(crate) preferred: Option<i32>,
    pub(crate) handle_types: u32,
    /// 0: as much as the card has.
    pub(crate) max: u64,
    pub(crate) threshold: u64,
    pub(crate) used: Level,
    pub(crate) reserved: Level,
    /// Three ways of using freed memory again, all on at first; they make no difference here.
    pub(crate) reuse: [u32; 3],
    /// Access rights of other devices.
    pub(crate) access: BTreeMap<i32, u32>,
    pub(crate) is_default: bool,
    /// Gone as soon as nothing of it is used.
    pub(crate) is_destroyed: bool,
    /// File that represents it in other processes, once it was exported or when it was imported.
    pub(crate) shared: Option<Sharable>,
    /// Another process's: nothing is allocated from it here.
    pub(crate) is_imported: bool,
}

/// A number of bytes, and the highest that it was.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Level {
    pub(crate) now: u64,
    pub(crate) high: u64,
}

impl Level {
    fn set(&mut self, now: u64) {
        *self = Self { now, high: self.high.max(now) };
    }
}

/// Pools by place: a device's ordinal, [`CPU`] or [`NOWHERE`], and whether they are managed.
#[derive(Debug, Default)]
pub(crate) struct Places {
    default: BTreeMap<(i32, bool), Handle>,
    current: BTreeMap<(i32, bool), Handle>,
}

impl Pool {
    pub(crate) fn new(device: usize, preferred: Option<i32>) -> Self {
        Self {
            device,
            preferred,
            handle_types: 0,
            max: 0,
            threshold: 0,
            used: Level::default(),
            reserved: Level::default(),
            reuse: [1; 3],
            access: BTreeMap::new(),
            is_default: false,
            is_destroyed: false,
            shared: None,
            is_imported: false,
        }
    }
}

impl Objects {
    /// # Errors
    /// No such pool.
    pub(crate) fn pool(&mut self, pool: Handle) -> Result<&mut Pool, Error> {
        self.pools.get_mut(&pool).filter(|pool| !pool.is_destroyed).ok_or(Error::INVALID_VALUE)
    }

    /// The pool that a place began with.
    ///
    /// # Errors
    /// When there is none for it.
    pub(crate) fn default_pool(&mut self, place: i32, is_managed: bool) -> Result<Handle, Error> {
        if let Some(pool) = self.places.default.get(&(place, is_managed)) {
            return Ok(*pool);
        }
        let device = if place == CPU || place == NOWHERE { 0 } else { machine::device(place)?.0 };
        if is_managed {
            managed_pools_exist()?;
        } else if place < 0 {
            return Err(Error::NOT_SUPPORTED);
        }
        let made = self.handle();
        let pool = Pool { is_default: true, ..Pool::new(device, is_managed.then_some(place)) };
        self.pools.insert(made, pool);
        self.places.default.insert((place, is_managed), made);
        Ok(made)
    }

    /// The pool that allocations of a place come from.
    ///
    /// # Errors
    /// As [`Self::default_pool`].
    pub(crate) fn current_pool(&mut self, place: i32, is_managed: bool) -> Result<Handle, Error> {
        match self.places.current.get(&(place, is_managed)) {
            Some(pool) => Ok(*pool),
            None => self.default_pool(place, is_managed),
        }
    }

    /// # Errors
    /// No such pool, or not one for this place.
    pub(crate) fn set_current_pool(&mut self, place: i32, is_managed: bool, pool: Handle) -> Result<(), Error> {
        let known = self.pool(pool)?;
        let fits = match known.preferred {
            _ if known.is_imported => false,
            None => !is_managed && i32::try_from(known.device) == Ok(place),
            Some(preferred) => is_managed && preferred == place,
        };
        if !fits {
            return Err(Error::INVALID_VALUE);
        }
        self.places.current.insert((place, is_managed), pool);
        Ok(())
    }

    /// A pool that is current somewhere gives way to the default.
    ///
    /// # Errors
    /// No such pool, or a default one.
    pub(crate) fn destroy_pool(&mut self, pool: Handle) -> Result<(), Error> {
        let known = self.pool(pool)?;
        if known.is_default {
            return Err(Error::INVALID_VALUE);
        }
        (known.is_destroyed, known.threshold) = (true, 0);
        self.places.current.retain(|_, current| *current != pool);
        self.shrink_pool(pool, 0);
        Ok(())
    }

    /// Takes bytes out of a pool; answers when they are there.
    ///
    /// # Errors
    /// The pool or the card has no room.
    pub(crate) fn take_from_pool(&mut self, pool: Handle, bytes: u64) -> Result<u64, Error> {
        let Self { pools, allocations, .. } = self;
        let pool = pools.get_mut(&pool).filter(|pool| !pool.is_imported).ok_or(Error::INVALID_VALUE)?;
        let used = pool.used.now.checked_add(bytes).ok_or(Error::OUT_OF_MEMORY)?;
        if pool.max != 0 && used > pool.max {
            return Err(Error::OUT_OF_MEMORY);
        }
        let mut ready = 0;
        if pool.preferred.is_none() {
            let missing = used.saturating_sub(pool.reserved.now);
            ready = residency::charge(allocations, pool.device, missing)?;
            pool.reserved.set(pool.reserved.now + missing);
        }
        pool.used.set(used);
        Ok(ready)
    }

    /// Counts bytes that another process took out of an imported pool, and this one has too.
    pub(crate) fn lend_from_pool(&mut self, pool: Handle, bytes: u64) {
        if let Some(pool) = self.pools.get_mut(&pool) {
            pool.used.set(pool.used.now + bytes);
        }
    }

    /// Gives bytes back to a pool.
    pub(crate) fn return_to_pool(&mut self, pool: Handle, bytes: u64) {
        let Some(known) = self.pools.get_mut(&pool) else { return };
        known.used.now = known.used.now.saturating_sub(bytes);
        let keep = known.threshold;
        self.shrink_pool(pool, keep);
    }

    /// Gives what is reserved and not used back to the card, down to `keep` bytes in all.
    pub(crate) fn shrink_pool(&mut self, pool: Handle, keep: u64) {
        let Some(known) = self.pools.get_mut(&pool) else { return };
        let kept = known.used.now.max(keep).min(known.reserved.now);
        let (device, freed) = (known.device, known.reserved.now - kept);
        known.reserved.now = kept;
        if known.is_destroyed && known.used.now == 0 {
            self.pools.remove(&pool);
        }
        if freed > 0 {
            residency::release(device, freed);
        }
    }
}

/// # Errors
/// The driver is older than CUDA 13, or a card cannot share managed memory.
pub(crate) fn managed_pools_exist() -> Result<(), Error> {
    let all = machine::all()?.iter().all(|device| device.settings.concurrent_managed);
    if machine::version() >= 13000 && all { Ok(()) } else { Err(Error::NOT_SUPPORTED) }
}
