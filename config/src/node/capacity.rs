//! `[capacity]` of the node's configuration: what all instances together may use.
//!
//! Read by [`super::NodeConfig::parse`]; obeyed by the scheduler. What counts is the limits of the instances, not what
//! they use at the moment.

use serde::Serialize;

use crate::kind::{fraction, number, size};
use crate::reader::Section;
use crate::size::ByteSize;

/// Larger than any machine of today, small enough that sums of sizes stay far below 2⁶⁴.
const LARGEST: ByteSize = ByteSize::from_gib(64 << 10);

/// Linux has numbers for no more (`PID_MAX_LIMIT`).
const MOST_PROCESSES: u32 = 4 << 20;

/// `[capacity]`: what all instances together may use.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Capacity {
    /// The `memory` of all instances; unset: the machine's.
    pub memory: Option<ByteSize>,
    /// The `cpus` of all instances; unset: no bound.
    pub cpus: Option<f64>,
    /// The `pids` of all instances; unset: no bound.
    pub processes: Option<u32>,
}

impl Capacity {
    pub(super) fn read(section: &mut Section<'_>) -> Self {
        let memory = size(ByteSize::from_mib(16)..=LARGEST);
        let cpus = fraction(0.01..=1_000_000.0);
        let processes = number(1..=MOST_PROCESSES);
        Self {
            memory: section.get("memory", |value| memory(value).map(Some), None),
            cpus: section.get("cpus", |value| cpus(value).map(Some), None),
            processes: section.get("processes", |value| processes(value).map(Some), None),
        }
    }
}
