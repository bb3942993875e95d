//! Reservations, handles and mappings of this process. One lock, taken after that of [`crate::objects`].

use super::shapes::{Access, GRANULARITY, Location, NO_ACCESS, Properties};
use crate::abi::Handle;
use crate::error::{Answer, Error};
use crate::memory::allocation::{Allocation, Kind};
use crate::memory::residency;
use crate::objects::Objects;
use crate::sharable::{Place, Sharable};
use std::collections::{BTreeMap, HashMap};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

/// See the file's header.
#[derive(Debug, Default)]
pub(super) struct Table {
    /// Reservations by their beginning.
    pub(super) places: BTreeMap<u64, Place>,
    pub(super) memories: HashMap<Handle, Memory>,
    /// Mappings by their beginning.
    pub(super) mappings: BTreeMap<u64, Mapping>,
}

/// Memory of a handle.
#[derive(Debug)]
pub(super) struct Memory {
    pub(super) file: Sharable,
    pub(super) bytes: u64,
    pub(super) properties: Properties,
    /// Device; none for the host.
    pub(super) device: Option<usize>,
    /// Bytes that this process has of the card for it.
    pub(super) charged: u64,
    /// Handles that the program still has to release.
    pub(super) references: u32,
}

/// A part of a handle's memory at addresses.
#[derive(Debug)]
pub(super) struct Mapping {
    pub(super) bytes: u64,
    pub(super) handle: Handle,
    /// Access rights by location; none at first.
    pub(super) access: BTreeMap<Location, u32>,
}

static TABLE: LazyLock<Mutex<Table>> = LazyLock::new(Mutex::default);

pub(super) fn table() -> MutexGuard<'static, Table> {
    TABLE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Table {
    pub(super) fn memory(&mut self, handle: Handle) -> Result<&mut Memory, Error> {
        self.memories.get_mut(&handle).ok_or(Error::INVALID_VALUE)
    }

    /// The mapping that an address is in.
    pub(super) fn mapping(&self, address: u64) -> Option<&Mapping> {
        let (base, mapping) = self.mappings.range(..=address).next_back()?;
        (address - base < mapping.bytes).then_some(mapping)
    }

    /// The range is inside one reservation.
    pub(super) fn is_reserved(&self, base: u64, bytes: u64) -> bool {
        let found = self.places.range(..=base).next_back();
        found.is_some_and(|(start, place)| base.checked_add(bytes).is_some_and(|end| end <= start + place.bytes))
    }

    /// Nothing is mapped in the range.
    pub(super) fn is_empty(&self, base: u64, bytes: u64) -> bool {
        self.mappings.range(..base + bytes).next_back().is_none_or(|(start, mapping)| start + mapping.bytes <= base)
    }

    /// The mappings that fill the range exactly.
    ///
    /// # Errors
    /// When there are holes in it, or it ends inside of a mapping.
    pub(super) fn filling(&self, base: u64, bytes: u64) -> Result<Vec<u64>, Error> {
        let end = base.checked_add(bytes).filter(|end| *end > base).ok_or(Error::INVALID_VALUE)?;
        let (mut at, mut found) = (base, Vec::new());
        while at < end {
            found.push(at);
            at += self.mappings.get(&at).ok_or(Error::INVALID_VALUE)?.bytes;
        }
        if at == end { Ok(found) } else { Err(Error::INVALID_VALUE) }
    }

    /// Takes mappings away; their addresses stay reserved.
    pub(super) fn unmap(&mut self, objects: &mut Objects, bases: &[u64]) -> Answer {
        for base in bases {
            let Some(mapping) = self.mappings.remove(base) else { continue };
            objects.allocations.remove(*base);
            Place::clear(*base, mapping.bytes)?;
            self.forget(mapping.handle);
        }
        Ok(())
    }

    /// Frees a handle's memory with its last user.
    pub(super) fn forget(&mut self, handle: Handle) {
        let mapped = self.mappings.values().any(|mapping| mapping.handle == handle);
        if mapped || self.memories.get(&handle).is_none_or(|memory| memory.references > 0) {
            return;
        }
        if let Some(memory) = self.memories.remove(&handle)
            && let Some(device) = memory.device.filter(|_| memory.charged > 0)
        {
            residency::release(device, memory.charged);
        }
    }

    /// Sets the access rights of mappings.
    pub(super) fn set_access(&mut self, objects: &mut Objects, base: u64, access: &[Access]) -> Answer {
        let mapping = self.mappings.get_mut(&base).ok_or(Error::INVALID_VALUE)?;
        for Access { location, flags } in access {
            mapping.access.insert(location.normal(), *flags);
        }
        mapping.access.retain(|_, flags| *flags != NO_ACCESS);
        let (bytes, used) = (mapping.bytes, !mapping.access.is_empty());
        let (device, handle) = (self.memories.get(&mapping.handle).and_then(|memory| memory.device), mapping.handle);
        objects.allocations.remove(base);
        if used {
            let (device, context) = (device.unwrap_or(0), 0);
            debug_assert!(handle != 0 && bytes % GRANULARITY == 0);
            let kind = Kind::Elsewhere;
            objects.allocations.add(Allocation { base, bytes, context, device, charged: 0, id: 0, region: None, kind });
        }
        Ok(())
    }
}
