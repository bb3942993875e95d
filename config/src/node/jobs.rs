//! `[jobs]` of the node's configuration: batch jobs.

use std::time::Duration;

use serde::Serialize;

use crate::kind::{boolean, duration, size};
use crate::reader::Section;
use crate::size::ByteSize;

const DAY: Duration = Duration::from_secs(24 * 3600);

/// `[jobs]`: batch jobs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Jobs {
    /// Files and batches are taken, and items run.
    pub enabled: bool,
    /// Time without other requests to a model after which items have all its places.
    #[serde(serialize_with = "crate::duration::serialize")]
    pub idle: Duration,
    /// Bytes of all files and results together.
    pub disk: ByteSize,
    /// Time that files are kept, and batches after their end.
    #[serde(serialize_with = "crate::duration::serialize")]
    pub keep: Duration,
}

impl Default for Jobs {
    fn default() -> Self {
        Self { enabled: true, idle: Duration::from_secs(10), disk: ByteSize::from_gib(10), keep: 30 * DAY }
    }
}

impl Jobs {
    pub(super) fn read(section: &mut Section<'_>) -> Self {
        let default = Self::default();
        let disk = size(ByteSize::from_mib(1)..=ByteSize::from_gib(64 << 10));
        Self {
            enabled: section.get("enabled", boolean, default.enabled),
            idle: section.get("idle", duration, default.idle),
            disk: section.get("disk", disk, default.disk),
            keep: section.get("keep", duration, default.keep),
        }
    }
}
