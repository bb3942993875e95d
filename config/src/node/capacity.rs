//! `[capacity]` of the node's configuration: bounds of all instances together.
//!
//! Read by [`super::NodeConfig::parse`]; enforced by the scheduler. The limits of the instances count, not their
//! current use.

use serde::Serialize;

use crate::kind::{fraction, number, size};
use crate::manifest::DEFAULT_PIDS;
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
    /// The `pids` of all instances; unset: three quarters of what the machine has.
    pub processes: Option<u32>,
    /// The largest `pids` that a manifest may ask for; unset: a quarter of what the machine has.
    pub processes_per_instance: Option<u32>,
}

impl Capacity {
    pub(super) fn read(section: &mut Section<'_>) -> Self {
        let memory = size(ByteSize::from_mib(16)..=LARGEST);
        let cpus = fraction(0.01..=1_000_000.0);
        let processes = number(1..=MOST_PROCESSES);
        // Not less than the manifest's own default, so that a manifest which says nothing is never refused for it.
        let of_one = number(DEFAULT_PIDS..=MOST_PROCESSES);
        Self {
            memory: section.get("memory", |value| memory(value).map(Some), None),
            cpus: section.get("cpus", |value| cpus(value).map(Some), None),
            processes: section.get("processes", |value| processes(value).map(Some), None),
            processes_per_instance: section.get("processes-per-instance", |value| of_one(value).map(Some), None),
        }
    }

    /// The capacity with default bounds of processes, for a machine with this many of them.
    #[must_use]
    pub fn on_machine(self, processes: u32) -> Self {
        Self {
            processes: self.processes.or(Some((processes / 4 * 3).max(DEFAULT_PIDS))),
            processes_per_instance: self.processes_per_instance.or(Some((processes / 4).max(DEFAULT_PIDS))),
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_of_the_machines_processes_is_the_bound_unless_another_is_set() {
        let bounds = |capacity: Capacity| (capacity.processes, capacity.processes_per_instance);
        let default = Capacity::default();
        assert_eq!(bounds(default.clone()), (None, None));
        assert_eq!(bounds(default.clone().on_machine(32_768)), (Some(24_576), Some(8192)));
        assert_eq!(bounds(default.on_machine(300)), (Some(512), Some(512)));
        let set = Capacity { processes: Some(9), processes_per_instance: Some(600), ..Capacity::default() };
        assert_eq!(bounds(set.on_machine(32_768)), (Some(9), Some(600)));
    }
}
