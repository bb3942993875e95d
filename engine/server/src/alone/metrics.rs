//! Metrics in the OpenMetrics text format: those of the engine at the moment, and those of the HTTP front.

use crate::engine::Status;
use crate::metrics::{Metric, metrics};
use omni_body::BodyMetrics;
use omni_engine_protocol::metrics::MetricKind;
use omni_ingress::HttpMetrics;
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

/// Prefix of all names.
const PREFIX: &str = "omni_engine";

/// Metrics of the HTTP front.
pub(super) struct FrontMetrics {
    registry: Registry,
    pub(super) http: HttpMetrics,
    pub(super) bodies: BodyMetrics,
}

impl FrontMetrics {
    pub(super) fn new() -> Self {
        let mut registry = Registry::with_prefix(PREFIX);
        let (http, bodies) = (HttpMetrics::register(&mut registry), BodyMetrics::register(&mut registry));
        Self { registry, http, bodies }
    }

    /// Text of all metrics.
    pub(super) fn render(&self, status: &Status) -> String {
        let mut text = String::new();
        // Writing to memory does not fail.
        let _ = encode_registry(&mut text, &of_engine(status));
        let _ = encode_registry(&mut text, &self.registry);
        let _ = encode_eof(&mut text);
        text
    }
}

fn of_engine(status: &Status) -> Registry {
    let mut registry = Registry::with_prefix(PREFIX);
    for Metric { name, help, kind, value } in metrics(status) {
        match kind {
            MetricKind::Counter => registry.register(name, help, ConstCounter::new(value)),
            MetricKind::Gauge => registry.register(name, help, ConstGauge::new(value)),
        }
    }
    registry
}
