//! Bound on the open files of an instance (`docs/threat-model.md`).
//!
//! `fs.file-max` is one number for the whole machine, and beyond it no process without privileges can open, accept or
//! connect anything, the scheduler included. The kernel bounds the files of a process, and no group of processes: a
//! default model, with 512 processes of 16,384 files each, could take the number several times over.
//!
//! A thread compares the machine's count with the share of one instance ten times a second, which is one small file of
//! `/proc`; only while the machine has more than that open does it count the files of every instance. An instance beyond
//! its share is killed.
//!
//! A file that is mapped stays open without a descriptor, a thread may have descriptors of its own, and the first thread of
//! a process may be gone. All of these are counted only while the machine has a quarter of its files open: files that are
//! mapped several times, and descriptors that threads share, are counted for each, so that the sum is more than an instance
//! has. The instance with the largest is killed then, if that is beyond its share. What is in flight between Unix sockets
//! the kernel bounds for each user (`RLIMIT_NOFILE`), and so for each model.
//!
//! Where the machine has no limit, as where systemd lifts it, the memory limit bounds the files: the
//! kernel charges them to their group.

use omni_cgroup::{Driver, Group, GroupName, Part};
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::thread;
use std::time::Duration;

/// Between two looks: what two processors open meanwhile is less than half of a share.
const TICK: Duration = Duration::from_millis(100);
/// Share of the machine's open files that one instance may have: one of so many parts.
const PARTS: u64 = 32;
/// Part of the machine's open files from which on those are looked for that have no descriptor.
const DANGER: u64 = 4;

/// Watches all instances until the launcher ends.
pub(super) fn watch(cgroups: &dyn Driver) {
    loop {
        thread::sleep(TICK);
        let Some(machine) = Machine::read() else { continue };
        if machine.open <= machine.share() {
            continue;
        }
        let mut ended = false;
        for (name, group) in instances(cgroups) {
            let open = sum_of(&group, files_of);
            if open > machine.share() {
                end(&name, &group, open, &machine);
                ended = true;
            }
        }
        if !ended && machine.is_in_danger() {
            let counted = instances(cgroups).map(|(name, group)| (sum_of(&group, held_by), name, group));
            let largest = counted.max_by_key(|(held, ..)| *held);
            if let Some((held, name, group)) = largest.filter(|(held, ..)| *held > machine.share()) {
                end(&name, &group, held, &machine);
            }
        }
    }
}

fn instances(cgroups: &dyn Driver) -> impl Iterator<Item = (String, Group)> {
    cgroups.list().unwrap_or_default().into_iter().filter_map(|name| {
        let paths = cgroups.paths(&GroupName::new(&name, Part::Model).ok()?);
        // A group that cannot be opened is one that ends.
        Group::open(&paths).ok().map(|group| (name, group))
    })
}

fn sum_of(group: &Group, files: fn(i32) -> u64) -> u64 {
    group.processes().unwrap_or_default().into_iter().map(files).sum()
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

    fn is_in_danger(&self) -> bool {
        self.open > self.max / DANGER
    }
}

/// Open files of a process, 0 once it is gone. From Linux 6.2 on their number is the size of the directory.
fn files_of(process: i32) -> u64 {
    descriptors(&format!("/proc/{process}"))
}

/// The most files that the threads of a process can have open, mapped ones included; 0 once it is gone.
fn held_by(process: i32) -> u64 {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let tasks: Vec<String> = tasks.filter_map(|task| task.path().into_os_string().into_string().ok()).collect();
    // All have the same memory, but for those that are ending.
    let mapped = tasks.iter().map(|task| mapped(task)).find(|mapped| *mapped > 0).unwrap_or_default();
    tasks.iter().map(|task| descriptors(task)).sum::<u64>() + mapped
}

fn descriptors(task: &str) -> u64 {
    let directory = format!("{task}/fd");
    match fs::metadata(&directory).map(|directory| directory.len()) {
        Ok(0) => fs::read_dir(&directory).map_or(0, |files| files.count() as u64),
        Ok(files) => files,
        Err(_) => 0,
    }
}

/// Mappings of files; `vm.max_map_count` bounds them, 65,530 if nothing else is set.
fn mapped(task: &str) -> u64 {
    let Ok(maps) = File::open(format!("{task}/maps")) else { return 0 };
    BufReader::with_capacity(64 << 10, maps).split(b'\n').map_while(Result::ok).filter(|line| has_file(line)).count()
        as u64
}

/// A line of `maps`: addresses, rights, offset, device, inode. Shared memory without a name has a file as well.
fn has_file(line: &[u8]) -> bool {
    line.split(|byte| *byte == b' ').nth(4).is_some_and(|inode| inode != b"0")
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn files_without_a_descriptor_are_counted_from_a_quarter_of_the_machines_on() {
        for (open, is_in_danger) in [(250, false), (251, true)] {
            assert_eq!(Machine { open, max: 1000 }.is_in_danger(), is_in_danger);
        }
    }

    #[test]
    fn mappings_of_files_are_told_from_others() {
        for (line, is_file) in [
            ("7f0a7c000000-7f0a7c021000 r--p 00000000 fe:00 131                        /usr/bin/env", true),
            ("7f0a7c000000-7f0a7c021000 rw-s 00000000 00:01 9                          /dev/zero (deleted)", true),
            ("7f0a7c000000-7f0a7c021000 rw-p 00000000 00:00 0 ", false),
            ("7ffd3c5e1000-7ffd3c602000 rw-p 00000000 00:00 0                          [stack]", false),
            ("", false),
        ] {
            assert_eq!(has_file(line.as_bytes()), is_file, "{line:?}");
        }
    }

    #[test]
    fn a_process_holds_its_mapped_files_and_its_threads_descriptors() {
        let own = std::process::id().cast_signed();
        assert!(mapped("/proc/self") > 0, "this program itself");
        assert!(held_by(own) >= files_of(own) + mapped("/proc/self"));
        assert_eq!((held_by(0), mapped("/proc/0")), (0, 0));
    }
}
