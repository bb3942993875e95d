//! Facts of the kernel about a process.

use crate::wait::{PATIENCE, wait_for};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs;
use std::path::{Path, PathBuf};

/// Parent of a process; `None` when it is gone.
#[must_use]
pub fn parent(pid: Pid) -> Option<Pid> {
    status(pid, "PPid").map(|parent| Pid::from_raw(i32::try_from(parent).unwrap_or_default()))
}

/// State, such as `R`, `S`, `D` or `Z`; `None` when it is gone.
#[must_use]
pub fn state(pid: Pid) -> Option<char> {
    state_in(&PathBuf::from(format!("/proc/{pid}/stat")))
}

fn state_in(stat: &Path) -> Option<char> {
    let stat = fs::read_to_string(stat).ok()?;
    stat.rsplit(')').next()?.trim_start().chars().next()
}

/// Stops a process, and returns when it stands still: one thread takes the signal, when it is its turn, and the others
/// run on until then.
///
/// # Panics
///
/// When it is gone, or goes on.
pub fn stop(pid: Pid) {
    kill(pid, Signal::SIGSTOP).expect("a process");
    wait_for("all threads to stand still", PATIENCE, || {
        let threads = fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten();
        let mut states = threads.filter_map(|thread| state_in(&thread.path().join("stat")));
        states.all(|state| state == 'T').then_some(())
    });
}

/// Returns true if it runs: a zombie does not, but one whose other threads are still about to end has its files and
/// locks.
#[must_use]
pub fn is_alive(pid: Pid) -> bool {
    let threads = || fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
    state(pid).is_some_and(|state| state != 'Z' || threads() > 1)
}

/// Open files of the descriptors, sorted; numbers of sockets and pipes are left out, so that two lists compare. So are
/// the log of usage, which a scheduler has open from the first record on, and the store of batch jobs, whose connections
/// come and go.
#[must_use]
pub fn descriptors(pid: Pid) -> Vec<String> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let target = |entry: fs::DirEntry| Some(fs::read_link(entry.path()).ok()?.to_string_lossy().into_owned());
    let plain = |name: String| name.split(":[").next().map(str::to_owned).unwrap_or(name);
    let is_store = |name: &String| ["usage", "jobs"].iter().any(|of| name.contains(&format!("/state/scheduler/{of}/")));
    let mut all: Vec<_> = entries.filter_map(target).map(plain).filter(|name| !is_store(name)).collect();
    all.sort();
    all
}

/// Start time, in clock ticks since boot; `None` when it is gone.
#[must_use]
pub fn start_time(pid: Pid) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

/// Peak resident memory so far, in bytes; `None` when it is gone.
#[must_use]
pub fn peak_resident(pid: Pid) -> Option<u64> {
    status(pid, "VmHWM").map(|kib| kib * 1024)
}

fn status(pid: Pid, key: &str) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let value = status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    value.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_this_process() {
        let own = Pid::this();
        assert_eq!((parent(own), is_alive(own)), (Some(Pid::parent()), true));
        assert!(peak_resident(own).is_some_and(|bytes| bytes > 100_000));
        let before = descriptors(own);
        let file = fs::File::open("/dev/null").unwrap();
        assert_eq!(descriptors(own).len(), before.len() + 1);
        assert!(descriptors(own).contains(&"/dev/null".to_owned()));
        drop(file);
        assert_eq!((parent(Pid::from_raw(i32::MAX)), state(Pid::from_raw(i32::MAX))), (None, None));
    }
}
