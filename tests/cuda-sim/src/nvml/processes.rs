//! Processes of this pid namespace that a card's processes are.
//!
//! The card knows a process by the pid it has in its own namespace and by its start time. The kernel shows both of every
//! process that the reader may see (`NSpid` in `status`, field 22 in `stat`), so the double finds the reader's pid for it;
//! what the reader cannot see is left out, as in a container with the real driver.

use omni_cuda_card::Process;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Line of NVML's list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Used {
    pub(super) pid: u32,
    pub(super) bytes: u64,
}

/// A process of `/proc`.
struct Seen {
    pid: u32,
    /// Process id in its innermost namespace.
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

/// The process may have the file mapped; true where this reader may not look.
fn may_have_mapped(pid: u32, inode: u64) -> bool {
    let has = |maps: String| maps.lines().any(|line| line.split_whitespace().nth(4) == Some(&inode.to_string()));
    fs::read_to_string(format!("/proc/{pid}/maps")).map_or(true, has)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;
    use std::process::{Child, Command};
    use std::time::{Duration, Instant};

    fn on_card(pid: u32, start_time: u64) -> Process {
        Process { pid, start_time, device: 7, ..Process::default() }
    }

    #[test]
    fn processes_of_this_file_are_seen_and_others_are_not() {
        let file = std::env::current_exe().unwrap();
        let own = read(std::process::id()).unwrap();
        let strangers = [on_card(own.pid, own.start_time + 1), on_card(own.pid + 1, own.start_time)];
        assert_eq!(seen_from_here(&[on_card(own.pid, own.start_time)], &file), [Used { pid: own.pid, bytes: 7 }]);
        assert_eq!(seen_from_here(&strangers, &file), []);
        // The same numbers, but another file.
        assert_eq!(seen_from_here(&[on_card(own.pid, own.start_time)], Path::new("/proc/self/status")), []);
    }

    struct Killed(Child);

    impl Drop for Killed {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    /// The first process of a pid namespace of its own, as those of sandboxes are: 1 to itself.
    #[test]
    fn a_process_in_a_sandbox_has_its_number_in_this_namespace() {
        let unshare = Command::new("unshare").args(["--pid", "--fork", "--kill-child", "sleep", "60"]).spawn().unwrap();
        let unshare = Killed(unshare);
        let children = format!("/proc/{0}/task/{0}/children", unshare.0.id());
        let deadline = Instant::now() + Duration::from_secs(30);
        let (pid, program): (u32, PathBuf) = loop {
            let child = fs::read_to_string(&children).ok().and_then(|text| text.trim().parse().ok());
            let program = child.and_then(|child: u32| Some((child, fs::read_link(format!("/proc/{child}/exe")).ok()?)));
            // The child has its name a moment before it has the program mapped.
            let begun = |(child, program): &(u32, PathBuf)| {
                program.ends_with("sleep")
                    && fs::metadata(program).is_ok_and(|file| may_have_mapped(*child, file.ino()))
            };
            if let Some(begun) = program.filter(begun) {
                break begun;
            }
            assert!(Instant::now() < deadline, "the process begins");
            std::thread::sleep(Duration::from_millis(10));
        };
        let start_time = read(pid).unwrap().start_time;
        assert_eq!(seen_from_here(&[on_card(1, start_time)], &program), [Used { pid, bytes: 7 }]);
    }
}
