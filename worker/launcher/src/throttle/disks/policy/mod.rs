//! Policy of write limits. Pure: bytes written to each device go in, changes come out.
//!
//! Invariants:
//! - A device is filled once as fast as it can be: data that a model stores is never slowed down, only writes beyond
//!   that.
//! - A limited device that is written on stays limited. One that is not is released, with the budget regained until
//!   then.

use std::collections::BTreeMap;
use std::time::Duration;

/// Long-run rate of a limited device, in bytes a second; measured: at twice as much its neighbours still feel it at
/// times (`docs/decisions/disks.md`).
pub(super) const RATE: u64 = 10 << 20;
/// Part of [`RATE`] below which a device is calm, and looks in a row after which it is released.
const CALM_BELOW: u64 = 4;
const RELEASE_AFTER_LOOKS: u32 = 8;

/// Use of a device since the last look.
#[derive(Debug, Clone, Copy)]
pub(super) struct Use {
    /// How large it is.
    pub(super) bytes: u64,
    /// Bytes written to it.
    pub(super) written: u64,
}

/// Change of a device's limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    /// Limit to [`RATE`].
    Limit,
    /// No limit.
    Release,
}

/// Limited devices, and the budgets of all.
#[derive(Debug, Default)]
pub(super) struct Policy(BTreeMap<String, Disk>);

#[derive(Debug)]
struct Disk {
    /// Budget that may still be written at full speed; at most once the whole device.
    left: u64,
    /// Slow, and calm for so many looks.
    slow: Option<u32>,
}

impl Policy {
    /// A look at all devices, `within` after the last one.
    pub(super) fn tick(&mut self, within: Duration, uses: &BTreeMap<String, Use>) -> Vec<(String, Change)> {
        let mut changes = Vec::new();
        self.0.retain(|device, _| uses.contains_key(device));
        let may = RATE.saturating_mul(u64::try_from(within.as_millis()).unwrap_or(u64::MAX)) / 1000;
        for (device, used) in uses {
            let disk = self.0.entry(device.clone()).or_insert(Disk { left: used.bytes, slow: None });
            // Half for a limited device: it writes about as much as it may, and is not to regain anything by a little
            // less.
            let regained = if disk.slow.is_some() { may / 2 } else { may };
            disk.left = disk.left.saturating_add(regained).min(used.bytes).saturating_sub(used.written);
            match &mut disk.slow {
                None if disk.left == 0 => {
                    disk.slow = Some(0);
                    changes.push((device.clone(), Change::Limit));
                }
                None => {}
                Some(calm) if used.written < may / CALM_BELOW => {
                    *calm += 1;
                    if *calm == RELEASE_AFTER_LOOKS {
                        disk.slow = None;
                        changes.push((device.clone(), Change::Release));
                    }
                }
                Some(calm) => *calm = 0,
            }
        }
        changes
    }

    /// Nothing is known of this device: an instance came to it, or left it.
    pub(super) fn forget(&mut self, device: &str) {
        self.0.remove(device);
    }
}

#[cfg(test)]
mod tests;
