//! Paths of one control group. The launcher passes them to the worker in its start message.

use crate::units;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Directories of one control group, whatever the layout of the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "version", rename_all = "kebab-case")]
pub enum CgroupPaths {
    /// Directory in the unified tree.
    V2 {
        /// For example `/sys/fs/cgroup/omni/<id>/model`.
        dir: PathBuf,
    },
    /// Directories per controller, and one in the hybrid layout's controller-less v2 tree when that is mounted (it
    /// gives `cgroup.kill` and events, but no limits).
    V1 {
        /// For example `/sys/fs/cgroup/memory/omni/<id>/model`.
        memory: PathBuf,
        /// Directory below `pids`.
        pids: PathBuf,
        /// Directory below `cpu`.
        cpu: PathBuf,
        /// Directory below `cpuacct`; may be the same hierarchy as `cpu`.
        cpuacct: PathBuf,
        /// Directory below `unified`.
        unified: Option<PathBuf>,
        /// Directory below `cpuset`; `None` where that is not mounted, and for groups that were made without it.
        #[serde(default)]
        cpuset: Option<PathBuf>,
    },
}

impl CgroupPaths {
    /// Directory with the memory controller's files.
    #[must_use]
    pub fn memory(&self) -> &Path {
        match self {
            Self::V2 { dir } => dir,
            Self::V1 { memory, .. } => memory,
        }
    }

    /// Directory in the v2 tree, with `cgroup.kill` and `cgroup.events`; `None` on v1 where that tree is not mounted.
    #[must_use]
    pub fn unified(&self) -> Option<&Path> {
        match self {
            Self::V2 { dir } => Some(dir),
            Self::V1 { unified, .. } => unified.as_deref(),
        }
    }

    /// Directory with the cpuset controller's files. On v2 they are missing where the controller is not passed down.
    #[must_use]
    pub fn cpuset(&self) -> Option<&Path> {
        match self {
            Self::V2 { dir } => Some(dir),
            Self::V1 { cpuset, .. } => cpuset.as_deref(),
        }
    }

    /// Paths of the group without the cpuset controller, for a process that may not choose processors.
    pub(crate) fn without_cpuset(mut self) -> Self {
        if let Self::V1 { cpuset, .. } = &mut self {
            *cpuset = None;
        }
        self
    }

    /// Every directory once, that of the memory controller first.
    #[must_use]
    pub fn dirs(&self) -> Vec<&Path> {
        let all = match self {
            Self::V2 { dir } => vec![dir.as_path()],
            Self::V1 { memory, pids, cpu, cpuacct, unified, cpuset } => {
                let mut all: Vec<&Path> = vec![memory, pids, cpu, cpuacct];
                all.extend(unified.as_deref());
                all.extend(cpuset.as_deref());
                all
            }
        };
        let mut once: Vec<&Path> = Vec::with_capacity(all.len());
        for dir in all {
            if !once.contains(&dir) {
                once.push(dir);
            }
        }
        once
    }

    /// Group of the same part of another instance that the same driver has made, in every hierarchy.
    #[must_use]
    pub fn of_instance(&self, instance: &str) -> Self {
        self.map(|dir| {
            let part = dir.file_name().unwrap_or_default();
            let above = dir.parent().and_then(Path::parent).unwrap_or(dir);
            above.join(units::beside(above, instance)).join(part)
        })
    }

    /// Name of the group below the driver's parent, in every hierarchy: `<instance>/<part>`, or the scope for the
    /// instance.
    #[must_use]
    pub fn name(&self) -> String {
        let memory = self.memory();
        let end = memory.parent().and_then(Path::file_name).map(Path::new).unwrap_or(Path::new(""));
        end.join(memory.file_name().unwrap_or_default()).to_string_lossy().into_owned()
    }

    /// Group `name` below this one, in every hierarchy.
    pub(crate) fn join(&self, name: impl AsRef<Path>) -> Self {
        self.map(|dir| dir.join(&name))
    }

    /// Another group, from each directory of this one.
    fn map(&self, other: impl Fn(&Path) -> PathBuf) -> Self {
        match self {
            Self::V2 { dir } => Self::V2 { dir: other(dir) },
            Self::V1 { memory, pids, cpu, cpuacct, unified, cpuset } => Self::V1 {
                memory: other(memory),
                pids: other(pids),
                cpu: other(cpu),
                cpuacct: other(cpuacct),
                unified: unified.as_deref().map(&other),
                cpuset: cpuset.as_deref().map(&other),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v1(cpuacct: &str) -> CgroupPaths {
        let [memory, pids, cpu, cpuacct, unified, cpuset] =
            ["/c/memory", "/c/pids", "/c/cpu", cpuacct, "/c/unified", "/c/cpuset"].map(PathBuf::from);
        CgroupPaths::V1 { memory, pids, cpu, cpuacct, unified: Some(unified), cpuset: Some(cpuset) }
    }

    #[test]
    fn a_hierarchy_with_two_controllers_is_one_directory() {
        assert_eq!(v1("/c/cpuacct").dirs().len(), 6);
        assert_eq!(v1("/c/cpu").dirs().len(), 5);
    }

    #[test]
    fn join_reaches_every_hierarchy() {
        let group = v1("/c/cpuacct").join("omni/a/model");
        assert!(group.dirs().iter().all(|dir| dir.ends_with("omni/a/model")));
        assert_eq!(group.memory(), Path::new("/c/memory/omni/a/model"));
        assert_eq!(group.unified(), Some(Path::new("/c/unified/omni/a/model")));
    }

    #[test]
    fn the_group_of_another_instance() {
        let group = v1("/c/cpuacct").join("omni/a/model");
        assert_eq!(group.of_instance("b"), v1("/c/cpuacct").join("omni/b/model"));
        let scope = CgroupPaths::V2 { dir: "/c/omni.slice/omni-models.slice/omni-zygote-0a.scope/model".into() };
        let other = scope.of_instance("0b");
        assert_eq!(other.memory(), Path::new("/c/omni.slice/omni-models.slice/omni-0b.scope/model"));
        assert_eq!(other.name(), "omni-0b.scope/model");
        assert_eq!((group.name().as_str(), group.of_instance("b").name().as_str()), ("a/model", "b/model"));
    }

    #[test]
    fn the_form_on_the_wire_is_tagged_by_version() {
        let paths = CgroupPaths::V2 { dir: "/sys/fs/cgroup/omni/a/model".into() };
        assert_eq!(serde_json::to_string(&paths).unwrap(), r#"{"version":"v2","dir":"/sys/fs/cgroup/omni/a/model"}"#);
    }

    #[test]
    fn a_group_of_an_earlier_launcher_has_no_cpuset() {
        let text = r#"{"version":"v1","memory":"/m","pids":"/p","cpu":"/c","cpuacct":"/c","unified":null}"#;
        let paths: CgroupPaths = serde_json::from_str(text).unwrap();
        assert_eq!((paths.cpuset(), paths.dirs().len()), (None, 3));
    }
}
