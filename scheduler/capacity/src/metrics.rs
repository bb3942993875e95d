//! Metrics of the node's capacity.

use omni_policy::capacity::{Resource, View};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use std::sync::atomic::AtomicU64;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResourceLabel {
    resource: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RefusalLabels {
    resource: &'static str,
    reason: &'static str,
}

type Amount = Gauge<f64, AtomicU64>;

/// Handles of the metrics of capacity.
#[derive(Debug, Clone, Default)]
pub struct CapacityMetrics {
    budget: Family<ResourceLabel, Amount>,
    committed: Family<ResourceLabel, Amount>,
    waiting: Gauge,
    refused: Family<RefusalLabels, Counter>,
    displaced: Counter,
}

impl CapacityMetrics {
    /// Registers the metrics, without a budget.
    pub fn register(r: &mut Registry) -> Self {
        let metrics = Self::default();
        r.register("capacity_budget", "What all instances together may use", metrics.budget.clone());
        r.register("capacity_committed", "The limits of all instances together", metrics.committed.clone());
        r.register("capacity_waiting", "Starts that wait for room", metrics.waiting.clone());
        r.register("capacity_refusals", "Starts refused for want of room", metrics.refused.clone());
        r.register("capacity_displacements", "Idle instances that made room for others", metrics.displaced.clone());
        metrics
    }

    /// Sets budget and reservations. A resource without a bound has no budget series.
    pub fn set(&self, view: &View) {
        for resource in Resource::ALL {
            let label = ResourceLabel { resource: name(resource) };
            let budget = view.budget.of(resource);
            if budget < u64::MAX {
                self.budget.get_or_create(&label).set(amount(resource, budget));
            }
            self.committed.get_or_create(&label).set(amount(resource, view.committed.of(resource)));
        }
        self.waiting.set(i64::try_from(view.waiting).unwrap_or(i64::MAX));
    }

    /// Counts a refused start.
    pub fn refused(&self, resource: Resource, reason: &'static str) {
        self.refused.get_or_create(&RefusalLabels { resource: name(resource), reason }).inc();
    }

    /// Counts an idle instance that has to make room.
    pub fn displaced(&self) {
        self.displaced.inc();
    }
}

fn name(resource: Resource) -> &'static str {
    match resource {
        Resource::Memory => "memory",
        Resource::Cpus => "cpus",
        Resource::Processes => "processes",
    }
}

/// In bytes, processors, processes.
fn amount(resource: Resource, amount: u64) -> f64 {
    match resource {
        Resource::Memory | Resource::Processes => amount as f64,
        Resource::Cpus => amount as f64 / 1000.0,
    }
}
