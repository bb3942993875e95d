//! Metrics that engines report of themselves, shown among the node's as `omni_engine_…` with model and instance as labels.
//!
//! Invariant: an instance whose engine is gone has no series left.

use omni_engine_protocol::metrics::{EngineMetric, MetricKind};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::encoding::EncodeMetric;
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Latest metrics of all engines. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct EngineMetrics(Arc<Mutex<Reports>>);

#[derive(Debug, Default)]
struct Reports {
    next: u64,
    by_engine: BTreeMap<u64, Report>,
}

#[derive(Debug)]
struct Report {
    model: String,
    instance: String,
    metrics: Vec<EngineMetric>,
}

/// Metrics of one engine; removed when it is dropped.
#[derive(Debug)]
pub(crate) struct EngineSeries {
    all: EngineMetrics,
    key: u64,
}

impl EngineMetrics {
    /// Metrics of an engine, which has reported none yet.
    pub(crate) fn engine(&self, model: &str, instance: &str) -> EngineSeries {
        let mut reports = self.reports();
        let key = reports.next;
        reports.next += 1;
        let report = Report { model: model.to_owned(), instance: instance.to_owned(), metrics: Vec::new() };
        reports.by_engine.insert(key, report);
        drop(reports);
        EngineSeries { all: self.clone(), key }
    }

    fn reports(&self) -> MutexGuard<'_, Reports> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl EngineSeries {
    /// Replaces the metrics by those of a new report.
    pub(crate) fn set(&self, metrics: Vec<EngineMetric>) {
        if let Some(report) = self.all.reports().by_engine.get_mut(&self.key) {
            report.metrics = metrics;
        }
    }
}

impl Drop for EngineSeries {
    fn drop(&mut self) {
        self.all.reports().by_engine.remove(&self.key);
    }
}

/// Series of one name.
#[derive(Debug)]
struct Family<'a> {
    kind: MetricKind,
    series: BTreeMap<Vec<(&'a str, &'a str)>, f64>,
}

impl Reports {
    /// Families of all reports, as a text of metrics may have them: one kind for each name, which is that of the first
    /// engine, no series twice, no label twice. Otherwise an engine could spoil the text for all.
    fn families(&self) -> BTreeMap<&str, Family<'_>> {
        let mut families: BTreeMap<&str, Family<'_>> = BTreeMap::new();
        for report in self.by_engine.values() {
            for metric in &report.metrics {
                let family = families.entry(&metric.name);
                let family = family.or_insert_with(|| Family { kind: metric.kind, series: BTreeMap::new() });
                if family.kind != metric.kind {
                    continue;
                }
                let own = metric.labels.iter().map(|(name, value)| (name.as_str(), value.as_str()));
                let mut labels = vec![("model", report.model.as_str()), ("instance", report.instance.as_str())];
                for (name, value) in own {
                    if labels.iter().all(|(known, _)| *known != name) {
                        labels.push((name, value));
                    }
                }
                family.series.entry(labels).or_insert(metric.value);
            }
        }
        // A counter's sample has this ending, and would be in two families.
        let is_counter = |name: &str| families.get(name).is_some_and(|family| family.kind == MetricKind::Counter);
        let spoilt: Vec<&str> =
            families.keys().filter(|name| name.strip_suffix("_total").is_some_and(is_counter)).copied().collect();
        families.retain(|name, _| !spoilt.contains(name));
        families
    }
}

impl Collector for EngineMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let reports = self.reports();
        for (name, Family { kind, series }) in reports.families() {
            let metric_type = match kind {
                MetricKind::Counter => MetricType::Counter,
                MetricKind::Gauge => MetricType::Gauge,
            };
            let name = format!("engine_{name}");
            let mut family = encoder.encode_descriptor(&name, "Reported by engines of models", None, metric_type)?;
            for (labels, value) in series {
                let series = family.encode_family(&labels)?;
                match kind {
                    MetricKind::Counter => ConstCounter::new(value).encode(series)?,
                    MetricKind::Gauge => ConstGauge::new(value).encode(series)?,
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus_client::encoding::text::encode;
    use prometheus_client::registry::Registry;

    fn metric(name: &str, kind: MetricKind, label: &str, value: f64) -> EngineMetric {
        EngineMetric { name: name.into(), kind, labels: vec![("engine".into(), label.into())], value }
    }

    #[test]
    fn series_of_all_engines_are_families_and_end_with_their_engine() {
        let (metrics, mut registry) = (EngineMetrics::default(), Registry::with_prefix("omni"));
        registry.register_collector(Box::new(metrics.clone()));
        let render = || {
            let mut text = String::new();
            encode(&mut text, &registry).unwrap();
            text
        };
        let (first, second) = (metrics.engine("a", "1"), metrics.engine("b", "2"));
        assert_eq!(render(), "# EOF\n");
        let running = |value| metric("vllm_running", MetricKind::Gauge, "0", value);
        first.set(vec![running(7.0)]);
        first.set(vec![running(2.5), metric("vllm_hits", MetricKind::Counter, "0\"\n", 41.0)]);
        second.set(vec![running(1.0)]);
        assert_eq!(
            render(),
            "# HELP omni_engine_vllm_hits Reported by engines of models\n\
             # TYPE omni_engine_vllm_hits counter\n\
             omni_engine_vllm_hits_total{model=\"a\",instance=\"1\",engine=\"0\\\"\\n\"} 41.0\n\
             # HELP omni_engine_vllm_running Reported by engines of models\n\
             # TYPE omni_engine_vllm_running gauge\n\
             omni_engine_vllm_running{model=\"a\",instance=\"1\",engine=\"0\"} 2.5\n\
             omni_engine_vllm_running{model=\"b\",instance=\"2\",engine=\"0\"} 1.0\n\
             # EOF\n"
        );
        drop(first);
        assert!(!render().contains("model=\"a\""), "{}", render());
        drop(second);
        assert_eq!(render(), "# EOF\n");
    }

    #[test]
    fn an_engine_does_not_spoil_the_text_for_others() {
        let (metrics, mut registry) = (EngineMetrics::default(), Registry::with_prefix("omni"));
        registry.register_collector(Box::new(metrics.clone()));
        let (first, second) = (metrics.engine("a", "1"), metrics.engine("b", "2"));
        first.set(vec![metric("x", MetricKind::Counter, "0", 1.0), metric("x", MetricKind::Counter, "0", 2.0)]);
        let lying =
            EngineMetric { labels: vec![("model".into(), "a".into())], ..metric("y", MetricKind::Gauge, "0", 4.0) };
        second.set(vec![
            metric("x", MetricKind::Gauge, "0", 3.0),
            metric("x_total", MetricKind::Gauge, "0", 3.0),
            lying,
        ]);
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        let samples: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(
            samples,
            [
                "omni_engine_x_total{model=\"a\",instance=\"1\",engine=\"0\"} 1.0",
                "omni_engine_y{model=\"b\",instance=\"2\"} 4.0",
            ]
        );
    }
}
