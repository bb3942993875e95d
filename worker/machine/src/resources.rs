//! Memory and processes of this machine, from which a node's default budgets follow.

/// Memory in bytes; `None` when it cannot be read.
#[must_use]
pub fn memory() -> Option<u64> {
    memory_of(&std::fs::read_to_string("/proc/meminfo").ok()?)
}

/// Highest number of processes and threads at a time; `None` when it cannot be read.
#[must_use]
pub fn processes() -> Option<u32> {
    let number = |name: &str| -> Option<u64> {
        std::fs::read_to_string(format!("/proc/sys/kernel/{name}")).ok()?.trim().parse().ok()
    };
    let most = ["pid_max", "threads-max"].into_iter().filter_map(number).min()?;
    Some(u32::try_from(most).unwrap_or(u32::MAX))
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
    fn memory_is_parsed() {
        assert_eq!(memory_of("MemTotal:       131072 kB\nMemFree: 1 kB\n"), Some(128 << 20));
        assert_eq!(memory_of("MemTotal: lots\n"), None);
    }

    #[test]
    fn the_limit_of_processes_is_read() {
        assert!(processes().is_some_and(|most| most > 300), "{:?}", processes());
    }
}
