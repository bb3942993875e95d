//! Which of this pid namespace's processes a card's processes are.
//!
//! The card knows a process by the pid it has in its own namespace and by its start time. The kernel shows both of every
//! process that the reader may see (`NSpid` in `status`, field 22 in `stat`), so the double finds the reader's pid for it;
//! what the reader cannot see is left out, as in a container with the real driver.

use omni_cuda_card::Process;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// One line of NVML's list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Used {
    pub(super) pid: u32,
    pub(super) bytes: u64,
}

/// A process of `/proc`.
struct Seen {
    pid: u32,
    /// In its innermost namespace.
    own_pid: u32,
    start_time: u64,
}

/// The processes that the reader can see, with what they have on the card in `file`.
pub(super) fn seen_from_here(processes: &[Process], file: &Path) -> Vec<Used> {
    let inode = fs::metadata(file).map_or(0, |metadata| metadata.ino());
    let mut seen: Vec<Seen> = numbers("/proc").filter_map(read).collect();
    let used = |process: &Process| {
        let is_it = |seen: &Seen| {
            seen.own_pid == process.pid && seen.start_time == process.start_time && may_have_mapped(seen.pid, inode)
        };
        // Taken once: two sandboxes may have started a process of the same number in the same moment.
        let found = seen.iter().position(is_it).map(|at| seen.swap_remove(at))?;
        Some(Used { pid: found.pid, bytes: process.device })
    };
    processes.iter().filter_map(used).collect()
}

fn numbers(dir: &str) -> impl Iterator<Item = u32> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn read(pid: u32) -> Option<Seen> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let (_, after_name) = stat.rsplit_once(')')?;
    let start_time = after_name.split_whitespace().nth(19)?.parse().ok()?;
    let own_pid =
        status.lines().find_map(|line| line.strip_prefix("NSpid:"))?.split_whitespace().last()?.parse().ok()?;
    Some(Seen { pid, own_pid, start_time })
}

/// Whether the process has the file mapped; a reader that may not look believes it.
fn may_have_mapped(pid: u32, inode: u64) -> bool {
    let has = |maps: String| maps.lines().any(|line| line.split_whitespace().nth(4) == Some(&inode.to_string()));
    fs::read_to_string(format!("/proc/{pid}/maps")).map_or(true, has)
}
