//! Metrics of the usage records.

use omni_usage::UsageRecorder;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;
use std::fmt;
use std::sync::Arc;

/// Reads the recorder's counts when the metrics are read.
#[derive(Debug)]
pub(crate) struct UsageCollector(pub(crate) Arc<UsageRecorder>);

impl Collector for UsageCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let counts = self.0.counts();
        for (name, help, count) in [
            ("usage_records", "Usage records that were written", counts.written),
            ("usage_records_lost", "Usage records that could not be kept", counts.lost),
            ("usage_sink_failures", "Batches that the usage sink did not acknowledge", counts.sink_failures),
        ] {
            let counter = ConstCounter::new(count);
            counter.encode(encoder.encode_descriptor(name, help, None, counter.metric_type())?)?;
        }
        let waiting = ConstGauge::new(i64::try_from(counts.waiting_bytes).unwrap_or(i64::MAX));
        let help = "Usage records that wait for the disk";
        let unit = Some(&Unit::Bytes);
        waiting.encode(encoder.encode_descriptor("usage_waiting", help, unit, waiting.metric_type())?)
    }
}
