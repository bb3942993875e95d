//! Policy of pinning. Pure: processor time that each group used goes in, changes come out.
//!
//! Invariants:
//! - A pinned group has as many processors as its limit, rounded up, so it loses no processor time by it; and the
//!   limits of groups that are pinned to a single processor do not exceed it together.
//! - A group that cannot be given that many is on all processors, as is every group that does not use up its limit.
//! - A pinned group stays where it is until it is unpinned.

use omni_cgroup::CpuSet;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

/// A whole processor, in thousandths.
const WHOLE: u32 = 1000;
/// Use above which a group is pinned: three fifths of its limit. A group that also has the kernel work for it, on files or memory, waits for that in between.
const PIN_ABOVE: u64 = 600;
/// Use below which it is unpinned, after [`UNPIN_AFTER_TICKS`] in a row: about a third of its limit.
const UNPIN_BELOW: u64 = 350;
const UNPIN_AFTER_TICKS: u32 = 8;

/// Use of a group since the last tick.
#[derive(Debug, Clone, Copy)]
pub(super) struct Use {
    /// Limit, in thousandths of a processor.
    pub(super) limit_millis: u32,
    /// Processor time, in microseconds.
    pub(super) used_usec: u64,
}

/// Change of a group's processors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Change {
    /// Keep the group to these processors.
    Pin(CpuSet),
    /// Unpin: all processors.
    Unpin,
}

/// Pinned groups and their processors.
#[derive(Debug, Default)]
pub(super) struct Policy {
    all: CpuSet,
    pinned: BTreeMap<String, Pinned>,
}

#[derive(Debug)]
struct Pinned {
    on: CpuSet,
    /// Promised time of each processor, in thousandths.
    part: u32,
    calm: u32,
}

impl Policy {
    /// A look at all groups, `within` after the last one; `all` are the processors that there are.
    pub(super) fn tick(
        &mut self,
        all: &CpuSet,
        within: Duration,
        uses: &BTreeMap<String, Use>,
    ) -> Vec<(String, Change)> {
        let mut changes = Vec::new();
        if self.all != *all {
            // Processors came or went: pin anew.
            self.all = all.clone();
            let pinned = std::mem::take(&mut self.pinned);
            changes.extend(pinned.into_keys().map(|name| (name, Change::Unpin)));
        }
        self.pinned.retain(|name, _| uses.contains_key(name));
        for (name, used) in uses {
            let permille = permille(*used, within);
            match self.pinned.get_mut(name) {
                Some(pinned) if permille < UNPIN_BELOW => {
                    pinned.calm += 1;
                    if pinned.calm == UNPIN_AFTER_TICKS {
                        self.pinned.remove(name);
                        changes.push((name.clone(), Change::Unpin));
                    }
                }
                Some(pinned) => pinned.calm = 0,
                None if permille >= PIN_ABOVE => {
                    if let Some(pinned) = self.place(used.limit_millis) {
                        changes.push((name.clone(), Change::Pin(pinned.on.clone())));
                        self.pinned.insert(name.clone(), pinned);
                    }
                }
                None => {}
            }
        }
        changes
    }

    /// The processors with the most room, the last ones first: the first ones have the machine's interrupts.
    fn place(&self, limit: u32) -> Option<Pinned> {
        let count = limit.div_ceil(WHOLE);
        let wanted = usize::try_from(count).ok().filter(|wanted| (1..self.all.len()).contains(wanted))?;
        let part = limit.div_ceil(count);
        let mut by_room: Vec<(u32, Reverse<u32>)> =
            self.all.iter().map(|processor| (self.taken(processor), Reverse(processor))).collect();
        by_room.sort_unstable();
        by_room.truncate(wanted);
        let fits = by_room.iter().all(|(taken, _)| taken + part <= WHOLE);
        fits.then(|| Pinned {
            on: by_room.into_iter().map(|(_, Reverse(processor))| processor).collect(),
            part,
            calm: 0,
        })
    }

    /// Promised time of a processor, in thousandths.
    fn taken(&self, processor: u32) -> u32 {
        self.pinned.values().filter(|pinned| pinned.on.contains(processor)).map(|pinned| pinned.part).sum()
    }
}

/// How much of its limit was used, in thousandths.
fn permille(used: Use, within: Duration) -> u64 {
    let could =
        u64::from(used.limit_millis).saturating_mul(u64::try_from(within.as_micros()).unwrap_or(u64::MAX)) / 1000;
    used.used_usec.saturating_mul(1000).checked_div(could).unwrap_or(0)
}

#[cfg(test)]
mod tests;
