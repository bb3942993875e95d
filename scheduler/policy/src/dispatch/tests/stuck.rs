//! Requests that were written off: their handlers ignore that nobody waits for them.

use super::*;

const NONE: [RequestId; 0] = [];

fn stuck_handlers(other_requests: bool, free_slots: bool) -> Option<StuckHandlers> {
    Some(StuckHandlers { other_requests, free_slots })
}

#[test]
fn a_slot_is_written_off_and_comes_back_with_its_handler() {
    let mut dispatch = ready(3, 2, HandlerMode::Concurrent);
    submit(&mut dispatch, 0..2);
    assert_eq!(all(&mut dispatch, MS).len(), 2);
    assert_eq!(dispatch.suspects(ONE), ids([0, 1]));
    dispatch.cancel(RequestId(0), 5 * MS);
    assert_eq!(dispatch.suspects(ONE), ids([0]));
    assert_eq!(dispatch.write_off(ONE, 4 * MS), NONE, "it has time still");
    assert_eq!(dispatch.stuck_handlers(ONE), None);
    assert_eq!(dispatch.write_off(ONE, 5 * MS), ids([0]));
    assert_eq!(dispatch.write_off(ONE, 9 * MS), NONE, "once");
    assert_eq!((dispatch.stuck_handlers(ONE), dispatch.cancelled_since(ONE)), (stuck_handlers(true, true), None));
    assert_eq!((dispatch.load(), dispatch.in_flight()), (1, 2), "it is nobody's load");
    // A request that was written off takes no place in the queue, and its slot is taken.
    submit(&mut dispatch, 2..6);
    assert_eq!(dispatch.submit(plain(RequestId(6)), MS), Admission::Full);
    assert_eq!(all(&mut dispatch, MS).len(), 1, "two of three slots are left");
    assert_eq!(dispatch.finish(RequestId(0), 9 * MS), Some(ONE));
    assert_eq!((dispatch.stuck_handlers(ONE), all(&mut dispatch, MS).len()), (None, 1));
}

#[test]
fn stuck_handlers_of_an_instance_are_reported() {
    let mut dispatch = ready(2, 9, HandlerMode::Concurrent);
    submit(&mut dispatch, 0..2);
    all(&mut dispatch, MS);
    for id in 0..2 {
        dispatch.cancel(RequestId(id), MS);
        assert_eq!(dispatch.stuck_handlers(ONE), [None, stuck_handlers(true, true)][id as usize]);
        dispatch.write_off(ONE, MS);
    }
    assert_eq!(dispatch.stuck_handlers(ONE), stuck_handlers(false, false));
    dispatch.set_external_requests(ONE, 1);
    assert_eq!(dispatch.stuck_handlers(ONE), stuck_handlers(true, false), "another scheduler's requests run in it");
    dispatch.set_external_requests(ONE, 0);
    dispatch.finish(RequestId(1), 9 * MS);
    assert_eq!(dispatch.stuck_handlers(ONE), stuck_handlers(false, true));
    assert_eq!(dispatch.stuck_handlers(TWO), None);
}

#[test]
fn a_serial_instance_that_is_stuck_takes_nothing_and_what_lies_behind_is_sent_again() {
    let mut dispatch = ready(1, 100, HandlerMode::Serial);
    warm_up(&mut dispatch, ONE, 0..8);
    submit(&mut dispatch, 10..13);
    assert_eq!(all(&mut dispatch, MS).len(), 3);
    dispatch.cancel(RequestId(11), MS);
    assert_eq!(dispatch.write_off(ONE, SECOND), NONE, "it has not begun");
    dispatch.cancel(RequestId(10), MS);
    assert_eq!(dispatch.write_off(ONE, SECOND), ids([10]));
    assert_eq!(dispatch.stuck_handlers(ONE), stuck_handlers(false, false), "what lies behind has not begun");
    submit(&mut dispatch, [20]);
    assert_eq!(next(&mut dispatch, MS), None);
    assert_eq!(dispatch.remove_instance(ONE), Lost { failed: vec![RequestId(10)], dropped: vec![RequestId(11)] });
    assert_eq!(dispatch.waiting(), 2);
}
