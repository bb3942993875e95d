//! Whose writes are slowed down. Pure: what was written to each device goes in, changes come out.
//!
//! What always holds:
//! - A device is filled once as fast as it can be: what a model stores is never slowed down, only what it writes beyond that.
//! - Who is slow and writes on stays so. Who does not is let go, with what it has regained until then.

use std::collections::BTreeMap;
use std::time::Duration;

/// What a model may write in the long run, in bytes a second; measured: at twice as much its neighbours still feel it at times
/// (`docs/decisions/disks.md`).
pub(super) const RATE: u64 = 10 << 20;
/// Does not write on: less than a quarter of that, for [`CALM`] looks in a row.
const SATED: u64 = 4;
const CALM: u32 = 8;

/// What happened to a device since the last look.
#[derive(Debug, Clone, Copy)]
pub(super) struct Use {
    /// How large it is.
    pub(super) bytes: u64,
    /// What was written to it.
    pub(super) written: u64,
}

/// What to do with a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    /// It takes [`RATE`] at most.
    SlowDown,
    /// It takes what it can.
    LetGo,
}

/// Who is slow.
#[derive(Debug, Default)]
pub(super) struct Policy(BTreeMap<String, Disk>);

#[derive(Debug)]
struct Disk {
    /// What may still be written as fast as it can be; at most once the whole device.
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
            // Half for who is slow: it writes about as much as it may, and is not to regain anything by a little less.
            let regained = if disk.slow.is_some() { may / 2 } else { may };
            disk.left = disk.left.saturating_add(regained).min(used.bytes).saturating_sub(used.written);
            match &mut disk.slow {
                None if disk.left == 0 => {
                    disk.slow = Some(0);
                    changes.push((device.clone(), Change::SlowDown));
                }
                None => {}
                Some(calm) if used.written < may / SATED => {
                    *calm += 1;
                    if *calm == CALM {
                        disk.slow = None;
                        changes.push((device.clone(), Change::LetGo));
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
