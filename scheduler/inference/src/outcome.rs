//! Outcomes of requests that failed, as metrics and in the log of the model.

use omni_request_error::Failure;
use omni_supervisor::clock::unix_ms;
use omni_supervisor::metrics::Api;
use omni_supervisor::model::Model;
use std::sync::Arc;
use std::time::Instant;

/// Outcome of a client's request that is under way. It is counted once; dropped before it is known, the request counts as
/// cancelled: its client has left.
#[derive(Debug)]
pub(crate) struct PendingOutcome {
    model: Arc<Model>,
    api: Api,
    arrived: Instant,
    /// The outcome was counted, or is the caller's to count.
    known: bool,
}

impl PendingOutcome {
    pub(crate) fn new(model: &Arc<Model>, api: Api, arrived: Instant) -> Self {
        Self { model: Arc::clone(model), api, arrived, known: false }
    }

    /// Model of the request.
    pub(crate) fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// API of the request.
    pub(crate) fn api(&self) -> Api {
        self.api
    }

    /// Counts the end of an answer at this time. `complete`: nothing of it is missing.
    pub(crate) fn on_end(&mut self, complete: bool, now: Instant) {
        self.known = true;
        let metrics = &self.model.metrics;
        let outcomes = metrics.outcomes(self.api);
        if complete {
            outcomes.ok.inc()
        } else {
            outcomes.error.inc()
        };
        metrics.observe_total(now.saturating_duration_since(self.arrived));
    }

    /// Leaves the outcome to the caller, who has the failure.
    pub(crate) fn leave(&mut self) {
        self.known = true;
    }
}

impl Drop for PendingOutcome {
    fn drop(&mut self) {
        if !self.known {
            self.model.metrics.outcomes(self.api).cancelled.inc();
        }
    }
}

/// Counts a request that failed. A failure of the model is in its log, where its author sees it.
pub(crate) fn count_failure(model: &Model, api: Api, failure: &Failure, id: &[u8]) {
    count(model, api, failure);
    if matches!(failure, Failure::Died | Failure::AnswerNotSendable(_)) {
        log_for_author(model, failure.to_string(), id);
    }
}

/// Adds the reason for a failure to the model's log, where its author sees it.
pub(crate) fn log_for_author(model: &Model, text: String, id: &[u8]) {
    let (unix_ms, stream) = (unix_ms(), "node".to_owned());
    let request_id = Some(String::from_utf8_lossy(id).into_owned());
    let entry = omni_control_api::LogEntry { unix_ms, instance: String::new(), stream, request_id, text };
    model.logs.push(entry);
}

/// Counts the outcome of a request that failed, by its cause.
fn count(model: &Model, api: Api, failure: &Failure) {
    let outcomes = model.metrics.outcomes(api);
    match failure {
        Failure::Died
        | Failure::SuccessorDied
        | Failure::Raised
        | Failure::AnswerNotSendable(_)
        | Failure::Handler { .. }
        | Failure::Cancelled => outcomes.error.inc(),
        Failure::Deadline | Failure::DeadlineBuilding { .. } => outcomes.cancelled.inc(),
        Failure::NoHost
        | Failure::UnknownHost { .. }
        | Failure::OtherSite
        | Failure::HeadTooLarge
        | Failure::NoSuchRoute
        | Failure::MethodNotAllowed { .. }
        | Failure::NoSuchModel
        | Failure::NoSuchJob(_)
        | Failure::JobsFull(_)
        | Failure::JobsUnavailable
        | Failure::Unauthorized
        | Failure::ModelNotAllowed
        | Failure::TooManyRequests { .. }
        | Failure::BadRequest(_)
        | Failure::InvalidRequest(_)
        | Failure::BodyTimeout
        | Failure::BodyEncoded { .. }
        | Failure::BodyTooLarge { .. }
        | Failure::QueueFull { .. }
        | Failure::NodeBusy
        | Failure::UploadsFull
        | Failure::UsageNotKept
        | Failure::AnswerNotKept
        | Failure::CannotStart { .. }
        | Failure::NoRoom { .. }
        | Failure::NeverRoom
        | Failure::NoGpuMemory { .. }
        | Failure::NoFittingGpu
        | Failure::ShuttingDown => outcomes.refused.inc(),
    };
}
