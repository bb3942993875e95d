//! Metrics of the memory that bodies take.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

/// The handles of [`crate::budget`].
#[derive(Debug, Clone, Default)]
pub struct BodyMetrics {
    pub(crate) held: Gauge,
    pub(crate) budget: Gauge,
    pub(crate) refused: Counter,
    pub(crate) given_up: Counter,
}

impl BodyMetrics {
    pub(super) fn register(r: &mut Registry) -> Self {
        let metrics = Self::default();
        let bytes = |r: &mut Registry, name: &str, help: &str, gauge: &Gauge| {
            r.register_with_unit(name, help, Unit::Bytes, gauge.clone());
        };
        bytes(r, "bodies_held", "Bodies of requests and large answers in memory", &metrics.held);
        bytes(r, "bodies_budget", "The most of it", &metrics.budget);
        r.register("bodies_refusals", "Bodies for which there was no memory", metrics.refused.clone());
        let help = "Answers whose clients were cut off, for others needed the memory";
        r.register("bodies_given_up", help, metrics.given_up.clone());
        metrics
    }
}
