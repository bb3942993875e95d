//! Budgets and needs as plain amounts: what the node's configuration and a manifest say. Pure.

use omni_config::manifest::{Manifest, Resources};
use omni_config::node::Capacity;
use omni_config::size::ByteSize;
use omni_policy::capacity::{Amounts, Resource};

/// Budget of the node: without a configured one all of the machine's memory. A machine that does not say how much it
/// has is not guessed at.
pub(super) fn budget(config: &Capacity, machine: Option<u64>) -> Amounts {
    Amounts {
        memory: config.memory.map_or(machine.unwrap_or(u64::MAX), ByteSize::bytes),
        millicpus: config.cpus.map_or(u64::MAX, millicpus),
        processes: config.processes.map_or(u64::MAX, u64::from),
    }
}

/// Limits of an instance.
#[must_use]
pub fn need(resources: &Resources) -> Amounts {
    Amounts { memory: resources.memory.bytes(), millicpus: millicpus(resources.cpus), processes: resources.pids.into() }
}

/// Limits of a model's zygote, if it has one, in addition to its instances': no processor time, for they wait while it
/// imports, and then it waits.
#[must_use]
pub fn zygote_need(manifest: &Manifest) -> Option<Amounts> {
    let memory = manifest.zygote_memory()?.bytes();
    Some(Amounts { memory, millicpus: 0, processes: manifest.resources.pids.into() })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machines_memory_is_the_budget_unless_another_is_set() {
        let machine = Some(128 << 20);
        let default = budget(&Capacity::default(), machine);
        assert_eq!(default, Amounts { memory: 128 << 20, millicpus: u64::MAX, processes: u64::MAX });
        assert_eq!(budget(&Capacity::default(), None).memory, u64::MAX);
        let set = Capacity {
            memory: Some(ByteSize::from_gib(1)),
            cpus: Some(1.5),
            processes: Some(9),
            ..Capacity::default()
        };
        assert_eq!(budget(&set, machine), Amounts { memory: 1 << 30, millicpus: 1500, processes: 9 });
    }

    #[test]
    fn an_instance_needs_its_limits() {
        let resources = Resources { cpus: 0.01, pids: 7, ..Resources::default() };
        assert_eq!(need(&resources), Amounts { memory: 2 << 30, millicpus: 10, processes: 7 });
    }

    #[test]
    fn amounts_are_shown_as_people_write_them() {
        assert_eq!(shown(Resource::Memory, 7 << 30), "7GiB");
        assert_eq!(shown(Resource::Memory, (7 << 30) + 5000), "7168MiB");
        assert_eq!(shown(Resource::Cpus, 2500), "2.5 cpus");
        assert_eq!(shown(Resource::Processes, 512), "512 pids");
    }
}
