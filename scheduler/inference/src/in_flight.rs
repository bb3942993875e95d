//! Request in flight: submitted to its model, and not over yet.

use crate::outcome::PendingOutcome;
use omni_body::BodyPermit;
use omni_engine_protocol::frame::{CancelReason, INITIAL_CREDIT};
use omni_policy::dispatch::RequestId;
use omni_supervisor::metrics::Api;
use omni_supervisor::model::Model;
use std::sync::Arc;
use std::time::Instant;
use tokio::task::AbortHandle;

/// Submitted request, held for its client. Dropped before its end, it is cancelled.
#[derive(Debug)]
pub(crate) struct InFlightRequest {
    model: Arc<Model>,
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
    outcome: PendingOutcome,
}

impl InFlightRequest {
    /// A request that is about to be submitted.
    pub(crate) fn new(
        model: &Arc<Model>,
        (api, id): (Api, RequestId),
        arrived: Instant,
        deadline: Instant,
        permit: Option<BodyPermit>,
    ) -> Self {
        let reason = Some(CancelReason::ClientGone);
        let outcome = PendingOutcome::new(model, api, arrived);
        Self { model: Arc::clone(model), id, deadline, reason, unacknowledged: 0, permit, expiry: None, outcome }
    }

    /// Cancels the request at its deadline if it has not ended by then. A streamed answer needs this: its body is
    /// polled only while the client reads.
    pub(crate) fn cancel_at_deadline(&mut self) {
        let (model, id, deadline) = (Arc::clone(&self.model), self.id, self.deadline);
        let expiry = tokio::spawn(async move {
            tokio::time::sleep_until(deadline.into()).await;
            model.signals.cancel(id, CancelReason::Deadline);
        });
        self.expiry = Some(expiry.abort_handle());
    }

    /// Returns the credit of consumed chunks to the model, in portions.
    pub(crate) fn on_consumed(&mut self, cost: usize) {
        self.unacknowledged += cost;
        if self.unacknowledged >= INITIAL_CREDIT / 4 {
            self.model.signals.credit(self.id, u32::try_from(self.unacknowledged).unwrap_or(u32::MAX));
            self.unacknowledged = 0;
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

    /// Notes that the model has ended the stream, and counts the outcome. `complete`: nothing of it is missing.
    pub(crate) fn on_stream_end(&mut self, complete: bool) {
        self.outcome.on_end(complete);
        self.on_end();
    }

    /// Notes that the client has the whole answer, and counts the outcome. The request goes on until its model ends it.
    pub(crate) fn on_all_read(&mut self) {
        self.outcome.on_end(true);
    }

    /// Cancels the request, whose outcome the caller counts.
    pub(crate) fn cancel_uncounted(&mut self) {
        self.leave_outcome();
        if let Some(reason) = self.reason.take() {
            self.cancel(reason);
        }
    }

    /// Cancels the request, unless that was done at its deadline.
    fn cancel(&mut self, reason: CancelReason) {
        if !self.expiry.as_ref().is_some_and(AbortHandle::is_finished) {
            self.model.signals.cancel(self.id, reason);
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
    }
}
