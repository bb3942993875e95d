//! Metrics of batch jobs.

use omni_inference::JobsHandle;
use omni_jobs::Status;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Reads the counts of batch jobs when the metrics are read.
#[derive(Debug, Clone)]
pub(crate) struct JobsCollector {
    handle: JobsHandle,
    /// Number of batches in each state, as of the last [`JobsCollector::refresh`].
    batches: Arc<[AtomicU64; Status::ALL.len()]>,
}

impl JobsCollector {
    pub(crate) fn new(handle: JobsHandle) -> Self {
        Self { handle, batches: Arc::default() }
    }

    /// Reads the states of the batches, if the store is open.
    pub(crate) async fn refresh(&self) {
        let Some(store) = self.handle.opened() else { return };
        let states = store.states().await.unwrap_or_default();
        for (kept, (_, count)) in self.batches.iter().zip(states) {
            kept.store(count, Ordering::Relaxed);
        }
    }
}

impl Collector for JobsCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let counts = self.handle.counts();
        let value = |count: &AtomicU64| count.load(Ordering::Relaxed);
        for (name, help, count) in [
            ("job_items_completed", "Items of batches with a response of success", &counts.completed),
            ("job_items_failed", "Items of batches with another response, or with none for good", &counts.failed),
            ("job_items_died", "Attempts at items of batches whose instance died", &counts.died),
            ("job_items_given_back", "Attempts at items of batches that were given back", &counts.given_back),
        ] {
            let counter = ConstCounter::new(value(count));
            counter.encode(encoder.encode_descriptor(name, help, None, counter.metric_type())?)?;
        }
        let disk = self.handle.opened().map_or(0, |store| store.disk_used());
        for (name, help, unit, count) in [
            ("job_items_waiting", "Items of batches that wait", None, value(&counts.waiting)),
            ("job_items_in_flight", "Items of batches in flight", None, value(&counts.in_flight)),
            ("job_disk", "Files and results of batches on the disk", Some(&Unit::Bytes), disk),
        ] {
            let gauge = ConstGauge::new(i64::try_from(count).unwrap_or(i64::MAX));
            gauge.encode(encoder.encode_descriptor(name, help, unit, gauge.metric_type())?)?;
        }
        let help = "Batches that the node keeps, by state";
        let mut of_states = encoder.encode_descriptor("job_batches", help, None, MetricType::Gauge)?;
        for (status, count) in Status::ALL.into_iter().zip(self.batches.iter()) {
            let gauge = ConstGauge::new(i64::try_from(value(count)).unwrap_or(i64::MAX));
            gauge.encode(of_states.encode_family(&[("state", status.name())])?)?;
        }
        Ok(())
    }
}
