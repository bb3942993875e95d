//! Metrics of the data listener's tokens.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

/// A token's name is one of the file's, of which there are few.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    token: String,
    outcome: &'static str,
}

/// The handles of [`crate::tokens`].
#[derive(Debug, Clone, Default)]
pub struct TokenMetrics {
    requests: Family<Labels, Counter>,
}

impl TokenMetrics {
    pub(super) fn register(r: &mut Registry) -> Self {
        let metrics = Self::default();
        let help = "Requests by the token that they showed, and whether they were admitted";
        r.register("token_requests", help, metrics.requests.clone());
        metrics
    }

    /// A request with this token.
    pub(crate) fn count(&self, token: &str, outcome: &'static str) {
        self.requests.get_or_create(&Labels { token: token.to_owned(), outcome }).inc();
    }

    /// A request with none, or one that is not good.
    pub(crate) fn nobodys(&self) {
        self.count("", "unknown");
    }
}
