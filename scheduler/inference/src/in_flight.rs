//! Request in flight: submitted to its model, and not over yet.

use omni_body::BodyPermit;
use omni_engine_protocol::frame::{CancelReason, INITIAL_CREDIT};
use omni_policy::dispatch::RequestId;
use omni_supervisor::metrics::Api;
use omni_supervisor::model::Model;
use std::sync::Arc;
use std::time::Instant;

/// Submitted request, held for its client. Dropped before its end, it is cancelled.
#[derive(Debug)]
pub(crate) struct InFlightRequest {
    model: Arc<Model>,
    api: Api,
    id: RequestId,
    arrived: Instant,
    deadline: Instant,
    /// Reason for the cancellation when it is dropped; `None` once its end is known.
    reason: Option<CancelReason>,
    /// Credit of consumed chunks that was not returned to the model yet.
    unacknowledged: usize,
    /// Permit for the memory of the request's body.
    permit: Option<BodyPermit>,
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
        Self { model: Arc::clone(model), api, id, arrived, deadline, reason, unacknowledged: 0, permit }
    }

    /// Returns the credit of consumed chunks to the model, in portions.
    pub(crate) fn on_consumed(&mut self, cost: usize) {
        self.unacknowledged += cost;
        if self.unacknowledged >= INITIAL_CREDIT / 4 {
            self.model.signals.credit(self.id, u32::try_from(self.unacknowledged).unwrap_or(u32::MAX));
            self.unacknowledged = 0;
        }
    }

    /// Notes that the model has ended the request.
    pub(crate) fn on_end(&mut self) {
        self.reason = None;
    }

    /// Notes that the model has ended the stream, and counts the outcome. `complete`: nothing of it is missing.
    pub(crate) fn on_stream_end(&mut self, complete: bool) {
        self.on_end();
        let metrics = &self.model.metrics;
        if complete {
            metrics.outcomes(self.api).ok.inc()
        } else {
            metrics.outcomes(self.api).error.inc()
        };
        metrics.total_time.observe(self.arrived.elapsed().as_secs_f64());
    }

    /// Ends the request before the model has: the rest of its answer is not needed. Counts it as complete.
    pub(crate) fn end_early(&mut self) {
        self.cancel_uncounted();
        self.on_stream_end(true);
    }

    /// Cancels the request, whose outcome the caller counts.
    pub(crate) fn cancel_uncounted(&mut self) {
        if let Some(reason) = self.reason.take() {
            self.model.signals.cancel(self.id, reason);
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
            self.model.signals.cancel(self.id, reason);
            self.model.metrics.outcomes(self.api).cancelled.inc();
        }
    }
}
