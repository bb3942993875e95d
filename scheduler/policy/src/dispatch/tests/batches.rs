//! Batches: their members, their waits, and handlers that ignore their cancellation.

use super::*;

const BOUNDS: BatchBounds = BatchBounds { requests: 4, cost: 10 };

fn member(id: u64, cost: u64) -> Ticket {
    let candidate = Some(Candidate { cost, deadline: Moment::MAX });
    Ticket { candidate, ..plain(RequestId(id)) }
}

/// Dispatch with one enabled instance, whose handler takes batches.
fn batching() -> Dispatch {
    ready(1, 99, HandlerMode::Batches(BOUNDS))
}

fn send(dispatch: &mut Dispatch, now: Moment) -> Vec<u64> {
    match dispatch.next(now, |_| true).map(|sending| sending.requests) {
        None => Vec::new(),
        Some(Members::One(id)) => vec![id.0],
        Some(Members::Batch(ids)) => ids.into_iter().map(|id| id.0).collect(),
    }
}

#[test]
fn an_instance_has_one_batch_at_a_time() {
    let mut dispatch = batching();
    for id in 0..7 {
        dispatch.submit(member(id, 1), Duration::ZERO);
    }
    assert_eq!(send(&mut dispatch, MS), [0, 1, 2, 3]);
    assert_eq!((send(&mut dispatch, MS), dispatch.in_flight(), dispatch.waiting()), (vec![], 4, 3));
    for id in [2, 0, 3] {
        assert_eq!(dispatch.finish(RequestId(id), 2 * MS), Some(ONE));
        assert_eq!(send(&mut dispatch, 2 * MS), [], "one of its members is not finished");
    }
    dispatch.finish(RequestId(1), 5 * MS);
    assert_eq!(dispatch.average_time(), Some(4 * MS), "from its sending to its end");
    assert_eq!(send(&mut dispatch, 5 * MS), [4, 5, 6]);
}

#[test]
fn a_batch_is_within_its_cost_and_free_seats_go_to_lower_priorities() {
    let mut dispatch = batching();
    for (id, cost, priority) in [(0, 4, 0), (1, 4, 0), (2, 5, 5), (3, 20, 9)] {
        dispatch.submit(Ticket { priority, ..member(id, cost) }, Duration::ZERO);
    }
    assert_eq!(send(&mut dispatch, MS), [3], "too large for any batch");
    dispatch.finish(RequestId(3), MS);
    assert_eq!(send(&mut dispatch, 9 * MS), [2, 0]);
}

#[test]
fn a_request_that_is_handled_alone_divides_the_batches() {
    let mut dispatch = batching();
    for id in 0..3 {
        dispatch.submit(member(id, 1), Duration::ZERO);
    }
    dispatch.submit(plain(RequestId(3)), Duration::ZERO);
    dispatch.submit(member(4, 1), Duration::ZERO);
    for (expected, last) in [(vec![0, 1, 2], 2), (vec![3], 3), (vec![4], 4)] {
        assert_eq!(send(&mut dispatch, MS), expected);
        for id in expected {
            dispatch.finish(RequestId(id), MS);
        }
        assert_eq!(dispatch.finish(RequestId(last), MS), None);
    }
}

#[test]
fn a_batch_waits_for_clients_that_return() {
    let mut dispatch = batching();
    let mut now = Duration::ZERO;
    let (mut clients, mut id, mut waited) = (3, 0, 0);
    for _ in 0..40 {
        for _ in 0..clients {
            now += MS / 20;
            dispatch.submit(member(id, 1), now);
            id += 1;
            waited += usize::from(send(&mut dispatch, now).is_empty() && dispatch.wakes_at().is_some());
        }
        while let Some(wakes_at) = dispatch.wakes_at() {
            now = wakes_at;
            send(&mut dispatch, now);
        }
        now += 5 * MS;
        let batch = dispatch.ids_in_flight(ONE);
        for id in &batch {
            dispatch.finish(*id, now);
        }
        clients = batch.len();
    }
    assert!(waited > 60, "{waited} of 120 requests waited for the others of their batch");
    let at = dispatch.wakes_at();
    assert_eq!(send(&mut dispatch, now), [], "the queue is empty");
    assert_eq!((dispatch.wakes_at(), at.is_none()), (None, true));
}

#[test]
fn an_arrival_counts_as_a_return_to_the_instance_whose_batch_ended_last() {
    let mut dispatch = batching();
    dispatch.enable(TWO, 98, HandlerMode::Batches(BOUNDS), 1);
    for (id, instance) in [(0, ONE), (1, TWO)] {
        dispatch.submit(member(id, 1), Duration::ZERO);
        assert_eq!((send(&mut dispatch, Duration::ZERO), dispatch.in_flight_of(instance)), (vec![id], 1));
    }
    let returned = |dispatch: &Dispatch| [0, 1].map(|at: usize| dispatch.routes[at].batcher.returned());
    dispatch.submit(member(2, 1), MS);
    assert_eq!(returned(&dispatch), [0, 0], "no batch has ended");
    dispatch.finish(RequestId(1), 5 * MS);
    dispatch.finish(RequestId(0), 5 * MS + MS / 4);
    dispatch.submit(member(3, 1), 5 * MS + MS / 2);
    assert_eq!(returned(&dispatch), [1, 0]);
    dispatch.submit(plain(RequestId(4)), 5 * MS + MS / 2);
    dispatch.submit(member(5, 1), 25 * MS);
    assert_eq!(returned(&dispatch), [1, 0], "it is handled alone, and long after");
}

#[test]
fn a_batch_is_stuck_once_all_of_its_members_are_cancelled() {
    let mut dispatch = batching();
    for id in 0..3 {
        dispatch.submit(member(id, 1), Duration::ZERO);
    }
    assert_eq!(send(&mut dispatch, MS), [0, 1, 2]);
    dispatch.cancel(RequestId(0), 2 * MS);
    dispatch.cancel(RequestId(1), 3 * MS);
    assert_eq!(
        (dispatch.cancelled_since(ONE), dispatch.write_off(ONE, SECOND)),
        (None, vec![]),
        "it serves one client"
    );
    dispatch.finish(RequestId(0), 4 * MS);
    dispatch.cancel(RequestId(2), 5 * MS);
    assert_eq!(dispatch.cancelled_since(ONE), Some(5 * MS));
    assert_eq!(dispatch.write_off(ONE, 4 * MS), []);
    assert_eq!(dispatch.write_off(ONE, 5 * MS), ids([1, 2]));
    assert_eq!(dispatch.stuck_handlers(ONE), Some(StuckHandlers { other_requests: false, free_slots: false }));
    dispatch.submit(member(3, 1), SECOND);
    assert_eq!(send(&mut dispatch, SECOND), []);
    dispatch.finish(RequestId(1), 2 * SECOND);
    dispatch.finish(RequestId(2), 2 * SECOND);
    assert_eq!((dispatch.stuck_handlers(ONE), send(&mut dispatch, 2 * SECOND)), (None, vec![3]));
}

#[test]
fn members_are_sent_together_and_lost_together() {
    let mut dispatch = batching();
    for id in 0..3 {
        dispatch.submit(member(id, 1), Duration::ZERO);
    }
    assert_eq!(dispatch.sent_with(RequestId(1)), ids([1]), "it waits");
    send(&mut dispatch, MS);
    assert_eq!(dispatch.sent_with(RequestId(1)), ids([0, 1, 2]));
    assert!(dispatch.requeue(RequestId(2)));
    assert_eq!(dispatch.remove_instance(ONE).failed, ids([0, 1]));
    assert_eq!(dispatch.waiting(), 1);
}
