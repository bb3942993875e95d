//! Facts about a machine, of everything that a node needs, without a judgement.
//!
//! `omni-launcher --probe` and `omni-scheduler --probe` collect them, each for its own part; `omnictl doctor` judges
//! them.
//!
//! Invariants: a thing that can be tried was tried with the node's own code, and a thing that was not tried is marked
//! so: nothing is concluded from a file that is there.

mod resources;

pub use resources::{memory, processes};

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The first version of Landlock with a wall around abstract sockets and signals: Linux 6.12.
pub const LANDLOCK_SCOPES: i32 = 6;

/// How a trial ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Probe<T = ()> {
    /// Works, with this result.
    Works(T),
    /// Fails, with the system's own error.
    Fails(String),
    /// Not tried, for this reason.
    Untried(String),
}

impl<T, E: ToString> From<Result<T, E>> for Probe<T> {
    fn from(result: Result<T, E>) -> Self {
        match result {
            Ok(found) => Self::Works(found),
            Err(error) => Self::Fails(error.to_string()),
        }
    }
}

/// Facts of the launcher.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Machine {
    /// The kernel's release, "6.1.0-18-amd64".
    pub kernel: String,
    /// Identity of the launcher's process.
    pub identity: Identity,
    /// The node's configuration.
    pub configuration: Configuration,
    /// Control groups.
    pub cgroups: Cgroups,
    /// Parts of a sandbox, each alone.
    pub parts: Parts,
    /// A program run in a sandbox as a model's instance is.
    pub sandbox: Probe,
    /// Bounds of the system.
    pub limits: Limits,
    /// The node's folders.
    pub folders: Vec<Folder>,
    /// The program that builds environments, and what it calls itself.
    pub uv: Option<Uv>,
    /// Python releases that models can have, the oldest first.
    pub pythons: Vec<Python>,
    /// Files of the GPU's driver that models would be given.
    pub gpu: GpuFiles,
}

/// Identity and rights of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Identity {
    /// The effective user id.
    pub uid: u32,
    /// Effective capabilities, a bit each (`linux/capability.h`).
    pub capabilities: u64,
    /// In a user namespace of a container: capabilities count only within it.
    pub confined: bool,
}

/// The node's configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Configuration {
    /// The file; `None` where there is none and defaults are in force.
    pub file: Option<PathBuf>,
    /// Error in it; the defaults were taken for all that follows then.
    pub problem: Option<String>,
}

/// Control groups.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Cgroups {
    /// Where the controllers are, that models need.
    pub layout: Probe<Layout>,
    /// Driver that would make them, as the configuration calls it, and why not systemd.
    pub driver: Probe<(String, Option<String>)>,
    /// A group was made, its limits set and read back, and removed.
    pub limits: Probe,
    /// Number of processors that a group can be kept to in turn.
    pub processors: Probe<usize>,
    /// In a control group namespace of a container.
    pub confined: bool,
}

/// Which trees of control groups hold the controllers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Layout {
    /// Version 2.
    Unified,
    /// Version 1, with a version 2 tree beside it that has none of them.
    Hybrid,
    /// Version 1 alone.
    Legacy,
}

/// Parts of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Parts {
    /// `clone3` with a descriptor of the process, which is then sent a signal by it.
    pub child: Probe,
    /// Kinds of namespaces, by their names in `/proc/self/ns`.
    pub namespaces: Vec<(String, Probe)>,
    /// A file system that is mounted nowhere, and a read-only copy of a mount.
    pub mounts: Probe,
    /// A FUSE file for `/proc/meminfo`.
    pub meminfo: Probe,
    /// An ext4 image on a loop device, mounted with mapped owners.
    pub cache: Probe,
    /// The filter of system calls.
    pub seccomp: Probe,
    /// The version of Landlock that rules were enforced with; from [`LANDLOCK_SCOPES`] around abstract sockets, too.
    pub landlock: Probe<i32>,
}

/// Bounds of the system.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Limits {
    /// The hard limit of open files of the launcher's process.
    pub open_files: Option<u64>,
    /// Connections that the scheduler's listeners may take, by the configuration.
    pub connections: u32,
    /// Process ids of the machine.
    pub process_ids: Option<u64>,
    /// Directories that one user may watch.
    pub watches: Option<u64>,
    /// A watcher was made.
    pub watcher: Probe,
}

/// A folder of the node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Folder {
    /// Purpose of the folder.
    pub role: Role,
    /// Where.
    pub path: PathBuf,
    /// The folder is there, and a directory.
    pub exists: bool,
    /// Disk of its file system, or of that where it would be made.
    pub disk: Probe<Disk>,
}

/// Purpose of a folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// Models, as authors write them.
    Models,
    /// State that lasts.
    State,
    /// Files that can be made again.
    Cache,
    /// Sockets.
    Runtime,
}

/// A file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Disk {
    /// Bytes that are free.
    pub free_bytes: u64,
    /// Files that can still be made; `None` where the file system does not count them.
    pub free_files: Option<u64>,
    /// Nothing can be written.
    pub read_only: bool,
    /// Nothing can be executed, and no library loaded.
    pub no_exec: bool,
    /// In memory, and empty after a boot.
    pub is_memory: bool,
}

/// The program `uv`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Uv {
    /// Path of the program.
    pub path: PathBuf,
    /// "uv 0.13.8".
    pub version: Probe<String>,
}

/// A Python release.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Python {
    /// "3.11".
    pub release: String,
    /// Used for a model that does not name one.
    pub is_default: bool,
    /// The configuration names one.
    pub is_named: bool,
    /// Where it is and what it calls itself, "3.11.7".
    pub found: Probe<(PathBuf, String)>,
}

/// GPU files that models are given.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct GpuFiles {
    /// The version of the driver's kernel module, where that is loaded.
    pub driver: Option<String>,
    /// Device files, by name: whether every user may use each.
    pub devices: Vec<(String, Probe)>,
    /// The directory of the driver's libraries.
    pub libraries: Probe<PathBuf>,
    /// The library that is put before them is beside the launcher.
    pub shim: bool,
}

/// Facts of the scheduler.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Service {
    /// The cards that models could use.
    pub cards: Probe<Vec<Card>>,
    /// A line for each listener of the configuration that is open to more than this machine, as a start says it.
    pub exposure: Vec<String>,
}

/// A card that the scheduler finds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Card {
    /// As NVML counts.
    pub index: u32,
    /// Number in `/dev/nvidia<minor>`.
    pub minor: u32,
    /// The product's name.
    pub name: String,
    /// Total memory, in bytes.
    pub total_bytes: u64,
    /// Moves of memory while models have it.
    pub unified: Probe,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_form_of_a_trial_is_its_end_and_what_there_is_to_say() {
        let trials: [(Probe<i32>, &str); 3] = [
            (Ok::<_, String>(6).into(), r#"{"works":6}"#),
            (Err("no such device").into(), r#"{"fails":"no such device"}"#),
            (Probe::Untried("only root may".into()), r#"{"untried":"only root may"}"#),
        ];
        for (trial, text) in trials {
            assert_eq!(serde_json::to_string(&trial).unwrap(), text);
            assert_eq!(serde_json::from_str::<Probe<i32>>(text).unwrap(), trial);
        }
        assert_eq!(serde_json::to_string(&Probe::Works(())).unwrap(), r#"{"works":null}"#);
    }
}
