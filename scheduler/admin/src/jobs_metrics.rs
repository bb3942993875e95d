//! Metrics of batch jobs.

use omni_inference::JobsHandle;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// Reads the counts of batch jobs when the metrics are read.
#[derive(Debug)]
pub(crate) struct JobsCollector(pub(crate) JobsHandle);

impl Collector for JobsCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let counts = self.0.counts();
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
        let disk = self.0.opened().map_or(0, |store| store.disk_used());
        for (name, help, unit, count) in [
            ("job_items_waiting", "Items of batches that wait", None, value(&counts.waiting)),
            ("job_items_in_flight", "Items of batches in flight", None, value(&counts.in_flight)),
            ("job_disk", "Files and results of batches on the disk", Some(&Unit::Bytes), disk),
        ] {
            let gauge = ConstGauge::new(i64::try_from(count).unwrap_or(i64::MAX));
            gauge.encode(encoder.encode_descriptor(name, help, unit, gauge.metric_type())?)?;
        }
        Ok(())
    }
}
