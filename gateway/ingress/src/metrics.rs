//! Metrics of listeners and connections.

use omni_request_error::Failure;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    reason: &'static str,
}

/// Handles of the metrics of listeners. The gauges are those of the data listener.
#[derive(Debug, Clone, Default)]
pub struct HttpMetrics {
    refused: Family<Labels, Counter>,
    closed: Family<Labels, Counter>,
    /// Open connections.
    pub connections: Gauge,
    /// Most open connections.
    pub limit: Gauge,
}

impl HttpMetrics {
    /// Adds the metrics to a registry.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let help = "Requests that were refused by their heads";
        registry.register("http_refusals", help, metrics.refused.clone());
        let help = "Connections that the node closed";
        registry.register("http_closed_connections", help, metrics.closed.clone());
        registry.register("http_connections", "Connections to the data listener", metrics.connections.clone());
        registry.register("http_connections_limit", "The most of them", metrics.limit.clone());
        metrics
    }

    /// Handles for another listener than the data listener.
    #[must_use]
    pub fn without_connections(&self) -> Self {
        Self { connections: Gauge::default(), limit: Gauge::default(), ..self.clone() }
    }

    /// Counts a request that was refused by its head.
    pub fn refused(&self, failure: &Failure) {
        let reason = match failure {
            Failure::NoHost => "no-host",
            Failure::UnknownHost { .. } => "host",
            Failure::OtherSite => "other-site",
            Failure::HeadTooLarge => "head",
            _ => "memory",
        };
        self.refused.get_or_create(&Labels { reason }).inc();
    }

    /// Counts a connection that was closed, for this reason.
    pub fn closed(&self, reason: &'static str) {
        self.closed.get_or_create(&Labels { reason }).inc();
    }
}
