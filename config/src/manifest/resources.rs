//! `[resources]`, `[limits]` and `[network]`: what an instance may use.
//!
//! Read by [`super::Manifest::parse`]; enforced by the worker with a cgroup, mounts and namespaces.

use serde::Serialize;
use toml::de::DeValue;

use crate::kind::{Mismatch, boolean, choice, fraction, number, size};
use crate::reader::Section;
use crate::size::ByteSize;

/// Least memory, on the host and on a card.
const LEAST: ByteSize = ByteSize::from_mib(16);
/// Larger than any machine of today, small enough that sums of sizes stay far below 2⁶⁴.
const LARGEST: ByteSize = ByteSize::from_gib(64 << 10);

/// Processes and threads of an instance whose manifest says nothing of them.
pub(crate) const DEFAULT_PIDS: u32 = 512;

/// `[resources]`: what an instance may use.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Resources {
    /// Host memory, and what the model sees as the machine's memory.
    pub memory: ByteSize,
    /// Processor time, in processors.
    pub cpus: f64,
    /// Processes and threads.
    pub pids: u32,
    /// Memory of the card as the model sees it; zero: no GPU.
    pub gpu_memory: ByteSize,
    /// Placement of GPU memory while the model is idle.
    pub gpu_mode: GpuMode,
}

impl Default for Resources {
    fn default() -> Self {
        Self {
            memory: ByteSize::from_gib(2),
            cpus: 2.0,
            pids: DEFAULT_PIDS,
            gpu_memory: ByteSize::from_bytes(0),
            gpu_mode: GpuMode::Unified,
        }
    }
}

impl Resources {
    pub(super) fn read(section: &mut Section<'_>) -> Self {
        let default = Self::default();
        let modes = [("unified", GpuMode::Unified), ("device", GpuMode::Device), ("sleep", GpuMode::Sleep)];
        Self {
            memory: section.get("memory", size(LEAST..=LARGEST), default.memory),
            // The shortest quota the kernel takes is 1 ms of a period of 100 ms.
            cpus: section.get("cpus", fraction(0.01..=1024.0), default.cpus),
            pids: section.get("pids", number(1..=32_768), default.pids),
            gpu_memory: section.get("gpu-memory", gpu_memory, default.gpu_memory),
            gpu_mode: section.get("gpu-mode", choice(&modes), default.gpu_mode),
        }
    }
}

/// Nothing, or enough for a program to begin with.
fn gpu_memory(value: &DeValue<'_>) -> Result<ByteSize, Mismatch> {
    match size(LEAST..=LARGEST)(value) {
        Err(_) if value.as_str() == Some("0B") => Ok(ByteSize::from_bytes(0)),
        read => {
            read.map_err(|wrong| Mismatch { expected: format!("{}, or \"0B\" for no GPU", wrong.expected), ..wrong })
        }
    }
}

/// Placement of GPU memory while a model is idle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum GpuMode {
    /// Can be moved to host memory.
    Unified,
    /// Stays on the card.
    Device,
    /// Given up and taken back by the model's server itself, when it is told to.
    Sleep,
}

/// `[limits]`: bodies and disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Limits {
    /// Largest body of a request that is collected before the handler sees it.
    pub body: ByteSize,
    /// True if the model reads large bodies from the client's connection itself. The node's configuration must trust it
    /// with that: see [`crate::NodeConfig::allows_body_handover`].
    pub body_handover: bool,
    /// Quota of the model's `cache_dir`.
    pub cache: ByteSize,
    /// Size of `/tmp` and of `/dev/shm`, each.
    pub tmp: ByteSize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            body: ByteSize::from_mib(10),
            body_handover: false,
            cache: ByteSize::from_gib(1),
            tmp: ByteSize::from_mib(256),
        }
    }
}

impl Limits {
    pub(super) fn read(section: &mut Section<'_>) -> Self {
        let default = Self::default();
        let from = ByteSize::from_bytes;
        Self {
            body: section.get("body", size(from(1)..=ByteSize::from_gib(64)), default.body),
            body_handover: section.get("body-handover", boolean, default.body_handover),
            cache: section.get("cache", size(ByteSize::from_mib(1)..=LARGEST), default.cache),
            tmp: section.get("tmp", size(ByteSize::from_mib(1)..=LARGEST), default.tmp),
        }
    }
}

/// `[network]`: what an instance can reach.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Network {
    /// The network: an empty one of its own, or the node's.
    pub access: Access,
}

impl Network {
    pub(super) fn read(section: &mut Section<'_>) -> Self {
        let accesses = [("none", Access::None), ("host", Access::Host)];
        Self { access: section.get("access", choice(&accesses), Access::None) }
    }
}

/// Network of an instance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Access {
    /// Loopback only.
    #[default]
    None,
    /// The node's, if the node's configuration lists the model: see [`crate::NodeConfig::allows_host_access`].
    Host,
}
