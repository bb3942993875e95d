//! What the machine says of itself: how much memory it has, which is what the node's budgets are by default, and what
//! time it is on its clock.

use std::time::{SystemTime, UNIX_EPOCH};

/// In bytes; `None` when the machine does not say.
#[must_use]
pub fn memory() -> Option<u64> {
    memory_of(&std::fs::read_to_string("/proc/meminfo").ok()?)
}

/// Milliseconds since the Unix epoch, for people and for what lasts. Nothing that is waited for goes by it.
#[must_use]
pub fn unix_ms() -> u64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX)
}

fn memory_of(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib.saturating_mul(1024))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machines_memory_is_read() {
        assert_eq!(memory_of("MemTotal:       131072 kB\nMemFree: 1 kB\n"), Some(128 << 20));
        assert_eq!(memory_of("MemTotal: lots\n"), None);
    }
}
