//! Budgets and needs as plain amounts: what the node's configuration and a manifest say. Pure.

use crate::policy::capacity::{Amounts, Resource};
use omni_config::manifest::Resources;
use omni_config::node::Capacity;
use omni_config::size::ByteSize;

/// What there is, `meminfo` being the machine's `/proc/meminfo`: without a configured budget all of its memory. One that
/// does not say how much it has is not guessed at.
pub(super) fn budget(config: &Capacity, meminfo: &str) -> Amounts {
    let machine = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = machine.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    let machine = kib.map_or(u64::MAX, |kib| kib.saturating_mul(1024));
    Amounts {
        memory: config.memory.map_or(machine, ByteSize::bytes),
        millicpus: config.cpus.map_or(u64::MAX, millicpus),
        processes: config.processes.map_or(u64::MAX, u64::from),
    }
}

/// What an instance may use.
pub(super) fn need(resources: &Resources) -> Amounts {
    Amounts { memory: resources.memory.bytes(), millicpus: millicpus(resources.cpus), processes: resources.pids.into() }
}

fn millicpus(cpus: f64) -> u64 {
    (cpus * 1000.0).round() as u64
}

/// An amount as people write it.
pub(super) fn shown(resource: Resource, amount: u64) -> String {
    match resource {
        Resource::Memory if amount.is_multiple_of(1 << 20) => ByteSize::from_bytes(amount).to_string(),
        Resource::Memory => format!("{}MiB", amount >> 20),
        Resource::Cpus => format!("{} cpus", amount as f64 / 1000.0),
        Resource::Processes => format!("{amount} pids"),
    }
}
