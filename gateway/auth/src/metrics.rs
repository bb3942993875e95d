//! Metrics of requests by the token that they show.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

/// Token names come from the tokens file, whose length is bounded.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    token: String,
    outcome: &'static str,
}

/// Handles of the metrics of tokens.
#[derive(Debug, Clone, Default)]
pub struct TokenMetrics {
    requests: Family<Labels, Counter>,
}

impl TokenMetrics {
    /// Adds the metrics to a registry.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let help = "Requests by the token that they showed, and whether they were admitted";
        registry.register("token_requests", help, metrics.requests.clone());
        metrics
    }

    /// Counts a request with the token of this name.
    pub fn count(&self, token: &str, outcome: &'static str) {
        self.requests.get_or_create(&Labels { token: token.to_owned(), outcome }).inc();
    }

    /// Counts a request with a missing or unknown token.
    pub(crate) fn unauthorized(&self) {
        self.count("", "unknown");
    }
}
