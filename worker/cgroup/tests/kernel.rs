//! Groups of the real kernel, in whatever layout this host has. Needs root, as the launcher does.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed step of a test is a failed test")]

mod support;

use omni_cgroup::{CgroupPaths, CpuSet, CpuShare, Driver, Error, Group, Limits, OomWatch, Stats};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use support::{Parent, model, python, readable, shell, wait};

const MIB: u64 = 1 << 20;
const LIMITS: Limits = Limits { memory_bytes: Some(64 * MIB), pids: Some(16), cpu_millis: Some(500) };

fn open(paths: &CgroupPaths) -> Arc<Group> {
    Arc::new(Group::open(paths).unwrap())
}

fn read(dir: &Path, file: &str) -> String {
    fs::read_to_string(dir.join(file)).unwrap().trim().to_owned()
}

#[test]
fn limits_are_in_the_kernel() {
    let parent = Parent::new("limits");
    let paths = parent.driver.create(&model("0a"), &LIMITS).unwrap();
    match &paths {
        CgroupPaths::V2 { dir } => {
            assert_eq!(read(dir, "memory.max"), (64 * MIB).to_string());
            assert_eq!(read(dir, "memory.swap.max"), "0");
            assert_eq!(read(dir, "memory.oom.group"), "1");
            assert_eq!(read(dir, "pids.max"), "16");
            assert_eq!(read(dir, "cpu.max"), "50000 100000");
            assert_eq!(read(dir.parent().unwrap(), "cpu.weight"), "50");
        }
        CgroupPaths::V1 { memory, pids, cpu, .. } => {
            assert_eq!(read(memory, "memory.limit_in_bytes"), (64 * MIB).to_string());
            assert_eq!(read(memory, "memory.memsw.limit_in_bytes"), (64 * MIB).to_string());
            if memory.join("memory.kmem.tcp.limit_in_bytes").exists() {
                assert_eq!(read(memory, "memory.kmem.tcp.limit_in_bytes"), (4 * MIB).to_string());
            }
            assert_eq!(read(pids, "pids.max"), "16");
            assert_eq!(read(cpu, "cpu.cfs_quota_us"), "50000");
            assert_eq!(read(cpu.parent().unwrap(), "cpu.shares"), "512");
        }
    }
    assert!(paths.dirs().iter().all(|dir| dir.is_dir()));
    assert!(
        matches!(parent.driver.create(&model("0a"), &LIMITS), Err(Error::Exists { .. })),
        "a second one is refused"
    );
    assert!(Group::open(&paths).unwrap().is_empty().unwrap());
    parent.driver.remove(&paths).unwrap();
    parent.driver.remove(&paths).unwrap();
    assert!(paths.dirs().iter().all(|dir| !dir.parent().unwrap().exists()), "the instance's directory goes with it");
}

#[test]
fn a_limit_the_kernel_refuses_is_an_error_and_leaves_nothing() {
    let parent = Parent::new("refused");
    // More than the kernel's 4 million process numbers; more CPU than its largest quota.
    for limits in [Limits { pids: Some(u32::MAX), ..LIMITS }, Limits { memory_bytes: Some(u64::MAX), ..LIMITS }] {
        let error = parent.driver.create(&model("0b"), &limits).unwrap_err();
        assert!(matches!(error, Error::Apply { .. } | Error::LimitNotApplied { .. }), "{error}");
        assert!(parent.driver.list().unwrap().is_empty());
    }
}

#[test]
fn a_child_that_eats_memory_is_counted() {
    let parent = Parent::new("oom");
    let paths = parent.driver.create(&model("0c"), &LIMITS).unwrap();
    let (group, watch) = (open(&paths), OomWatch::new(&paths).unwrap());
    let before = watch.count().unwrap();
    assert!(!readable(&watch, Duration::ZERO), "quiet before anything happened");

    let mut eater = python(&group, "held = []\nwhile True: held.append(bytearray(1 << 20))");
    assert!(!wait(&mut eater).success());
    assert!(readable(&watch, Duration::from_secs(10)), "the event arrives");
    assert!(watch.count().unwrap() > before);
    watch.clear();
    assert!(!readable(&watch, Duration::ZERO));

    let counted = watch.count().unwrap();
    let mut calm = shell(&group, "exit 3");
    assert_eq!(wait(&mut calm).code(), Some(3));
    let mut killed = shell(&group, "kill -9 $$");
    assert!(!wait(&mut killed).success());
    assert_eq!(watch.count().unwrap(), counted, "another end is not an out-of-memory kill");
    parent.driver.remove(&paths).unwrap();
    assert!(watch.count().is_err(), "no counter without a group");
}

#[test]
fn a_fork_bomb_stops_at_the_limit_and_is_killed() {
    let parent = Parent::new("bomb");
    let paths = parent.driver.create(&model("0d"), &LIMITS).unwrap();
    let (group, stats) = (open(&paths), Stats::open(&paths).unwrap());
    let bomb = "import os, time\nwhile True:\n  try: os.fork()\n  except OSError: print(flush=True); time.sleep(60)";
    let mut first = python(&group, bomb);
    support::line(&mut first);
    assert_eq!(stats.read().unwrap().pids, 16);
    assert!(!group.is_empty().unwrap());

    group.kill().unwrap();
    assert!(!wait(&mut first).success());
    group.wait_empty(Duration::from_secs(10)).unwrap();
    assert!(group.is_empty().unwrap());
    group.kill().expect("nothing to kill is no error");
    parent.driver.remove(&paths).unwrap();
    group.kill().expect("nor is a group that is gone");
    assert!(group.is_empty().unwrap());
}

#[test]
fn a_kill_reaches_processes_that_joined_in_part() {
    let parent = Parent::new("part");
    let paths = parent.driver.create(&model("0e"), &LIMITS).unwrap();
    let group = Group::open(&paths).unwrap();
    let mut outside = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
    fs::write(paths.memory().join("cgroup.procs"), outside.id().to_string()).unwrap();
    assert!(!group.is_empty().unwrap());
    group.kill().unwrap();
    assert!(!wait(&mut outside).success());
    group.wait_empty(Duration::from_secs(10)).unwrap();
}

#[test]
fn use_is_measured() {
    let parent = Parent::new("use");
    let paths = parent.driver.create(&model("0f"), &LIMITS).unwrap();
    let (group, stats) = (open(&paths), Stats::open(&paths).unwrap());
    let idle = stats.read().unwrap();
    assert_eq!((idle.pids, idle.memory_limit_bytes), (0, Some(64 * MIB)));
    let mut child = python(&group, "held = bytearray(20 << 20)\nsum(range(2000000))\nprint(flush=True)\ninput()");
    support::line(&mut child);
    let busy = stats.read().unwrap();
    assert!(busy.memory_bytes >= 20 * MIB && busy.memory_bytes <= 64 * MIB, "{busy:?}");
    assert!(busy.cpu_usec > idle.cpu_usec && busy.pids == 1, "{busy:?}");
    drop(child.stdin.take());
    wait(&mut child);
}

#[test]
fn a_group_is_confined_to_a_processor_and_released() {
    let parent = Parent::new("cpus");
    assert!(parent.driver.processors().unwrap().is_empty(), "no group yet");
    let paths = parent.driver.create(&model("2a"), &LIMITS).unwrap();
    let all = parent.driver.processors().unwrap();
    let Some(share) = CpuShare::open(&paths).unwrap() else {
        assert!(all.is_empty(), "it opens where there is a cpuset controller");
        eprintln!("left out: this host has no cpuset controller");
        return;
    };
    assert_eq!(share.limit_millis(), 500);
    let idle = share.used_usec().unwrap();
    let mut child = python(&open(&paths), "sum(range(2000000))\nprint(flush=True)\ninput()");
    support::line(&mut child);
    assert!(share.used_usec().unwrap() > idle);

    let allowed = || {
        let status = read(Path::new(&format!("/proc/{}", child.id())), "status");
        let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        CpuSet::parse(line.unwrap()).unwrap()
    };
    let weight = || {
        let (dir, file) = match &paths {
            CgroupPaths::V2 { dir } => (dir, "cpu.weight"),
            CgroupPaths::V1 { cpu, .. } => (cpu, "cpu.shares"),
        };
        read(dir.parent().unwrap(), file).trim().parse::<u64>().unwrap()
    };
    assert_eq!(allowed(), all);
    let whole = weight();
    let last: CpuSet = all.iter().next_back().into_iter().collect();
    share.keep_to(&last).unwrap();
    assert_eq!((allowed(), weight()), (last, whole / 8), "and it stands back there");
    share.let_go(&all).unwrap();
    assert_eq!((allowed(), weight()), (all.clone(), whole));
    let none: CpuSet = [8191].into_iter().collect();
    assert!(matches!(share.keep_to(&none), Err(Error::Io { .. })), "a processor that is not there");
    assert_eq!(allowed(), all);

    let free = parent.driver.create(&model("2b"), &Limits::default()).unwrap();
    assert!(CpuShare::open(&free).unwrap().is_none(), "no limit, nothing to share");
    drop(child.stdin.take());
    wait(&mut child);
}

#[test]
fn without_limits_there_are_none() {
    let parent = Parent::new("free");
    let paths = parent.driver.create(&model("1a"), &Limits::default()).unwrap();
    assert_eq!(Stats::open(&paths).unwrap().read().unwrap().memory_limit_bytes, None);
}

#[test]
fn a_busy_group_is_not_removed_and_destroy_ends_it() {
    let parent = Parent::new("busy");
    let paths = parent.driver.create(&model("1b"), &LIMITS).unwrap();
    let other = parent.driver.create(&model("1c"), &LIMITS).unwrap();
    let mut child = shell(&open(&paths), "echo; sleep 1000");
    support::line(&mut child);
    assert!(matches!(parent.driver.remove(&paths), Err(Error::Busy { .. })));
    assert!(paths.dirs().iter().all(|dir| dir.is_dir()), "refused before anything was removed");
    parent.driver.remove_parent().expect("instances are left alone");
    assert_eq!(parent.driver.list().unwrap(), ["1b", "1c"]);

    parent.driver.destroy("1b").unwrap();
    assert!(!wait(&mut child).success());
    assert_eq!(parent.driver.list().unwrap(), ["1c"]);
    parent.driver.destroy("1b").expect("twice is the same");
    parent.driver.remove(&other).unwrap();
    assert!(parent.driver.list().unwrap().is_empty());
}

#[test]
fn leftovers_in_one_hierarchy_are_found_and_removed() {
    let parent = Parent::new("partly");
    let paths = parent.driver.create(&model("1d"), &LIMITS).unwrap();
    for dir in paths.dirs().into_iter().skip(1) {
        fs::remove_dir(dir).unwrap();
    }
    assert_eq!(parent.driver.list().unwrap(), ["1d"]);
    parent.driver.destroy("1d").unwrap();
    assert!(parent.driver.list().unwrap().is_empty());
}

#[test]
fn groups_outside_the_parent_are_left_alone() {
    let (ours, theirs) = (Parent::new("ours"), Parent::new("theirs"));
    let foreign = theirs.driver.create(&model("1e"), &LIMITS).unwrap();
    assert!(matches!(ours.driver.remove(&foreign), Err(Error::Outside { .. })));
    for bad in ["..", ".", "", "a/b", "/"] {
        assert!(matches!(ours.driver.destroy(bad), Err(Error::BadName { .. })), "{bad}");
    }
    assert!(foreign.dirs().iter().all(|dir| dir.is_dir()));
}
