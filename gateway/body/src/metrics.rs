//! Metrics of the memory that bodies take.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

/// Handles of the metrics of [`BodyBudget`](crate::BodyBudget).
#[derive(Debug, Clone, Default)]
pub struct BodyMetrics {
    pub(crate) reserved: Gauge,
    pub(crate) limit: Gauge,
    pub(crate) refused: Counter,
    pub(crate) evicted: Counter,
}

impl BodyMetrics {
    /// Adds the metrics to a registry.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let bytes = |registry: &mut Registry, name: &str, help: &str, gauge: &Gauge| {
            registry.register_with_unit(name, help, Unit::Bytes, gauge.clone());
        };
        bytes(registry, "bodies_held", "Bodies of requests and large answers in memory", &metrics.reserved);
        bytes(registry, "bodies_budget", "The most of it", &metrics.limit);
        registry.register("bodies_refusals", "Bodies for which there was no memory", metrics.refused.clone());
        let help = "Answers whose clients were cut off, for others needed the memory";
        registry.register("bodies_given_up", help, metrics.evicted.clone());
        metrics
    }
}
