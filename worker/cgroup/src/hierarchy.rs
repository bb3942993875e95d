//! Adapter to `cgroups-rs`: the host's trees with only the controllers in use, at the places where they are mounted.
//!
//! The library's own hierarchies expect everything at `/sys/fs/cgroup` and touch every controller they find there. They
//! would also take a plain directory for a group: [`crate::cgroupfs`] checks file systems before and values after.

use crate::{CgroupPaths, Error, Limits};
use cgroups_rs::fs::cpu::CpuController;
use cgroups_rs::fs::memory::MemController;
use cgroups_rs::fs::pid::PidController;
use cgroups_rs::fs::{Cgroup, Hierarchy, Subsystem};
use std::fs;
use std::path::{Path, PathBuf};

#[derive(Debug, Clone)]
struct Tree(CgroupPaths);

impl Hierarchy for Tree {
    fn subsystems(&self) -> Vec<Subsystem> {
        let v2 = self.v2();
        let (memory, pids, cpu) = match &self.0 {
            CgroupPaths::V2 { dir } => (dir, dir, dir),
            CgroupPaths::V1 { memory, pids, cpu, .. } => (memory, pids, cpu),
        };
        // The second path is the mount's root inside the hierarchy; no call in use here reads it.
        let root = PathBuf::new;
        vec![
            Subsystem::Mem(MemController::new(memory.clone(), root(), v2)),
            Subsystem::Pid(PidController::new(pids.clone(), root(), v2)),
            Subsystem::Cpu(CpuController::new(cpu.clone(), root(), v2)),
        ]
    }

    fn root(&self) -> PathBuf {
        self.0.memory().to_owned()
    }

    fn root_control_group(&self) -> Cgroup {
        Cgroup::load(Box::new(self.clone()), "")
    }

    fn parent_control_group(&self, path: &str) -> Cgroup {
        Cgroup::load(Box::new(self.clone()), Path::new(path).parent().unwrap_or(Path::new("")))
    }

    fn v2(&self) -> bool {
        matches!(self.0, CgroupPaths::V2 { .. })
    }
}

/// Sets `limits` on the existing group `name` below `root`, and the weight of its instance on the group above. No error
/// is no success: read the values back.
pub(crate) fn apply(root: &CgroupPaths, name: &str, limits: &Limits, page: u64) -> Result<(), Error> {
    let group = Cgroup::load(Box::new(Tree(root.clone())), name);
    group.apply(&limits.resources(root)).map_err(|source| Error::Apply { name: name.to_owned(), source })?;
    let paths = root.join(name);
    let others = limits.weight(&paths).into_iter().chain(limits.sockets(&paths, page));
    others.into_iter().try_for_each(|set| fs::write(&set.file, set.value).map_err(Error::io("write", &set.file)))
}
