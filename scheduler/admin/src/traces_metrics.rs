//! Metrics of the spans of requests.

use omni_traces::Tracer;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use std::fmt;
use std::sync::Arc;

/// Reads the tracer's counts when the metrics are read.
#[derive(Debug)]
pub(crate) struct TracesCollector(pub(crate) Arc<Tracer>);

impl Collector for TracesCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let counts = self.0.counts();
        for (name, help, count) in [
            ("trace_spans", "Spans of requests that the collector has taken", counts.exported),
            ("trace_spans_lost", "Spans of requests that had no room, or that the collector did not take", counts.lost),
        ] {
            let counter = ConstCounter::new(count);
            counter.encode(encoder.encode_descriptor(name, help, None, counter.metric_type())?)?;
        }
        Ok(())
    }
}
