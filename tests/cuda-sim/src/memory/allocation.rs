//! The table of allocations: what lies at an address.

use crate::abi::Handle;
use crate::backing::Region;
use crate::memory::managed::Managed;
use std::collections::BTreeMap;

/// A range of addresses that the driver handed out.
#[derive(Debug)]
pub(crate) struct Allocation {
    pub(crate) base: u64,
    pub(crate) bytes: u64,
    pub(crate) context: Handle,
    pub(crate) device: usize,
    /// Bytes of the card that go with it: 0 where another process holds them.
    pub(crate) charged: u64,
    /// Unique for the life of the process (`CU_POINTER_ATTRIBUTE_BUFFER_ID`).
    pub(crate) id: u64,
    /// Memory; none where another process holds it.
    pub(crate) region: Option<Region>,
    pub(crate) kind: Kind,
}

/// Kind of memory, which decides about its free.
#[derive(Debug)]
pub(crate) enum Kind {
    /// `cuMemFree`, `cuMemFreeAsync`.
    Device,
    /// From a stream-ordered allocator; freed by both, too.
    Pooled {
        /// Pool that it came from.
        pool: Handle,
        /// Managed pools only.
        managed: Option<Managed>,
    },
    /// `cuMemFree`.
    Managed(Managed),
    /// `cuMemFreeHost`, or `cuMemHostUnregister` when the program brought it.
    Host {
        /// Flags given by the program.
        flags: u32,
        /// The program brought it.
        registered: bool,
    },
    /// Freed by other calls than those for memory: mapped handles, memory of other processes.
    Elsewhere,
}

/// Allocations by address.
#[derive(Debug, Default)]
pub(crate) struct Allocations {
    by_base: BTreeMap<u64, Allocation>,
    made: u64,
}

impl Allocation {
    pub(crate) fn managed(&self) -> Option<&Managed> {
        match &self.kind {
            Kind::Managed(managed) => Some(managed),
            Kind::Pooled { managed, .. } => managed.as_ref(),
            Kind::Device | Kind::Host { .. } | Kind::Elsewhere => None,
        }
    }

    pub(crate) fn managed_mut(&mut self) -> Option<&mut Managed> {
        match &mut self.kind {
            Kind::Managed(managed) => Some(managed),
            Kind::Pooled { managed, .. } => managed.as_mut(),
            Kind::Device | Kind::Host { .. } | Kind::Elsewhere => None,
        }
    }

    pub(crate) fn is_host(&self) -> bool {
        matches!(self.kind, Kind::Host { .. })
    }
}

impl Allocations {
    /// Numbers it and puts it into the table. Its base is not in the table yet.
    pub(crate) fn add(&mut self, mut allocation: Allocation) -> u64 {
        self.made += 1;
        allocation.id = self.made;
        let base = allocation.base;
        self.by_base.insert(base, allocation);
        base
    }

    /// Allocation that begins at an address.
    pub(crate) fn exact(&self, base: u64) -> Option<&Allocation> {
        self.by_base.get(&base)
    }

    pub(crate) fn remove(&mut self, base: u64) -> Option<Allocation> {
        self.by_base.remove(&base)
    }

    /// Allocation with an address in it.
    pub(crate) fn at(&self, address: u64) -> Option<&Allocation> {
        let (base, allocation) = self.by_base.range(..=address).next_back()?;
        (address - base < allocation.bytes).then_some(allocation)
    }

    /// As [`Self::at`].
    pub(crate) fn at_mut(&mut self, address: u64) -> Option<&mut Allocation> {
        let (base, allocation) = self.by_base.range_mut(..=address).next_back()?;
        (address - base < allocation.bytes).then_some(allocation)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Allocation> {
        self.by_base.values()
    }
}
