//! GPUs and whose memory is on them: the answers to `GET /v1/gpus`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The node's GPUs, by index.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Gpus {
    /// GPUs of the node; empty on a node without one.
    pub gpus: Vec<Gpu>,
    /// Bytes that evicted instances may need of the host's memory, over all GPUs.
    pub host_committed_bytes: u64,
    /// The most of them.
    pub host_budget_bytes: u64,
    /// Reason why there is none, or none can be used.
    pub message: Option<String>,
}

/// A GPU and the instances that have memory on it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Gpu {
    /// As NVML counts.
    pub index: u32,
    /// "GPU-" and a UUID.
    pub uuid: String,
    /// The product's name.
    pub name: String,
    /// Memory of the card, in bytes.
    pub total_bytes: u64,
    /// Memory in use by any process, as the driver reports it.
    pub used_bytes: u64,
    /// Memory that instances may have on the card at a time.
    pub budget_bytes: u64,
    /// Memory that instances have on the card now.
    pub resident_bytes: u64,
    /// The sum of the instances' `gpu-memory`.
    pub committed_bytes: u64,
    /// Bound of `committed_bytes`: the budget times `overcommit`.
    pub commit_limit_bytes: u64,
    /// Instances on this GPU, the last used first.
    pub instances: Vec<GpuInstance>,
}

/// An instance on a GPU.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct GpuInstance {
    /// The model's name.
    pub model: String,
    /// Twelve hexadecimal digits.
    pub instance: String,
    /// `gpu-memory` of the instance, in bytes.
    pub limit_bytes: u64,
    /// Allocated memory, in bytes.
    pub allocated_bytes: u64,
    /// Allocated memory on the card, in bytes.
    pub resident_bytes: u64,
    /// Place of its memory, or the direction it moves in.
    pub residency: Residency,
    /// Seconds since its last request ended; `None` while it has one.
    pub idle_seconds: Option<f64>,
    /// Times that memory of it was moved to the host, as this scheduler knows.
    #[serde(default)]
    pub evictions: u64,
    /// Times that memory of it was moved to the card.
    #[serde(default)]
    pub restores: u64,
}

/// Where an instance's memory is, or goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Residency {
    /// All of it on the card.
    Resident,
    /// Some or all of it in host memory.
    Evicted,
    /// A request waits for room on the card.
    Waiting,
    /// On its way to the card.
    Restoring,
    /// On its way to the host.
    Evicting,
}

impl Residency {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Resident, Self::Evicted, Self::Waiting, Self::Restoring, Self::Evicting];

    /// Name shown to people.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Resident => "resident",
            Self::Evicted => "evicted",
            Self::Waiting => "waiting",
            Self::Restoring => "restoring",
            Self::Evicting => "evicting",
        }
    }
}
