//! The requests of a model: their order and places ([`Dispatch`]), their contents and answers ([`RequestTable`]).

use crate::model::Submission;
use omni_engine_client::{DataConnection, RequestTable};
use omni_engine_protocol::frame::CancelReason;
use omni_policy::batching::Candidate;
use omni_policy::dispatch::{Admission, Cancelled, Dispatch, RequestId, Ticket};
use omni_policy::{InstanceNumber, Moment};
use omni_request_error::Failure;
use std::time::Duration;

/// Request ids that are named with a stack.
const MAX_NAMED: usize = 4;
/// Lower bound of the numbers of batches: they share their space with those of requests, which are counted from 1.
const FIRST_BATCH: u64 = 1 << 63;
/// Retry hint while nothing is known of the handler's time.
const UNKNOWN_TIME: Duration = Duration::from_secs(1);

/// Requests that wait or are in flight.
///
/// Invariant: a request that dispatch has is in the table, until its last frame or its failure.
#[derive(Debug, Default)]
pub(super) struct Requests {
    pub(super) dispatch: Dispatch,
    pub(super) table: RequestTable,
    /// Batches that were sent.
    batches: u64,
}

/// Result of a cancellation.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Cancellation {
    /// The request is gone.
    Done,
    /// The cancellation has to be sent to this instance.
    InFlight(InstanceNumber),
}

impl Requests {
    /// Queues a request with its deadline. Returns `false` if the queue is full, which its client is told.
    pub(super) fn submit(&mut self, submission: Submission, deadline: Moment, now: Moment) -> bool {
        let Submission { id, priority, session, cost, request } = submission;
        let candidate = cost.map(|cost| Candidate { cost, deadline });
        let ticket = Ticket { id, priority, session, candidate };
        self.table.insert(ticket.id, request);
        match self.dispatch.submit(ticket, now) {
            Admission::Queued => true,
            Admission::Full => {
                let retry_after = self.dispatch.average_time().unwrap_or(UNKNOWN_TIME);
                self.table.fail(ticket.id, &Failure::QueueFull { retry_after });
                false
            }
        }
    }

    /// Cancels a request that nobody waits for, or whose deadline has passed.
    pub(super) fn cancel(&mut self, id: RequestId, reason: CancelReason, now: Moment) -> Cancellation {
        if reason == CancelReason::Deadline {
            self.table.expire(id);
        }
        match self.dispatch.cancel(id, now) {
            Cancelled::Dequeued => {
                self.table.fail(id, &Failure::Cancelled);
                Cancellation::Done
            }
            Cancelled::Unknown => Cancellation::Done,
            Cancelled::InFlight(number) => Cancellation::InFlight(number),
        }
    }

    /// Returns a request that waits for its turn alone to its submitter. Returns `false` for one that is to be sent.
    pub(super) fn return_turn(&mut self, id: RequestId) -> bool {
        let is_turn = self.table.return_turn(id);
        if is_turn {
            self.dispatch.withdraw(id);
        }
        is_turn
    }

    /// Refuses a request with a parameter that an instance of this version of its protocol does not know. Returns `false` for
    /// one that can be sent to it.
    pub(super) fn refuse_newer(&mut self, id: RequestId, version: u32) -> bool {
        let is_refused = self.table.refuse_newer(id, version);
        if is_refused {
            self.dispatch.withdraw(id);
        }
        is_refused
    }

    /// Fails every request that waits.
    pub(super) fn refuse_waiting(&mut self, failure: &Failure) {
        for id in self.dispatch.drain_queue() {
            self.table.fail(id, failure);
        }
    }

    /// Returns every request that waits to its submitter, who sends it to the next scheduler.
    pub(super) fn return_waiting(&mut self) {
        for id in self.dispatch.drain_queue() {
            self.table.return_unsent(id);
        }
    }

    /// Queues requests again of which not one byte was written to a connection, and the other members of their batches.
    pub(super) fn requeue_unsent(&mut self, connection: &DataConnection) {
        for id in connection.unsent().flat_map(|id| self.dispatch.sent_with(RequestId(id))).collect::<Vec<_>>() {
            if self.table.can_be_sent(id) {
                self.dispatch.requeue(id);
            }
        }
    }

    /// Number of a new batch. Those of requests are below it.
    pub(super) fn next_batch(&mut self) -> u64 {
        self.batches += 1;
        FIRST_BATCH + self.batches
    }

    /// Fails the requests that an instance may have begun; nothing more comes from it.
    pub(super) fn remove_instance(&mut self, number: InstanceNumber) {
        let lost = self.dispatch.remove_instance(number);
        for id in lost.failed {
            self.table.fail(id, &Failure::Died);
        }
        for id in lost.dropped {
            self.table.forget(id);
        }
    }

    /// Requests in flight on an instance, those of the previous scheduler not included.
    pub(super) fn in_flight_of(&self, number: InstanceNumber) -> u32 {
        u32::try_from(self.dispatch.in_flight_of(number)).unwrap_or(u32::MAX)
    }

    /// Ids, as clients know them, of the requests that most likely keep an instance busy.
    pub(super) fn suspects(&self, number: InstanceNumber) -> Vec<&str> {
        let ids = self.dispatch.suspects(number);
        ids.into_iter().filter_map(|id| self.table.client_id(id)).take(MAX_NAMED).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use omni_body::{BodyKind, RequestBody};
    use omni_engine_client::{Execution, NewerParameter, Request, Unanswered};
    use omni_engine_protocol::frame::RequestHead;
    use omni_policy::dispatch::{HandlerMode, Members};
    use std::time::Instant;
    use tokio::sync::oneshot::{self, Receiver};

    type Client = Receiver<Result<omni_engine_client::Answer, Unanswered>>;

    fn submission(id: u64) -> (Submission, Client) {
        let (reply, client) = oneshot::channel();
        let head = RequestHead {
            kind: None,
            id: format!("client-{id}"),
            method: "POST".to_owned(),
            timeout_ms: 0,
            session: None,
            headers: Vec::new(),
            body_length: None,
            body_handed: false,
            parameters: None,
        };
        let body = RequestBody::Collected(BodyKind::Json, Bytes::from_static(b"{}"));
        let execution = Execution::default();
        let request =
            Request { head, body, awaits_turn: false, newer: None, deadline: Instant::now(), reply, execution };
        (Submission { id: RequestId(id), priority: 0, session: None, cost: None, request }, client)
    }

    fn requests(queue: u32) -> Requests {
        let mut requests = Requests::default();
        requests.dispatch.set_bounds(queue, 0);
        requests
    }

    #[test]
    fn a_request_beyond_the_queue_is_refused_at_once() {
        let mut requests = requests(1);
        let ((first, mut waits), (second, mut refused)) = (submission(1), submission(2));
        assert!(
            requests.submit(first, Moment::MAX, Moment::ZERO) && !requests.submit(second, Moment::MAX, Moment::ZERO)
        );
        assert!(waits.try_recv().is_err(), "it waits");
        let failure = refused.try_recv().unwrap();
        assert!(matches!(failure, Err(Unanswered::Failed(Failure::QueueFull { .. }))));
        requests.refuse_waiting(&Failure::ShuttingDown);
        assert!(matches!(waits.try_recv().unwrap(), Err(Unanswered::Failed(Failure::ShuttingDown))));
    }

    #[test]
    fn a_turn_is_returned_once_and_what_is_to_be_sent_is_not() {
        let mut requests = requests(2);
        let ((first, mut turn), (second, mut waits)) = (submission(1), submission(2));
        let first = Submission { request: Request { awaits_turn: true, ..first.request }, ..first };
        for submission in [first, second] {
            assert!(requests.submit(submission, Moment::MAX, Moment::ZERO));
        }
        let (mode, number) = (HandlerMode::Concurrent, InstanceNumber(1));
        requests.dispatch.enable(number, 0, mode, 1);
        let next = |requests: &mut Requests| match requests.dispatch.next(Moment::ZERO, |_| true)?.requests {
            Members::One(id) => Some(id),
            Members::Batch(_) => None,
        };
        assert_eq!(next(&mut requests), Some(RequestId(1)));
        assert!(requests.return_turn(RequestId(1)) && !requests.return_turn(RequestId(1)));
        assert!(matches!(turn.try_recv().unwrap(), Err(Unanswered::Turn)));
        assert_eq!(next(&mut requests), Some(RequestId(2)), "the place is free again");
        assert!(!requests.return_turn(RequestId(2)) && waits.try_recv().is_err());
    }

    #[test]
    fn a_parameter_is_not_sent_to_an_instance_that_does_not_know_it() {
        let mut requests = requests(1);
        let (mode, number) = (HandlerMode::Concurrent, InstanceNumber(1));
        requests.dispatch.enable(number, 0, mode, 1);
        for (newer, version, is_refused) in [(None, 1, false), (Some(2), 2, false), (Some(2), 1, true)] {
            let (submission, mut client) = submission(1);
            let newer = newer.map(|since| NewerParameter { name: "echo", since });
            let submission = Submission { request: Request { newer, ..submission.request }, ..submission };
            assert!(requests.submit(submission, Moment::MAX, Moment::ZERO));
            assert!(requests.dispatch.next(Moment::ZERO, |_| true).is_some(), "the only place is free");
            assert_eq!(requests.refuse_newer(RequestId(1), version), is_refused, "{newer:?}");
            if !is_refused {
                assert!(client.try_recv().is_err(), "it is to be sent");
                requests.dispatch.withdraw(RequestId(1));
                requests.table.forget(RequestId(1));
                continue;
            }
            let Ok(Err(Unanswered::Failed(Failure::InvalidRequest(refusal)))) = client.try_recv() else { panic!() };
            assert_eq!(refusal.parameter.as_deref(), Some("echo"));
            assert!(refusal.message.contains("earlier release"), "{refusal:?}");
            assert_eq!((requests.dispatch.in_flight(), requests.dispatch.waiting()), (0, 0));
        }
    }

    #[test]
    fn a_waiting_request_is_cancelled_at_once_and_returned_at_a_hand_over() {
        let mut requests = requests(3);
        let ((first, mut cancelled), (second, mut returned)) = (submission(1), submission(2));
        let (third, mut expired) = submission(3);
        assert!(requests.submit(third, Moment::MAX, Moment::ZERO));
        assert_eq!(requests.cancel(RequestId(3), CancelReason::Deadline, Moment::ZERO), Cancellation::Done);
        assert!(matches!(expired.try_recv().unwrap(), Err(Unanswered::Failed(Failure::Deadline))));
        assert!(
            requests.submit(first, Moment::MAX, Moment::ZERO) && requests.submit(second, Moment::MAX, Moment::ZERO)
        );
        assert_eq!(requests.cancel(RequestId(1), CancelReason::ClientGone, Moment::ZERO), Cancellation::Done);
        assert!(matches!(cancelled.try_recv().unwrap(), Err(Unanswered::Failed(Failure::Cancelled))));
        assert_eq!(requests.dispatch.waiting(), 1);
        requests.return_waiting();
        assert!(matches!(returned.try_recv().unwrap(), Err(Unanswered::NotSent(_))));
    }
}
