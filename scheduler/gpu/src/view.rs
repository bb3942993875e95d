//! Published view of the cards and the instances on them; ages are advanced when it is read.

use super::moves::Moves;
use super::probe::Card;
use omni_control_api as api;
use omni_policy::Moment;
use omni_policy::residency::{CardView, InstanceKey, InstanceView, MemoryLocation};
use std::collections::HashSet;
use tokio::time::Instant;

/// Published state and its time.
#[derive(Debug, Clone)]
pub(super) struct View {
    at: Instant,
    gpus: api::Gpus,
}

impl View {
    /// View before the driver has answered.
    pub(super) fn asking() -> Self {
        let message = Some("the driver is being asked what cards there are".to_owned());
        Self::new(api::Gpus { gpus: Vec::new(), host_committed_bytes: 0, host_budget_bytes: 0, message })
    }

    /// View of the state as of now.
    pub(super) fn new(gpus: api::Gpus) -> Self {
        Self { at: Instant::now(), gpus }
    }

    /// The state with its ages as of now.
    pub(super) fn now(&self) -> api::Gpus {
        let passed = self.at.elapsed().as_secs_f64();
        let mut gpus = self.gpus.clone();
        for instance in gpus.gpus.iter_mut().flat_map(|gpu| &mut gpu.instances) {
            instance.idle_seconds = instance.idle_seconds.map(|seconds| seconds + passed);
        }
        gpus
    }

    /// Ids of instances whose memory is not, or not all, on their card.
    pub(super) fn away(&self) -> HashSet<String> {
        let all = self.gpus.gpus.iter().flat_map(|gpu| &gpu.instances);
        all.filter(|at| at.residency != api::Residency::Resident).map(|at| at.instance.clone()).collect()
    }
}

/// View of one card; `facts` returns an instance's model, its id, and its moves.
pub(super) fn card(
    card: &Card,
    view: CardView,
    now: Moment,
    facts: impl Fn(InstanceKey) -> Option<(String, String, Moves)>,
) -> api::Gpu {
    let instance = |view: InstanceView| {
        let (model, instance, moves) = facts(view.instance)?;
        Some(api::GpuInstance {
            model,
            instance,
            limit_bytes: view.limit,
            allocated_bytes: view.allocated,
            resident_bytes: view.resident,
            residency: residency(view.location),
            idle_seconds: view.idle_since.map(|since| now.saturating_sub(since).as_secs_f64()),
            evictions: moves.evictions,
            restores: moves.restores,
        })
    };
    api::Gpu {
        index: card.index,
        uuid: card.uuid.to_string(),
        name: card.name.clone(),
        total_bytes: card.total_bytes,
        used_bytes: view.used,
        budget_bytes: view.budget,
        resident_bytes: view.resident,
        committed_bytes: view.committed,
        commit_limit_bytes: view.commit_limit,
        instances: view.instances.into_iter().filter_map(instance).collect(),
    }
}

fn residency(location: MemoryLocation) -> api::Residency {
    match location {
        MemoryLocation::Resident => api::Residency::Resident,
        MemoryLocation::Evicted => api::Residency::Evicted,
        MemoryLocation::Waiting => api::Residency::Waiting,
        MemoryLocation::Restoring => api::Residency::Restoring,
        MemoryLocation::Evicting => api::Residency::Evicting,
    }
}
