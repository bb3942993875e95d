//! Registry of all metrics. No label is unbounded: models are directories on this node, usage units are checked words.

use crate::jobs_metrics::JobsCollector;
use crate::traces_metrics::TracesCollector;
use crate::usage_metrics::UsageCollector;
use omni_auth::TokenMetrics;
use omni_body::BodyMetrics;
use omni_capacity::CapacityMetrics;
use omni_gpu::GpuMetrics;
use omni_inference::JobsHandle;
use omni_ingress::HttpMetrics;
use omni_supervisor::metrics::NodeMetrics;
use omni_traces::Tracer;
use omni_usage::UsageRecorder;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};
use std::sync::Arc;

/// Registry with its families.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    node: NodeMetrics,
    gpu: GpuMetrics,
    capacity: CapacityMetrics,
    bodies: BodyMetrics,
    http: HttpMetrics,
    tokens: TokenMetrics,
    jobs: Option<JobsCollector>,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("omni");
        let gpu = GpuMetrics::register(&mut registry);
        let capacity = CapacityMetrics::register(&mut registry);
        let bodies = BodyMetrics::register(&mut registry);
        let http = HttpMetrics::register(&mut registry);
        let node = NodeMetrics::register(&mut registry, gpu.clone());
        let tokens = TokenMetrics::register(&mut registry);
        Self { registry, node, gpu, capacity, bodies, http, tokens, jobs: None }
    }
}

impl Metrics {
    /// The metrics in the OpenMetrics text format.
    #[must_use]
    pub fn render(&self) -> String {
        let mut text = String::new();
        // Writing to a string fails only when a metric cannot be encoded, which no metric of ours can.
        let _ = encode(&mut text, &self.registry);
        text
    }

    /// Handles for the GPU task.
    #[must_use]
    pub fn of_gpus(&self) -> GpuMetrics {
        self.gpu.clone()
    }

    /// Handles for the node's capacity.
    #[must_use]
    pub fn of_capacity(&self) -> CapacityMetrics {
        self.capacity.clone()
    }

    /// Handles for the memory of bodies.
    #[must_use]
    pub fn of_bodies(&self) -> BodyMetrics {
        self.bodies.clone()
    }

    /// Handles for the listeners.
    #[must_use]
    pub fn of_http(&self) -> HttpMetrics {
        self.http.clone()
    }

    /// Handles for tokens.
    #[must_use]
    pub fn of_tokens(&self) -> TokenMetrics {
        self.tokens.clone()
    }

    /// Adds the expiry of the data listener's certificates, in seconds since the Unix epoch.
    pub fn certificate_ends(&mut self, unix_seconds: i64) {
        let help = "When the first certificate of the chain ends, since the Unix epoch";
        self.registry.register_with_unit(
            "tls_certificate_not_after",
            help,
            Unit::Seconds,
            ConstGauge::new(unix_seconds),
        );
    }

    /// Adds the counts of usage records.
    pub fn usage(&mut self, recorder: Arc<UsageRecorder>) {
        self.registry.register_collector(Box::new(UsageCollector(recorder)));
    }

    /// Adds the counts of spans.
    pub fn traces(&mut self, tracer: Arc<Tracer>) {
        self.registry.register_collector(Box::new(TracesCollector(tracer)));
    }

    /// Adds the counts of batch jobs.
    pub fn jobs(&mut self, jobs: JobsHandle) {
        let collector = JobsCollector::new(jobs);
        self.registry.register_collector(Box::new(collector.clone()));
        self.jobs = Some(collector);
    }

    /// Reads what is not counted as it happens, before the metrics are rendered.
    pub(crate) async fn refresh(&self) {
        if let Some(jobs) = &self.jobs {
            jobs.refresh().await;
        }
    }

    /// Handles for the node.
    #[must_use]
    pub fn of_node(&self) -> NodeMetrics {
        self.node.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use omni_control_api::{Gpu, GpuInstance, Gpus, Residency, State};
    use omni_inference::StoreState;
    use omni_policy::capacity::{Amounts, Resource, View};
    use omni_supervisor::metrics::{Api, ModelMetrics};
    use omni_usage::{UsageSettings, WhenFull};
    use std::time::Duration;

    #[test]
    fn names_and_help_of_all_metrics() {
        let mut metrics = Metrics::default();
        metrics.certificate_ends(2_208_988_800);
        let dir = tempfile::tempdir().unwrap();
        let (spool, log) = (dir.path().join("spool"), dir.path().join("log"));
        let settings = UsageSettings { spool, log, keep: 1, when_full: WhenFull::Lose, sink: None };
        metrics.usage(Arc::new(UsageRecorder::open(settings).unwrap()));
        metrics.traces(Arc::default());
        metrics.jobs(JobsHandle::new(tokio::sync::watch::channel(StoreState::Closed).1, Arc::default()));
        let model = metrics.of_node().of_model("cowsay");
        model.outcomes(Api::WorkersAi).ok.inc();
        model.state(State::Ready, [State::Ready, State::Ready, State::Draining].into_iter());
        model.died("oom");
        model.on_usage("tokens".into(), 12);
        model.observe_wait(Duration::from_millis(3));
        model.on_batch(5);
        let gpus = metrics.of_gpus();
        let instance = GpuInstance {
            model: "cowsay".into(),
            instance: "0123456789ab".into(),
            limit_bytes: 8,
            allocated_bytes: 7,
            resident_bytes: 6,
            residency: Residency::Evicted,
            idle_seconds: None,
            evictions: 0,
            restores: 0,
        };
        let card = Gpu {
            index: 0,
            uuid: String::new(),
            name: String::new(),
            total_bytes: 1,
            used_bytes: 2,
            budget_bytes: 3,
            resident_bytes: 4,
            committed_bytes: 5,
            commit_limit_bytes: 6,
            instances: vec![instance],
        };
        let view = Gpus { gpus: vec![card], host_committed_bytes: 9, host_budget_bytes: 10, message: None };
        gpus.set(&view, &[true]);
        gpus.moved_in.inc_by(7);
        gpus.swapped_in("cowsay", Duration::from_millis(156));
        gpus.refused("too-big");
        gpus.ended("silent");
        let capacity = metrics.of_capacity();
        let committed = Amounts { memory: 11, millicpus: 1500, processes: 13 };
        capacity.set(&View { budget: committed, committed, reservations: 1, waiting: 2 });
        capacity.refused(Resource::Memory, "full");
        metrics.of_tokens().count("ci", "admitted");
        metrics.of_http().refused(&omni_request_error::Failure::NoHost);
        metrics.of_http().closed("idle");
        let text = metrics.render();
        let mut lines: Vec<_> = text.lines().collect();
        lines.sort_unstable(); // the order within a family is that of a hash map
        insta::assert_snapshot!(lines.join("\n"));
    }

    #[test]
    fn metrics_of_a_removed_model_are_removed() {
        let metrics = Metrics::default();
        let all = |model: &ModelMetrics| {
            model.outcomes(Api::WorkersAi).ok.inc();
            model.total_time.observe(1.0);
            model.state(State::Ready, std::iter::empty());
            model.died("oom");
            model.died("healthcheck");
            model.on_usage("tokens".into(), 12);
            model.observe_wait(Duration::from_millis(3));
            model.oom_kills.inc();
            metrics.of_gpus().swapped_in("cowsay", Duration::from_millis(1));
        };
        let (first, other) = (metrics.of_node().of_model("cowsay"), metrics.of_node().of_model("other"));
        all(&first);
        // The directory was restored while the first model still drained.
        let second = metrics.of_node().of_model("cowsay");
        all(&second);
        first.gone();
        assert!(metrics.render().contains(r#"omni_instance_restarts_total{model="cowsay",reason="oom"} 2"#));
        second.gone();
        let text = metrics.render();
        assert!(!text.contains("cowsay"), "{text}");
        assert!(text.contains("other"));
        assert_eq!(other.answered(), 0);
    }
}
