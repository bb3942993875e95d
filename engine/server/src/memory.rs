//! Memory and processors that the process may use.

use std::fs;
use std::io::{Error, ErrorKind, Result};

/// Bytes that are available: of the machine, or of the instance, whose `/proc/meminfo` the node shows it.
///
/// # Errors
/// The file cannot be read, or has no such line.
pub fn available() -> Result<u64> {
    parse(&fs::read_to_string("/proc/meminfo")?)
        .ok_or_else(|| Error::new(ErrorKind::InvalidData, "/proc/meminfo has no MemAvailable"))
}

/// Number of processors: of those that the process may run on, as many as the machine has, or as the node shows the
/// instance, whose limit of processor time is no set of processors.
#[must_use]
pub fn processors() -> usize {
    let allowed = std::thread::available_parallelism().map_or(1, usize::from);
    let shown = fs::read_to_string("/proc/cpuinfo").map_or(0, |cpuinfo| count(&cpuinfo));
    if shown == 0 { allowed } else { allowed.min(shown) }
}

fn count(cpuinfo: &str) -> usize {
    cpuinfo.lines().filter(|line| line.starts_with("processor")).count()
}

fn parse(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn available_memory_is_a_line_of_meminfo() {
        assert_eq!(parse("MemTotal: 9 kB\nMemAvailable:   1234 kB\n"), Some(1234 * 1024));
        for bad in ["", "MemAvailable: x kB", "MemAvailable: 1", "MemAvailable: 99999999999999999999 kB"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
        assert!(available().unwrap() > 0);
    }

    #[test]
    fn processors_are_lines_of_cpuinfo() {
        assert_eq!(count("processor\t: 0\nmodel name\t: processor\nprocessor\t: 1\n"), 2);
        assert!(processors() >= 1);
    }
}
