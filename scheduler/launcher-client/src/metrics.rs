//! Metrics of builds of environments, as the launcher reports them.

use omni_node_protocol::launcher::BuildCounts;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    kind: &'static str,
    state: &'static str,
}

/// Handles of the metrics of builds.
#[derive(Debug, Clone, Default)]
pub struct BuildMetrics {
    builds: Family<Labels, Gauge>,
}

impl BuildMetrics {
    /// Registers the metrics, at zero.
    pub fn register(r: &mut Registry) -> Self {
        let metrics = Self::default();
        r.register("builds", "Environments that are being built, or wait for a place to be", metrics.builds.clone());
        metrics.set(BuildCounts::default(), BuildCounts::default());
        metrics
    }

    /// Sets the numbers of builds.
    pub(crate) fn set(&self, wheels: BuildCounts, source: BuildCounts) {
        for (kind, counts) in [("wheels", wheels), ("source", source)] {
            for (state, count) in [("running", counts.running), ("waiting", counts.waiting)] {
                self.builds.get_or_create(&Labels { kind, state }).set(i64::from(count));
            }
        }
    }
}
