//! How much memory the machine has: what the node's budgets are by default. Asked once each, when they are made.

/// In bytes; `None` when the machine does not say.
#[must_use]
pub fn memory() -> Option<u64> {
    memory_of(&std::fs::read_to_string("/proc/meminfo").ok()?)
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
