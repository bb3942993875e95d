//! Limits of a group, and the exact file contents by which the kernel confirms them. Pure.

use crate::{CgroupPaths, Error};
use cgroups_rs::fs::{CpuResources, MaxValue, MemoryResources, PidResources, Resources};
use std::path::PathBuf;

/// Period of the CPU quota, the kernel's default, in microseconds.
const CPU_PERIOD_USEC: u64 = 100_000;
/// Weight of one CPU, which is the kernel's default for a group: v2, v1.
const CPU_WEIGHT: [u64; 2] = [100, 1024];

/// Buffers of sockets in version 1: this part of the memory, at most, and a number of bytes. The kernel lets all of a
/// machine have about an eleventh of its memory (`net.ipv4.tcp_mem`): groups that share its memory out stay below that
/// together, and none has a large part of it.
const SOCKET_PART: u64 = 16;
const SOCKET_BYTES: u64 = 64 << 20;

/// Limits of a group; `None` leaves a resource unlimited. Where memory is limited there is no swap beside it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Limits {
    /// Memory in bytes; the kernel counts whole pages, so it is rounded down to one.
    pub memory_bytes: Option<u64>,
    /// Number of processes and threads.
    pub pids: Option<u32>,
    /// Thousandths of a CPU: 2000 is two CPUs. Where there is not enough for all, instances share in this proportion.
    pub cpu_millis: Option<u32>,
}

/// Limit as its file shows it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Setting {
    pub(crate) file: PathBuf,
    pub(crate) value: String,
}

impl Limits {
    /// Refuses limits under which nothing can run (the kernel's own least CPU quota is 1 ms per period).
    pub(crate) fn check(&self, page: u64) -> Result<(), Error> {
        let least = |what, value: Option<u64>, least| match value {
            Some(value) if value < least => Err(Error::BadLimit { what, value, least }),
            Some(_) | None => Ok(()),
        };
        least("memory, in bytes", self.memory_bytes, page)?;
        least("processes", self.pids.map(u64::from), 1)?;
        least("CPU, in thousandths", self.cpu_millis.map(u64::from), 10)
    }

    /// Limits as `cgroups-rs` takes them.
    pub(crate) fn resources(&self, version: &CgroupPaths) -> Resources {
        let bytes = self.memory_bytes.map(|bytes| i64::try_from(bytes).unwrap_or(i64::MAX));
        let mut memory = MemoryResources { memory_hard_limit: bytes, ..MemoryResources::default() };
        match version {
            CgroupPaths::V2 { .. } => {
                memory.memory_swap_limit = Some(0);
                memory.attrs.insert("memory.oom.group".to_owned(), "1".to_owned());
            }
            // Memory and swap together.
            CgroupPaths::V1 { .. } => memory.memory_swap_limit = bytes,
        }
        let pid = PidResources { maximum_number_of_processes: self.pids.map(|pids| MaxValue::Value(pids.into())) };
        let quota = self.cpu_quota_usec().map(|usec| i64::try_from(usec).unwrap_or(i64::MAX));
        let cpu = CpuResources { quota, period: quota.map(|_| CPU_PERIOD_USEC), ..CpuResources::default() };
        Resources { memory, pid, cpu, ..Resources::default() }
    }

    /// Files of the group that must hold a value once the limits are set.
    pub(crate) fn settings(&self, paths: &CgroupPaths, page: u64) -> Vec<Setting> {
        let memory = self.memory_bytes.map(|bytes| (bytes / page * page).to_string());
        let pids = self.pids.map(|pids| pids.to_string());
        let quota = self.cpu_quota_usec();
        let wanted = match paths {
            CgroupPaths::V2 { dir } => vec![
                (dir, "memory.max", memory),
                (dir, "memory.swap.max", Some("0".to_owned())),
                (dir, "memory.oom.group", Some("1".to_owned())),
                (dir, "pids.max", pids),
                (dir, "cpu.max", quota.map(|usec| format!("{usec} {CPU_PERIOD_USEC}"))),
            ],
            CgroupPaths::V1 { memory: memory_dir, pids: pids_dir, cpu, .. } => vec![
                (memory_dir, "memory.limit_in_bytes", memory.clone()),
                (memory_dir, "memory.memsw.limit_in_bytes", memory),
                (pids_dir, "pids.max", pids),
                (cpu, "cpu.cfs_period_us", quota.map(|_| CPU_PERIOD_USEC.to_string())),
                (cpu, "cpu.cfs_quota_us", quota.map(|usec| usec.to_string())),
            ],
        };
        let setting = |(dir, file, value): (&PathBuf, &str, Option<String>)| {
            value.map(|value| Setting { file: dir.join(file), value })
        };
        wanted.into_iter().filter_map(setting).collect()
    }

    /// Weight of the group's instance among the others, in the group above: the CPU limit is a bound, and an instance
    /// with a larger one must not be held to an equal part by many small ones.
    pub(crate) fn weight(&self, paths: &CgroupPaths) -> Option<Setting> {
        let millis = u64::from(self.cpu_millis?);
        let (dir, file, one, bounds) = match paths {
            CgroupPaths::V2 { dir } => (dir, "cpu.weight", CPU_WEIGHT[0], 1..=10_000),
            CgroupPaths::V1 { cpu, .. } => (cpu, "cpu.shares", CPU_WEIGHT[1], 2..=262_144),
        };
        let value = (millis * one / 1000).clamp(*bounds.start(), *bounds.end()).to_string();
        Some(Setting { file: dir.parent()?.join(file), value })
    }

    /// Limit of the buffers of TCP and UDP, orphaned connections included. Version 1 counts that apart and, without
    /// this limit, not at all; a kernel without the file has no such count. In version 2 it is part of `memory.max`.
    pub(crate) fn sockets(&self, paths: &CgroupPaths, page: u64) -> Option<Setting> {
        let CgroupPaths::V1 { memory, .. } = paths else { return None };
        let bytes = (self.memory_bytes? / SOCKET_PART).min(SOCKET_BYTES) / page * page;
        Some(Setting { file: memory.join("memory.kmem.tcp.limit_in_bytes"), value: bytes.to_string() })
            .filter(|setting| setting.file.exists())
    }

    fn cpu_quota_usec(&self) -> Option<u64> {
        self.cpu_millis.map(|millis| u64::from(millis) * (CPU_PERIOD_USEC / 1000))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { memory_bytes: Some(64 * 4096 + 1), pids: Some(16), cpu_millis: Some(1500) };

    fn shown(limits: &Limits, paths: &CgroupPaths) -> Vec<String> {
        let line = |setting: Setting| format!("{} {}", setting.file.display(), setting.value);
        limits.settings(paths, 4096).into_iter().map(line).collect()
    }

    #[test]
    fn on_v2() {
        let expected = [
            "/g/memory.max 262144",
            "/g/memory.swap.max 0",
            "/g/memory.oom.group 1",
            "/g/pids.max 16",
            "/g/cpu.max 150000 100000",
        ];
        assert_eq!(shown(&LIMITS, &CgroupPaths::V2 { dir: "/g".into() }), expected);
    }

    #[test]
    fn on_v1_memory_and_swap_are_one_sum() {
        let [memory, pids, cpu, cpuacct] = ["/m", "/p", "/c", "/a"].map(PathBuf::from);
        let paths = CgroupPaths::V1 { memory, pids, cpu, cpuacct, unified: None, cpuset: None };
        let expected = [
            "/m/memory.limit_in_bytes 262144",
            "/m/memory.memsw.limit_in_bytes 262144",
            "/p/pids.max 16",
            "/c/cpu.cfs_period_us 100000",
            "/c/cpu.cfs_quota_us 150000",
        ];
        assert_eq!(shown(&LIMITS, &paths), expected);
        assert!(shown(&Limits::default(), &paths).is_empty());
    }

    #[test]
    fn instances_share_the_processors_in_proportion_to_their_limits() {
        let v2 = CgroupPaths::V2 { dir: "/g/a/model".into() };
        let [memory, pids, cpu, cpuacct] = ["/m", "/p", "/c/a/model", "/a"].map(PathBuf::from);
        let v1 = CgroupPaths::V1 { memory, pids, cpu, cpuacct, unified: None, cpuset: None };
        for (millis, on_v2, on_v1) in [(10, "1", "10"), (1000, "100", "1024"), (1500, "150", "1536")] {
            let limits = Limits { cpu_millis: Some(millis), ..LIMITS };
            let shown = |paths| limits.weight(paths).map(|set| format!("{} {}", set.file.display(), set.value));
            assert_eq!(shown(&v2), Some(format!("/g/a/cpu.weight {on_v2}")));
            assert_eq!(shown(&v1), Some(format!("/c/a/cpu.shares {on_v1}")));
        }
        let most = Limits { cpu_millis: Some(1_024_000), ..LIMITS };
        assert_eq!(most.weight(&v2).map(|set| set.value).as_deref(), Some("10000"));
        assert_eq!(most.weight(&v1).map(|set| set.value).as_deref(), Some("262144"));
        assert_eq!(Limits::default().weight(&v2), None);
    }

    #[test]
    fn limits_under_which_nothing_runs() {
        LIMITS.check(4096).unwrap();
        Limits::default().check(4096).unwrap();
        for bad in [
            Limits { memory_bytes: Some(4095), ..LIMITS },
            Limits { pids: Some(0), ..LIMITS },
            Limits { cpu_millis: Some(9), ..LIMITS },
        ] {
            assert!(matches!(bad.check(4096), Err(Error::BadLimit { .. })), "{bad:?}");
        }
    }
}
