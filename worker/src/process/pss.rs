//! What a process takes of memory with its part of what it shares with others: the kernel's proportional set size.

use std::fs::File;
use std::io::Read;

/// The file is some 1 KiB.
const MOST: u64 = 16 * 1024;

/// In bytes; `None` when the process is gone, or the kernel (before 4.14) does not say.
pub(super) fn of(pid: i32) -> Option<u64> {
    let mut text = String::new();
    File::open(format!("/proc/{pid}/smaps_rollup")).ok()?.take(MOST).read_to_string(&mut text).ok()?;
    parse(&text)
}

fn parse(text: &str) -> Option<u64> {
    let kib: u64 = text.lines().find_map(|line| line.strip_prefix("Pss:"))?.trim().strip_suffix(" kB")?.parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_is_found() {
        let text = "55d0-7ffc ---p 00000000 00:00 0  [rollup]\nRss:    9000 kB\nPss:    1234 kB\nPss_Dirty:   7 kB\n";
        assert_eq!(parse(text), Some(1234 * 1024));
        assert_eq!(parse("Rss: 1 kB\n"), None);
        assert!(of(std::process::id().cast_signed()).is_some_and(|bytes| bytes > 100_000));
        assert_eq!(of(i32::MAX), None);
    }
}
