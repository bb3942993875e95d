//! Metrics in the OpenMetrics text format: those of the engine at the moment, and those of the HTTP front.

use crate::engine::Status;
use omni_body::BodyMetrics;
use omni_ingress::HttpMetrics;
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};

/// Prefix of all names.
const PREFIX: &str = "omni_engine";

/// Metrics of the HTTP front.
pub(super) struct FrontMetrics {
    registry: Registry,
    pub(super) http: HttpMetrics,
    pub(super) bodies: BodyMetrics,
}

impl FrontMetrics {
    pub(super) fn new() -> Self {
        let mut registry = Registry::with_prefix(PREFIX);
        let (http, bodies) = (HttpMetrics::register(&mut registry), BodyMetrics::register(&mut registry));
        Self { registry, http, bodies }
    }

    /// Text of all metrics.
    pub(super) fn render(&self, status: &Status) -> String {
        let mut text = String::new();
        // Writing to memory does not fail.
        let _ = encode_registry(&mut text, &of_engine(status));
        let _ = encode_registry(&mut text, &self.registry);
        let _ = encode_eof(&mut text);
        text
    }
}

fn of_engine(status: &Status) -> Registry {
    let mut registry = Registry::with_prefix(PREFIX);
    let counters = [
        ("steps", "Steps", status.steps),
        ("computed_tokens", "Tokens that were computed, with those of prompts and of drafts", status.computed_tokens),
        ("answer_tokens", "Tokens of answers", status.answer_tokens),
        ("prompt_tokens", "Tokens of prompts", status.batcher.prompt_tokens),
        ("cached_prompt_tokens", "Tokens of prompts that were in the cache", status.batcher.cached_tokens),
        ("drafted_tokens", "Tokens that were drafted", status.drafted_tokens),
        ("accepted_tokens", "Drafted tokens that were accepted", status.accepted_tokens),
        ("preemptions", "Sequences that lost their blocks to others", status.batcher.preemptions),
    ];
    for (name, help, value) in counters {
        registry.register(name, help, ConstCounter::new(value));
    }
    let time = ConstCounter::new(status.step_time.as_secs_f64());
    registry.register_with_unit("step", "Time in steps", Unit::Seconds, time);
    let gauges = [
        ("batch_sequences", "Sequences of the last step", status.batch),
        ("running_sequences", "Sequences that are computed", status.batcher.running),
        ("waiting_sequences", "Sequences that wait", status.batcher.waiting),
        ("free_blocks", "Blocks of the cache with no content", status.batcher.free_blocks),
        ("cached_blocks", "Blocks of the cache with a prefix that no sequence uses", status.batcher.cached_blocks),
        ("used_blocks", "Blocks of the cache that sequences use", status.batcher.used_blocks),
        ("used_draft_blocks", "Blocks of the draft model's cache that sequences use", status.draft_blocks),
        ("queued_bytes", "Memory of requests that wait", status.queued_bytes),
    ];
    for (name, help, value) in gauges {
        registry.register(name, help, ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX)));
    }
    let stalled = status.stalled.map_or(0.0, |stalled| stalled.as_secs_f64());
    registry.register_with_unit(
        "step_age",
        "Time since the step began that runs",
        Unit::Seconds,
        ConstGauge::new(stalled),
    );
    registry
}
