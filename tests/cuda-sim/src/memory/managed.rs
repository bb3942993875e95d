//! Places of the bytes of one managed allocation, and the program's advice about them. Pure.
//!
//! A byte is nowhere until it is first used; then it is on the host, on one device, or, when it is read mostly, on both.

use crate::ranges::Ranges;
use std::collections::{BTreeMap, BTreeSet};

/// `CU_DEVICE_CPU`.
pub(crate) const CPU: i32 = -1;
/// `CU_DEVICE_INVALID`: nowhere in particular.
pub(crate) const NOWHERE: i32 = -2;

/// The state of one managed allocation; ranges count from its beginning.
#[derive(Debug, Default)]
pub(crate) struct Managed {
    /// Memory on devices, by ordinal.
    pub(crate) on_device: BTreeMap<usize, OnDevice>,
    pub(crate) on_host: Ranges,
    pub(crate) read_mostly: Ranges,
    /// Preferred location, by device ordinal, or [`CPU`].
    pub(crate) preferred: BTreeMap<i32, Ranges>,
    pub(crate) accessed_by: BTreeSet<i32>,
    pub(crate) last_prefetch: BTreeMap<i32, Ranges>,
}

/// Memory on one device.
#[derive(Debug, Default)]
pub(crate) struct OnDevice {
    pub(crate) ranges: Ranges,
    /// Time of the last use, by the card's count of uses.
    pub(crate) used: u64,
}

impl Managed {
    /// Bytes of `part` on the device, and those of them that need no way back: the host has them too.
    pub(crate) fn leaving(&self, device: usize, part: &Ranges) -> (Ranges, Ranges) {
        let there = self.on_device.get(&device).map(|on| on.ranges.and(part)).unwrap_or_default();
        let clean = there.and(&self.on_host);
        (there, clean)
    }

    /// `part` leaves the device; the host has it.
    pub(crate) fn left(&mut self, device: usize, part: &Ranges) {
        self.forget(device, part);
        self.on_host.add(part);
    }

    /// `part` is on the device no more.
    pub(crate) fn forget(&mut self, device: usize, part: &Ranges) {
        if let Some(on) = self.on_device.get_mut(&device) {
            on.ranges = on.ranges.without(part);
            if on.ranges.is_empty() {
                self.on_device.remove(&device);
            }
        }
    }

    /// `part` came to the device. What is read mostly stays on the host too.
    pub(crate) fn arrived(&mut self, device: usize, part: &Ranges) {
        self.on_device.entry(device).or_default().ranges.add(part);
        self.on_host = self.on_host.without(&part.without(&self.read_mostly));
    }

    /// The device wrote `part`: copies elsewhere are worth nothing.
    pub(crate) fn written(&mut self, part: &Ranges) {
        self.on_host = self.on_host.without(part);
    }

    /// Sets what holds for `part`, in a table where each byte has one value.
    pub(crate) fn assign(table: &mut BTreeMap<i32, Ranges>, place: i32, part: &Ranges) {
        for ranges in table.values_mut() {
            *ranges = ranges.without(part);
        }
        if place != NOWHERE {
            table.entry(place).or_default().add(part);
        }
        table.retain(|_, ranges| !ranges.is_empty());
    }

    /// The one place that the whole of `part` has in such a table.
    pub(crate) fn common(table: &BTreeMap<i32, Ranges>, part: &Ranges) -> Option<i32> {
        table.iter().find(|(_, ranges)| part.without(ranges).is_empty()).map(|(place, _)| *place)
    }
}
