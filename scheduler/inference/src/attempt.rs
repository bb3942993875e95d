//! Attempt at a request: collects what its usage record says, and writes it before the last byte of the answer leaves.

use omni_auth::TokenHolder;
use omni_engine_client::Execution;
use omni_supervisor::clock::unix_ms;
use omni_supervisor::metrics::Api;
use omni_supervisor::model::Model;
use omni_usage::{Outcome, Units, UsageRecord, UsageRecorder};
use std::sync::Arc;
use std::time::Instant;

/// Attempt at a request, from its submission to its end.
#[derive(Debug)]
pub(crate) struct Attempt {
    recorder: Arc<UsageRecorder>,
    request_id: String,
    holder: Option<Arc<TokenHolder>>,
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
        submitted: Instant,
        execution: Execution,
        (has_gpu, bytes_in): (bool, u64),
    ) -> Self {
        Self {
            recorder: Arc::clone(recorder),
            request_id: String::from_utf8_lossy(request_id).into_owned(),
            holder: holder.cloned(),
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
        let unix_ms = unix_ms();
        self.recorder.record(&UsageRecord {
            id: UsageRecord::new_id(unix_ms),
            request_id: self.request_id.as_str().into(),
            ended_unix_ms: unix_ms,
            api: api.label().into(),
            model: model.name.as_str().into(),
            version: sent.as_ref().map(|sent| sent.instance.version.as_str().into()),
            instance: sent.as_ref().map(|sent| sent.instance.id.as_str().into()),
            token: self.holder.as_ref().map(|holder| holder.name().into()),
            outcome,
            queue_seconds: UsageRecord::seconds(sent_at.saturating_duration_since(self.submitted)),
            run_seconds,
            units: self.units,
        });
    }
}
