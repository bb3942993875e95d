//! Attempt at a request: collects what its usage record says, and writes it before the last byte of the answer leaves.

use crate::trace::{AttemptEnd, AttemptTrace};
use omni_auth::TokenHolder;
use omni_engine_client::Execution;
use omni_supervisor::clock::unix_ms;
use omni_supervisor::metrics::Api;
use omni_supervisor::model::Model;
use omni_traces::TraceId;
use omni_usage::{Outcome, Units, UsageRecord, UsageRecorder};
use std::sync::Arc;
use std::time::Instant;

/// Attempt at a request, from its submission to its end.
#[derive(Debug)]
pub(crate) struct Attempt {
    recorder: Arc<UsageRecorder>,
    request_id: String,
    holder: Option<Arc<TokenHolder>>,
    trace_id: Option<TraceId>,
    /// Spans of an attempt that is recorded.
    pub(crate) trace: Option<AttemptTrace>,
    submitted: Instant,
    execution: Execution,
    /// The model has memory of a card.
    has_gpu: bool,
    /// Units used so far.
    pub(crate) units: Units,
}

impl Attempt {
    /// An attempt that is submitted at this time.
    pub(crate) fn new(
        recorder: &Arc<UsageRecorder>,
        (request_id, holder): (&[u8], Option<&Arc<TokenHolder>>),
        (trace_id, trace): (Option<TraceId>, Option<AttemptTrace>),
        (submitted, execution): (Instant, Execution),
        (has_gpu, bytes_in): (bool, u64),
    ) -> Self {
        Self {
            recorder: Arc::clone(recorder),
            request_id: String::from_utf8_lossy(request_id).into_owned(),
            holder: holder.cloned(),
            trace_id,
            trace,
            submitted,
            execution,
            has_gpu,
            units: Units { bytes_in, ..Units::default() },
        }
    }

    /// Writes the record of an attempt that ends at this time.
    pub(crate) fn record(mut self, (model, api): (&Model, Api), outcome: Outcome, now: Instant) {
        let (sent, reported) = self.execution.take();
        let sent_at = sent.as_ref().map_or(now, |sent| sent.at);
        let run_seconds = UsageRecord::seconds(now.saturating_duration_since(sent_at));
        self.units.gpu_seconds = if self.has_gpu { run_seconds } else { 0.0 };
        self.units.reported = reported.into_iter().collect();
        if let Some(trace) = self.trace.take() {
            let (submitted, sent, units) = (self.submitted, sent.as_ref(), &self.units);
            trace.record((model.name.as_str(), api), &AttemptEnd { submitted, sent, ended: now, outcome, units });
        }
        let unix_ms = unix_ms();
        let trace_id = self.trace_id.map(|id| id.to_string());
        self.recorder.record(&UsageRecord {
            id: UsageRecord::new_id(unix_ms),
            request_id: self.request_id.as_str().into(),
            ended_unix_ms: unix_ms,
            api: api.label().into(),
            model: model.name.as_str().into(),
            version: sent.as_ref().map(|sent| sent.instance.version.as_str().into()),
            instance: sent.as_ref().map(|sent| sent.instance.id.as_str().into()),
            token: self.holder.as_ref().map(|holder| holder.name().into()),
            trace_id: trace_id.as_deref().map(Into::into),
            outcome,
            queue_seconds: UsageRecord::seconds(sent_at.saturating_duration_since(self.submitted)),
            run_seconds,
            units: self.units,
        });
    }
}
