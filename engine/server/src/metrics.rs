//! Metrics of the engine, the same for a node and alone.

use crate::engine::Status;
use omni_engine_protocol::metrics::MetricKind;

/// Metric.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Metric {
    /// Name without the prefix of the engine.
    pub(crate) name: &'static str,
    /// Meaning, as a line of the metrics' text.
    pub(crate) help: &'static str,
    pub(crate) kind: MetricKind,
    pub(crate) value: f64,
}

/// Metrics of a moment.
pub(crate) fn metrics(status: &Status) -> Vec<Metric> {
    let batcher = &status.batcher;
    let count = |name, help, value: u64| Metric { name, help, kind: MetricKind::Counter, value: value as f64 };
    let gauge = |name, help, value: usize| Metric { name, help, kind: MetricKind::Gauge, value: value as f64 };
    vec![
        gauge("batch_sequences", "Sequences of the last step", status.batch),
        gauge("running_sequences", "Sequences that are computed", batcher.running),
        gauge("waiting_sequences", "Sequences that wait", batcher.waiting),
        gauge(
            "queued_bytes",
            "Memory of requests that wait, and of log probabilities of prompts until they are read",
            status.queued_bytes,
        ),
        gauge("kv_blocks_free", "Blocks of the cache with no content", batcher.free_blocks),
        gauge("kv_blocks_cached", "Blocks of the cache with a prefix that no sequence uses", batcher.cached_blocks),
        gauge("kv_blocks_used", "Blocks of the cache that sequences use", batcher.used_blocks),
        gauge("kv_blocks_used_by_drafts", "Blocks of the draft model's cache that sequences use", status.draft_blocks),
        count("prompt_tokens", "Tokens of prompts", batcher.prompt_tokens),
        count("prompt_tokens_cached", "Tokens of prompts that were in the cache", batcher.cached_tokens),
        count("answer_tokens", "Tokens of answers", status.answer_tokens),
        count("computed_tokens", "Tokens that were computed, with those of prompts and drafts", status.computed_tokens),
        count("drafted_tokens", "Tokens that were drafted", status.drafted_tokens),
        count("drafted_tokens_accepted", "Drafted tokens that were accepted", status.accepted_tokens),
        count("preemptions", "Sequences that lost their blocks to others", batcher.preemptions),
        count("steps", "Steps", status.steps),
        Metric {
            name: "step_seconds",
            help: "Time in steps",
            kind: MetricKind::Counter,
            value: status.step_time.as_secs_f64(),
        },
        Metric {
            name: "step_age_seconds",
            help: "Time since the step began that runs",
            kind: MetricKind::Gauge,
            value: status.stalled.map_or(0.0, |stalled| stalled.as_secs_f64()),
        },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_all_metrics() {
        let page = include_str!("../../../docs/native-engine.md");
        for Metric { name, kind, .. } in metrics(&Status::default()) {
            let total = if kind == MetricKind::Counter { "_total" } else { "" };
            assert!(page.contains(&format!("`{name}{total}`")), "{name}");
        }
    }
}
