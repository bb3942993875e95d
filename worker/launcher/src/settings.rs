//! Settings of the launcher, from its command line and the node's configuration. Made by the program, read by all
//! parts.

use nix::sys::sysinfo::sysinfo;
use omni_cgroup::{Drivers, Wanted};
use omni_config::node::CgroupDriver;
use omni_config::{Models, NodeConfig};
use omni_environment::processors;
use omni_environment::queue::{self, Counts, Machine};
use std::path::PathBuf;

/// Command line and node configuration of a launcher.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The node's configuration.
    pub config: NodeConfig,
    /// The models folder, or the only model's directory.
    pub models: Models,
    /// State that lasts.
    pub state_dir: PathBuf,
    /// Files that can be made again.
    pub cache_dir: PathBuf,
    /// Sockets and records.
    pub runtime_dir: PathBuf,
    /// User that may connect, beside root.
    pub scheduler_uid: u32,
    /// Where `omni-worker` is, and perhaps `uv` and the CUDA shim: beside this program.
    pub program_dir: Option<PathBuf>,
    /// Started by a scheduler and not by a service manager: ends with it.
    pub kept: bool,
    /// Started by a service manager, which starts the next one.
    pub managed: bool,
    /// Form of the log, where it is not the default one.
    pub log_format: Option<String>,
}

impl Settings {
    /// The native engine's program.
    pub(super) fn native_engine(&self) -> PathBuf {
        self.program_dir.clone().unwrap_or_default().join("omni-engine")
    }

    /// Places for builds on this machine.
    pub(super) fn build_places(&self) -> Counts {
        let python = &self.config.python;
        // A machine that does not say has one place.
        let memory = sysinfo().map_or(0, |machine| machine.ram_total());
        let machine = Machine { processors: processors(), memory, uids: self.config.node.uid_count };
        queue::places(python.builds, python.build_memory.bytes(), machine)
    }

    /// The last user ids of the instances' range are kept for packages' build steps, which are foreign code as well: this one,
    /// and as many below as there are places to build from source.
    pub(super) fn source_uid(&self) -> u32 {
        self.config.node.uid_base + (self.config.node.uid_count - 1)
    }

    /// Settings of the environments.
    pub(super) fn environments(&self) -> omni_environment::Settings {
        omni_environment::Settings {
            cache_dir: self.cache_dir.clone(),
            python: self.config.python.clone(),
            source_uid: self.source_uid(),
            program_dir: self.program_dir.clone(),
        }
    }

    /// Where the images of cache directories are.
    pub(super) fn caches(&self) -> PathBuf {
        self.cache_dir.join("models")
    }

    /// Detects the drivers of control groups.
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
