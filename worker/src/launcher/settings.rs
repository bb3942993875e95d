//! What the launcher runs with, from its command line and the node's configuration. Made by the program, read by all parts.

use omni_cgroup::{Drivers, Wanted};
use omni_config::node::CgroupDriver;
use omni_config::{Models, NodeConfig};
use std::path::PathBuf;

/// What a launcher is told by its command line and the node's configuration.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The node's configuration.
    pub config: NodeConfig,
    /// The models folder, or the only model's directory.
    pub models: Models,
    /// What lasts.
    pub state_dir: PathBuf,
    /// What can be made again.
    pub cache_dir: PathBuf,
    /// Sockets and records.
    pub runtime_dir: PathBuf,
    /// Who may connect, beside root.
    pub scheduler_uid: u32,
    /// Where `omni-worker` is, and perhaps `uv` and the CUDA shim: beside this program.
    pub program_dir: Option<PathBuf>,
    /// Started by a scheduler and not by a service manager: ends with it.
    pub kept: bool,
}

impl Settings {
    /// The last user id of the instances' range is kept for packages' build steps, which are foreign code as well.
    pub(super) fn source_uid(&self) -> u32 {
        self.config.node.uid_base + (self.config.node.uid_count - 1)
    }

    /// Where the images of cache directories are.
    pub(super) fn caches(&self) -> PathBuf {
        self.cache_dir.join("models")
    }

    /// Who makes control groups.
    pub(super) fn drivers(&self) -> Result<Drivers, omni_cgroup::Error> {
        Drivers::detect(self.wanted(), &self.config.node.cgroup_parent)
    }

    const fn wanted(&self) -> Wanted {
        match self.config.node.cgroup_driver {
            CgroupDriver::Auto => Wanted::Auto,
            CgroupDriver::Systemd => Wanted::Systemd,
            CgroupDriver::Cgroupfs => Wanted::Cgroupfs,
        }
    }
}
