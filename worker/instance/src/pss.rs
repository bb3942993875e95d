//! Memory of a process with its part of what it shares with others: the kernel's proportional set size.
//!
//! Called by the loop of an instance's worker, which must not wait for the instance: the kernel walks all page tables
//! of the process for the answer, so a process that has made very many is not measured.

use std::fs::File;
use std::io::Read;

/// Each file is some 1 KiB.
const MOST: u64 = 16 * 1024;

/// Page tables of 16 MiB map 8 GiB in pages of 4 KiB: a walk of some 50 ms.
const TABLES_KIB: u64 = 16 * 1024;

/// In bytes; `None` when the process is gone, maps too much, or the kernel (before 4.14) does not say.
pub(super) fn pss_bytes(pid: i32) -> Option<u64> {
    if kib(&read(pid, "status")?, "VmPTE:")? > TABLES_KIB {
        return None;
    }
    kib(&read(pid, "smaps_rollup")?, "Pss:")?.checked_mul(1024)
}

fn read(pid: i32, file: &str) -> Option<String> {
    let mut text = String::new();
    File::open(format!("/proc/{pid}/{file}")).ok()?.take(MOST).read_to_string(&mut text).ok()?;
    Some(text)
}

/// The value of a line. Pure.
fn kib(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name))?.trim().strip_suffix(" kB")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader, Write};
    use std::process::{Command, Stdio};

    #[test]
    fn pss_is_parsed() {
        let text = "55d0-7ffc ---p 00000000 00:00 0  [rollup]\nRss:    9000 kB\nPss:    1234 kB\nPss_Dirty:   7 kB\n";
        assert_eq!(kib(text, "Pss:"), Some(1234));
        assert_eq!(kib("Rss: 1 kB\n", "Pss:"), None);
        assert!(pss_bytes(std::process::id().cast_signed()).is_some_and(|bytes| bytes > 100_000));
        assert_eq!(pss_bytes(i32::MAX), None);
    }

    #[test]
    fn pss_of_very_large_mappings_is_not_read() {
        // Reading pages that were never written takes page tables and no memory.
        let code = "import mmap, sys
private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
much = mmap.mmap(-1, 9 << 30, private, mmap.PROT_READ)
much.madvise(mmap.MADV_NOHUGEPAGE)
print(flush=True)
input()
much.madvise(22)  # MADV_POPULATE_READ
print(flush=True)
input()";
        let mut python = Command::new("python3.11");
        let mut child = python.args(["-c", code]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut stdin = child.stdin.take().unwrap();
        let pid = child.id().cast_signed();
        lines.next().unwrap().unwrap();
        let before = pss_bytes(pid);
        writeln!(stdin).unwrap();
        lines.next().unwrap().unwrap();
        let after = pss_bytes(pid);
        drop(stdin);
        child.wait().unwrap();
        assert!(before.is_some());
        assert_eq!(after, None);
    }
}
