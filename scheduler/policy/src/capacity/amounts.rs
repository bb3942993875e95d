//! Amounts of a node's resources, and the sum that several instances commit.

use super::Reservation;
use crate::Generation;
use std::collections::BTreeMap;

/// Amount of each resource; an unbounded budget has `u64::MAX`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Amounts {
    /// Bytes.
    pub memory: u64,
    /// Thousandths of a processor.
    pub millicpus: u64,
    /// Processes and threads.
    pub processes: u64,
}

/// Resource of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resource {
    /// [`Amounts::memory`].
    Memory,
    /// [`Amounts::millicpus`].
    Cpus,
    /// [`Amounts::processes`].
    Processes,
}

impl Resource {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Memory, Self::Cpus, Self::Processes];
}

impl Amounts {
    /// Amount of one resource.
    #[must_use]
    pub fn of(&self, resource: Resource) -> u64 {
        match resource {
            Resource::Memory => self.memory,
            Resource::Cpus => self.millicpus,
            Resource::Processes => self.processes,
        }
    }

    fn each(self, other: Self, combine: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            memory: combine(self.memory, other.memory),
            millicpus: combine(self.millicpus, other.millicpus),
            processes: combine(self.processes, other.processes),
        }
    }

    pub(super) fn plus(self, other: Self) -> Self {
        self.each(other, u64::saturating_add)
    }

    pub(super) fn less(self, other: Self) -> Self {
        self.each(other, u64::saturating_sub)
    }

    /// First resource of which this is more than the other.
    pub(super) fn beyond(&self, other: &Self) -> Option<Resource> {
        Resource::ALL.into_iter().find(|resource| self.of(*resource) > other.of(*resource))
    }
}

/// Sum of what instances may use, with each of their zygotes counted once.
#[derive(Debug, Default)]
pub(super) struct Commitment<'a> {
    sum: Amounts,
    /// Number of instances by model and generation.
    families: BTreeMap<(&'a str, Generation), u32>,
}

impl<'a> Commitment<'a> {
    pub(super) fn sum(&self) -> Amounts {
        self.sum
    }

    pub(super) fn add(&mut self, reservation: &'a Reservation) {
        self.sum = self.sum.plus(reservation.need);
        if let (Some(zygote), Some(family)) = (&reservation.zygote, reservation.family()) {
            let count = self.families.entry(family).or_default();
            *count += 1;
            if *count == 1 {
                self.sum = self.sum.plus(zygote.need);
            }
        }
    }

    /// Removes a reservation that was added.
    pub(super) fn remove(&mut self, reservation: &'a Reservation) {
        self.sum = self.sum.less(reservation.need);
        if let (Some(zygote), Some(family)) = (&reservation.zygote, reservation.family())
            && let Some(count) = self.families.get_mut(&family)
        {
            *count -= 1;
            if *count == 0 {
                self.families.remove(&family);
                self.sum = self.sum.less(zygote.need);
            }
        }
    }
}
