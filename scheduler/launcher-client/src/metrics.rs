//! Metrics of what the launcher prepares, as it reports them: builds of environments, and weights that it fetches.

use omni_node_protocol::launcher::{BuildCounts, WeightsCounts};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::registry::{Registry, Unit};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    kind: &'static str,
    state: &'static str,
}

/// Handles of the metrics. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct PreparationMetrics {
    builds: Family<Labels, Gauge>,
    weights: WeightsCollector,
}

impl PreparationMetrics {
    /// Registers the metrics, at zero.
    pub fn register(r: &mut Registry) -> Self {
        let metrics = Self::default();
        r.register("builds", "Environments that are being built, or wait for a place to be", metrics.builds.clone());
        metrics.set_builds(BuildCounts::default(), BuildCounts::default());
        r.register_collector(Box::new(metrics.weights.clone()));
        metrics
    }

    /// Sets the numbers of builds.
    pub(crate) fn set_builds(&self, wheels: BuildCounts, source: BuildCounts) {
        for (kind, counts) in [("wheels", wheels), ("source", source)] {
            for (state, count) in [("running", counts.running), ("waiting", counts.waiting)] {
                self.builds.get_or_create(&Labels { kind, state }).set(i64::from(count));
            }
        }
    }

    /// Sets the counts of fetched weights. They are the launcher's: a new scheduler goes on with them, and a new launcher
    /// begins at zero.
    pub(crate) fn set_weights(&self, counts: WeightsCounts) {
        *self.weights.0.lock().unwrap_or_else(PoisonError::into_inner) = counts;
    }
}

/// Reads the launcher's counts of weights when the metrics are read.
#[derive(Debug, Clone, Default)]
struct WeightsCollector(Arc<Mutex<WeightsCounts>>);

impl Collector for WeightsCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let counts = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let help = "Downloads of weights that have ended, by how";
        let mut of_outcomes = encoder.encode_descriptor("weights_downloads", help, None, MetricType::Counter)?;
        for (outcome, count) in [
            ("fetched", counts.fetched),
            ("failed", counts.failed),
            ("refused", counts.refused),
            ("cancelled", counts.cancelled),
        ] {
            ConstCounter::new(count).encode(of_outcomes.encode_family(&[("outcome", outcome)])?)?;
        }
        let (fetched, help) = (ConstCounter::new(counts.fetched_bytes), "Weights that downloads have written");
        let bytes = Some(&Unit::Bytes);
        fetched.encode(encoder.encode_descriptor("weights_fetched", help, bytes, fetched.metric_type())?)?;
        for (name, help, count) in [
            ("weights_cache", "Weights in the cache of fetched ones", counts.cache_bytes),
            ("weights_cache_limit", "Most weights in that cache", counts.cache_limit_bytes),
        ] {
            let gauge = ConstGauge::new(i64::try_from(count).unwrap_or(i64::MAX));
            gauge.encode(encoder.encode_descriptor(name, help, bytes, gauge.metric_type())?)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus_client::encoding::text::encode;

    #[test]
    fn counts_of_weights_are_those_that_the_launcher_said_last() {
        let mut registry = Registry::default();
        let metrics = PreparationMetrics::register(&mut registry);
        let told = |fetched_bytes| WeightsCounts {
            fetched_bytes,
            fetched: 2,
            failed: 3,
            refused: 4,
            cancelled: 5,
            cache_bytes: 6,
            cache_limit_bytes: u64::MAX,
        };
        metrics.set_weights(told(9));
        metrics.set_weights(told(10));
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        for line in [
            "weights_fetched_bytes_total 10",
            "weights_downloads_total{outcome=\"fetched\"} 2",
            "weights_downloads_total{outcome=\"failed\"} 3",
            "weights_downloads_total{outcome=\"refused\"} 4",
            "weights_downloads_total{outcome=\"cancelled\"} 5",
            "weights_cache_bytes 6",
            "weights_cache_limit_bytes 9223372036854775807",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}: {text}");
        }
    }
}
