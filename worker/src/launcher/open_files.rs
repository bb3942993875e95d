//! Bound on the open files of an instance (`docs/threat-model.md`).
//!
//! `fs.file-max` is one number for the whole machine, and beyond it no process without privileges can open, accept or
//! connect anything, the scheduler included. The kernel bounds the files of a process, and no group of processes: a
//! default model, with 512 processes of 16,384 files each, could take the number several times over.
//!
//! A thread compares the machine's count with the share of one instance ten times a second, which is one small file of
//! `/proc`; only while the machine has more than that open does it count the files of every instance. An instance beyond
//! its share is killed. Where the machine has no limit, as where systemd lifts it, the memory limit bounds the files: the
//! kernel charges them to their group.

use omni_cgroup::{Driver, Group, GroupName, Part};
use std::fs;
use std::thread;
use std::time::Duration;

/// Between two looks: what two processors open meanwhile is less than half of a share.
const TICK: Duration = Duration::from_millis(100);
/// Share of the machine's open files that one instance may have: one of so many parts.
const PARTS: u64 = 32;

/// Watches all instances until the launcher ends.
pub(super) fn watch(cgroups: &dyn Driver) {
    loop {
        thread::sleep(TICK);
        let Some(machine) = Machine::read() else { continue };
        if machine.open <= machine.share() {
            continue;
        }
        for name in cgroups.list().unwrap_or_default() {
            let Some(group) = GroupName::new(&name, Part::Model).ok().map(|name| cgroups.paths(&name)) else {
                continue;
            };
            // A group that cannot be opened is one that ends.
            let Ok(group) = Group::open(&group) else { continue };
            let open = group.processes().unwrap_or_default().into_iter().map(files_of).sum();
            if open > machine.share() {
                end(&name, &group, open, &machine);
            }
        }
    }
}

fn end(instance: &str, group: &Group, open: u64, machine: &Machine) {
    let (share, max) = (machine.share(), machine.max);
    match group.kill() {
        Ok(()) => tracing::warn!(
            instance,
            open,
            "killed for its open files: an instance may have {share} of the {max} that the machine has (fs.file-max)"
        ),
        Err(error) => tracing::error!(
            instance,
            open,
            error = omni_log::chain(&error),
            "an instance beyond its share of the machine's open files cannot be killed"
        ),
    }
}

/// Files of the whole machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Machine {
    open: u64,
    max: u64,
}

impl Machine {
    fn read() -> Option<Self> {
        Self::parse(&fs::read_to_string("/proc/sys/fs/file-nr").ok()?)
    }

    /// `file-nr`: the files that are allocated, those of them that are free, and the most there may be.
    fn parse(text: &str) -> Option<Self> {
        let mut numbers = text.split_ascii_whitespace().map(str::parse);
        let (allocated, free): (u64, u64) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
        Some(Self { open: allocated.saturating_sub(free), max: numbers.next()?.ok()? })
    }

    fn share(&self) -> u64 {
        self.max / PARTS
    }
}

/// Open files of a process, 0 once it is gone. From Linux 6.2 on their number is the size of the directory.
fn files_of(process: i32) -> u64 {
    let directory = format!("/proc/{process}/fd");
    match fs::metadata(&directory).map(|directory| directory.len()) {
        Ok(0) => fs::read_dir(&directory).map_or(0, |files| files.count() as u64),
        Ok(files) => files,
        Err(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn the_machines_numbers_are_read_as_the_kernel_writes_them() {
        let machine = Machine::parse("1792\t32\t2471230\n").unwrap();
        assert_eq!((machine.open, machine.max, machine.share()), (1760, 2_471_230, 77_225));
        assert_eq!(Machine::parse("1792\t0\t9223372036854775807\n").unwrap().share(), i64::MAX as u64 / PARTS);
        for text in ["", "1 2", "a b c", "-1 0 5"] {
            assert_eq!(Machine::parse(text), None, "{text:?}");
        }
        assert!(Machine::read().is_some_and(|machine| machine.open > 0));
    }

    #[test]
    fn the_files_of_a_process_are_counted() {
        let own = std::process::id().cast_signed();
        let before = files_of(own);
        let files: Vec<File> = (0..300).map(|_| File::open("/dev/null").unwrap()).collect();
        let with = files_of(own);
        assert!((before + 300..before + 400).contains(&with), "{with} after {before} and {}", files.len());
        assert_eq!(files_of(0), 0);
    }
}
