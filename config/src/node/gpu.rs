//! `[gpu]` of the node's configuration: which cards models may use, and how far their memory is over-committed.
//!
//! Read by [`super::NodeConfig::parse`]; the scheduler enforces the budgets, the launcher uses the folders. A uuid from
//! here, or checked by [`GpuUuid`], is safe in an environment variable and in a message.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use serde::{Serialize, Serializer};
use toml::de::DeValue;

use crate::kind::{Mismatch, absolute_path, duration, fraction, integer, size};
use crate::reader::Section;
use crate::size::ByteSize;

/// Cards of one machine; NVIDIA's driver has places for no more (`NV_MAX_DEVICES`).
const MOST_CARDS: u32 = 64;
/// Larger than any card of today, small enough that sums of sizes stay far below 2⁶⁴.
const LARGEST: ByteSize = ByteSize::from_gib(64 << 10);

/// `[gpu]`: cards and the budgets of their memory.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Gpu {
    /// The cards that models may use; none named: all.
    pub devices: Vec<GpuDevice>,
    /// Bytes of models that may be resident on each card; unset: the card less a margin.
    pub memory_budget: Option<ByteSize>,
    /// How many times the budget the `gpu-memory` of all instances may add up to.
    pub overcommit: f64,
    /// Bytes of evicted GPU memory in the host's; unset: half of the host's memory.
    pub host_budget: Option<ByteSize>,
    /// An instance that takes longer to leave the card is ended.
    #[serde(serialize_with = "crate::duration::serialize")]
    pub evict_timeout: Duration,
    /// Least time that an instance keeps its place on the card before another may take it.
    #[serde(serialize_with = "crate::duration::serialize")]
    pub quantum: Duration,
    /// Where the driver's `libcuda.so.1` and `libnvidia-ml.so.1` are; unset: where the dynamic linker finds them.
    pub driver_dir: Option<PathBuf>,
    /// Where `nvidia0`, `nvidiactl` and `nvidia-uvm` are.
    pub device_dir: PathBuf,
}

impl Default for Gpu {
    fn default() -> Self {
        Self {
            devices: Vec::new(),
            memory_budget: None,
            overcommit: 4.0,
            host_budget: None,
            evict_timeout: Duration::from_secs(10),
            quantum: Duration::from_secs(2),
            driver_dir: None,
            device_dir: PathBuf::from("/dev"),
        }
    }
}

impl Gpu {
    pub(super) fn read(section: &mut Section<'_>) -> Self {
        let default = Self::default();
        let path = |value: &DeValue<'_>| absolute_path(value).map(Some);
        let budget = size(ByteSize::from_mib(16)..=LARGEST);
        let host = size(ByteSize::from_bytes(0)..=LARGEST);
        Self {
            devices: section.list("devices", device),
            memory_budget: section.get("memory-budget", |value| budget(value).map(Some), default.memory_budget),
            overcommit: section.get("overcommit", fraction(1.0..=1024.0), default.overcommit),
            host_budget: section.get("host-budget", |value| host(value).map(Some), default.host_budget),
            evict_timeout: section.get("evict-timeout", duration, default.evict_timeout),
            quantum: section.get("quantum", duration, default.quantum),
            driver_dir: section.get("driver-dir", path, default.driver_dir),
            device_dir: section.get("device-dir", absolute_path, default.device_dir),
        }
    }
}

/// A card, as an operator names it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum GpuDevice {
    /// By its place in NVML's order, which is that of the PCI bus.
    Index(u32),
    /// A card by its UUID.
    Uuid(GpuUuid),
}

fn device(value: &DeValue<'_>) -> Result<GpuDevice, Mismatch> {
    let index = integer(value).and_then(|index| u32::try_from(index).ok()).filter(|index| *index < MOST_CARDS);
    let uuid = || value.as_str().and_then(|text| text.parse().ok());
    index.map(GpuDevice::Index).or_else(|| uuid().map(GpuDevice::Uuid)).ok_or_else(|| {
        let last = MOST_CARDS - 1;
        Mismatch::expected(format!(
            "a card's index from 0 to {last}, or its uuid as `nvidia-smi -L` shows it: \"GPU-…\""
        ))
    })
}

/// NVML's name of a card: `GPU-` and a UUID. The same after a restart and in another slot.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GpuUuid(String);

impl GpuUuid {
    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for GpuUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Serialize for GpuUuid {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

/// A text that names no card.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a card's uuid is GPU- and five groups of lower-case hexadecimal digits, of 8, 4, 4, 4 and 12")]
pub struct GpuUuidError;

impl FromStr for GpuUuid {
    type Err = GpuUuidError;

    fn from_str(text: &str) -> Result<Self, GpuUuidError> {
        let is_hex = |part: &str| part.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        let groups = text.strip_prefix("GPU-").map(|uuid| uuid.split('-').collect::<Vec<_>>()).unwrap_or_default();
        let lengths = groups.iter().map(|group| group.len());
        if !lengths.eq([8, 4, 4, 4, 12]) || !groups.iter().all(|group| is_hex(group)) {
            return Err(GpuUuidError);
        }
        Ok(Self(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_has_one_form() {
        let right = "GPU-0123abcd-4567-89ef-0123-456789abcdef";
        assert_eq!(right.parse::<GpuUuid>().unwrap().as_str(), right);
        for wrong in [
            "",
            "GPU-",
            "0",
            "0123abcd-4567-89ef-0123-456789abcdef",
            "MIG-0123abcd-4567-89ef-0123-456789abcdef",
            "GPU-0123ABCD-4567-89ef-0123-456789abcdef",
            "GPU-0123abcd-4567-89ef-0123-456789abcde",
            "GPU-0123abcd-4567-89ef-0123-456789abcdef,0",
            "GPU-0123abcd-4567-89ef-0123-456789abcdef-0",
            "GPU-0123abcd456789ef0123456789abcdef",
        ] {
            assert_eq!(wrong.parse::<GpuUuid>(), Err(GpuUuidError), "{wrong}");
        }
    }
}
