//! Request in flight: submitted to its model, and not over yet.

use crate::attempt::Attempt;
use crate::outcome::PendingOutcome;
use crate::trace::AttemptTrace;
use omni_body::{BodyPermit, Chunks};
use omni_engine_protocol::frame::{CancelReason, INITIAL_CREDIT};
use omni_policy::dispatch::RequestId;
use omni_request_error::Failure;
use omni_supervisor::metrics::Api;
use omni_supervisor::model::Model;
use omni_supervisor::model::interactive::InteractiveRequest;
use omni_usage::{Outcome, Tokens, Units};
use std::sync::Arc;
use std::time::Instant;
use tokio::task::AbortHandle;

/// Submitted request, held for its client. Dropped before its end, it is cancelled.
#[derive(Debug)]
pub(crate) struct InFlightRequest {
    id: RequestId,
    deadline: Instant,
    /// Reason for the cancellation when it is dropped; `None` once its end is known.
    reason: Option<CancelReason>,
    /// Credit of consumed chunks that was not returned to the model yet.
    unacknowledged: usize,
    /// Permit for the memory of the request's body.
    permit: Option<BodyPermit>,
    /// Task that cancels the request at its deadline. Finished once it has.
    expiry: Option<AbortHandle>,
    /// Outcome, with the model and the API of the request.
    outcome: PendingOutcome,
    /// `None` once its record is written.
    attempt: Option<Box<Attempt>>,
    /// Place among the requests that clients wait for; `None`: it is an item of a batch.
    _interactive: Option<InteractiveRequest>,
}

impl InFlightRequest {
    /// A request that is about to be submitted.
    pub(crate) fn new(
        model: &Arc<Model>,
        (api, id): (Api, RequestId),
        arrived: Instant,
        deadline: Instant,
        permit: Option<BodyPermit>,
        (attempt, is_item): (Attempt, bool),
    ) -> Self {
        let (outcome, attempt) = (PendingOutcome::new(model, api, arrived), Some(Box::new(attempt)));
        let reason = Some(CancelReason::ClientGone);
        let interactive = (!is_item).then(|| model.interactive.begin());
        Self {
            id,
            deadline,
            reason,
            unacknowledged: 0,
            permit,
            expiry: None,
            outcome,
            attempt,
            _interactive: interactive,
        }
    }

    /// Cancels the request at its deadline if it has not ended by then. A streamed answer needs this: its body is
    /// polled only while the client reads.
    pub(crate) fn cancel_at_deadline(&mut self) {
        let (model, id, deadline) = (Arc::clone(self.outcome.model()), self.id, self.deadline);
        let expiry = tokio::spawn(async move {
            tokio::time::sleep_until(deadline.into()).await;
            model.signals.cancel(id, CancelReason::Deadline);
        });
        self.expiry = Some(expiry.abort_handle());
    }

    /// Returns the credit of consumed chunks to the model, in portions.
    pub(crate) fn on_consumed(&mut self, chunks: &Chunks) {
        self.on_bytes(chunks.byte_length());
        self.unacknowledged += chunks.cost();
        if self.unacknowledged >= INITIAL_CREDIT / 4 {
            self.outcome.model().signals.credit(self.id, u32::try_from(self.unacknowledged).unwrap_or(u32::MAX));
            self.unacknowledged = 0;
        }
    }

    /// Notes that so many bytes of the answer have come.
    pub(crate) fn on_bytes(&mut self, bytes: usize) {
        if let Some(units) = self.units() {
            units.bytes_out += bytes as u64;
        }
    }

    /// Notes the tokens of the request and its answer.
    pub(crate) fn on_tokens(&mut self, tokens: Tokens) {
        if let Some(units) = self.units() {
            units.tokens = Some(tokens);
        }
    }

    /// Units used by the request; `None` once its record is written.
    pub(crate) fn units(&mut self) -> Option<&mut Units> {
        self.attempt.as_mut().map(|attempt| &mut attempt.units)
    }

    /// Spans of the request, if it is recorded.
    pub(crate) fn trace(&mut self) -> Option<&mut AttemptTrace> {
        self.attempt.as_mut()?.trace.as_mut()
    }

    /// Writes the record, once.
    fn record(&mut self, outcome: Outcome, now: Instant) {
        if let Some(attempt) = self.attempt.take() {
            attempt.record((self.outcome.model(), self.outcome.api()), outcome, now);
        }
    }

    /// Leaves the outcome to the caller: this is one of several requests that serve one of a client, or it has failed.
    pub(crate) fn leave_outcome(&mut self) {
        self.outcome.leave();
    }

    /// Notes that the model has ended the request, whose outcome the caller counts.
    pub(crate) fn on_end(&mut self) {
        self.leave_outcome();
        self.reason = None;
        self.stop_expiry();
    }

    /// Notes that nobody got the request: it was refused, or goes to the successor, which writes the record.
    pub(crate) fn on_not_sent(&mut self) {
        self.on_end();
        self.attempt = None;
    }

    /// Notes that the model has answered to the end. The caller counts the outcome.
    pub(crate) fn on_complete(&mut self) {
        self.on_end();
        self.record(Outcome::Complete, Instant::now());
    }

    /// Notes that the answer has broken off. The caller counts the outcome.
    pub(crate) fn on_failed_end(&mut self, failure: &Failure) {
        self.on_end();
        let outcome = if *failure == Failure::Deadline { Outcome::Deadline } else { Outcome::Failed };
        self.record(outcome, Instant::now());
    }

    /// Notes that the model has ended the stream, and counts the outcome. `complete`: nothing of it is missing.
    pub(crate) fn on_stream_end(&mut self, complete: bool) {
        let now = Instant::now();
        self.outcome.on_end(complete, now);
        self.on_end();
        self.record(if complete { Outcome::Complete } else { Outcome::Failed }, now);
    }

    /// Notes that the client has the whole answer, and counts the outcome. The request goes on until its model ends it.
    pub(crate) fn on_all_read(&mut self) {
        let now = Instant::now();
        self.outcome.on_end(true, now);
        self.record(Outcome::Complete, now);
    }

    /// Ends the request before the model has: the rest of its answer is not needed. The caller counts the outcome.
    pub(crate) fn end_early(&mut self) {
        self.stop();
        self.record(Outcome::Complete, Instant::now());
    }

    /// Cancels the request, whose outcome the caller counts.
    pub(crate) fn cancel_uncounted(&mut self) {
        self.stop();
        self.record(Outcome::Failed, Instant::now());
    }

    /// Cancels the request, unless its end is known. The caller counts the outcome.
    fn stop(&mut self) {
        self.leave_outcome();
        if let Some(reason) = self.reason.take() {
            self.cancel(reason);
        }
    }

    /// Cancels the request, unless that was done at its deadline.
    fn cancel(&mut self, reason: CancelReason) {
        if !self.expiry.as_ref().is_some_and(AbortHandle::is_finished) {
            self.outcome.model().signals.cancel(self.id, reason);
        }
        self.stop_expiry();
    }

    fn stop_expiry(&mut self) {
        if let Some(expiry) = self.expiry.take() {
            expiry.abort();
        }
    }

    /// Notes that the deadline has passed: the reason for the cancellation.
    pub(crate) fn on_deadline(&mut self) {
        self.reason = Some(CancelReason::Deadline);
        self.record(Outcome::Deadline, Instant::now());
    }

    /// Frees the memory of the request's body, which is not sent again.
    pub(crate) fn release_body(&mut self) {
        self.permit = None;
    }

    /// End of the client's wait.
    #[must_use]
    pub(crate) fn deadline(&self) -> Instant {
        self.deadline
    }
}

impl Drop for InFlightRequest {
    fn drop(&mut self) {
        if let Some(reason) = self.reason {
            self.cancel(reason);
        }
        if self.attempt.is_some() {
            // A request that the model has ended, and whose answer could not be kept, has failed.
            self.record(if self.reason.is_some() { Outcome::Cancelled } else { Outcome::Failed }, Instant::now());
        }
    }
}
