//! Tables for single rules; generated sequences are in `properties`, who gets a request is in `routes`.

mod batches;
mod properties;
mod selection;
mod stuck;

use super::*;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const ONE: InstanceNumber = InstanceNumber(1);
const TWO: InstanceNumber = InstanceNumber(2);

/// As its instance is named in these tests.
fn name(instance: InstanceNumber) -> u64 {
    hash_name(format!("{:012x}", instance.0).as_bytes())
}

fn enable(dispatch: &mut Dispatch, instance: InstanceNumber, mode: HandlerMode, concurrency: u32) {
    dispatch.enable(instance, name(instance), mode, concurrency);
}

/// No instance, and room for so many requests.
fn with_room(queue: u32) -> Dispatch {
    let mut dispatch = Dispatch::default();
    dispatch.set_bounds(queue, 0);
    dispatch
}

fn plain(id: RequestId) -> Ticket {
    Ticket { id, priority: 0, session: None, candidate: None }
}

fn ids<const N: usize>(ids: [u64; N]) -> [RequestId; N] {
    ids.map(RequestId)
}

/// Dispatch with one enabled instance.
fn ready(concurrency: u32, queue: u32, mode: HandlerMode) -> Dispatch {
    let mut dispatch = Dispatch::default();
    dispatch.set_bounds(queue, concurrency);
    enable(&mut dispatch, ONE, mode, concurrency);
    dispatch
}

fn submit(dispatch: &mut Dispatch, ids: impl IntoIterator<Item = u64>) {
    for id in ids.into_iter().map(RequestId) {
        assert_eq!(dispatch.submit(plain(id), Duration::ZERO), Admission::Queued);
    }
}

fn next(dispatch: &mut Dispatch, now: Moment) -> Option<(RequestId, InstanceNumber)> {
    next_of(dispatch, now, |_| true)
}

/// The next request, of handlers without batches.
fn next_of(
    dispatch: &mut Dispatch,
    now: Moment,
    may_send: impl Fn(InstanceNumber) -> bool,
) -> Option<(RequestId, InstanceNumber)> {
    let Dispatched { instance, requests } = dispatch.next(now, may_send)?;
    let Members::One(id) = requests else { panic!("a batch: {requests:?}") };
    Some((id, instance))
}

fn all(dispatch: &mut Dispatch, now: Moment) -> Vec<(u64, InstanceNumber)> {
    std::iter::from_fn(|| next(dispatch, now)).map(|(id, instance)| (id.0, instance)).collect()
}

/// Eight requests that take no time: from then on requests are sent ahead.
fn warm_up(dispatch: &mut Dispatch, instance: InstanceNumber, ids: std::ops::Range<u64>) {
    for id in ids.map(RequestId) {
        dispatch.submit(plain(id), Duration::ZERO);
        assert_eq!(next_of(dispatch, Duration::ZERO, |other| other == instance), Some((id, instance)));
        assert_eq!(dispatch.finish(id, Duration::from_micros(1)), Some(instance));
    }
}

#[test]
fn the_first_request_runs_two_wait_the_fourth_is_refused() {
    let mut dispatch = ready(1, 2, HandlerMode::Serial);
    submit(&mut dispatch, [1]);
    assert_eq!(next(&mut dispatch, MS), Some((RequestId(1), ONE)));
    submit(&mut dispatch, [2, 3]);
    assert_eq!(next(&mut dispatch, MS), None, "a handler of unknown pace gets nothing ahead");
    assert_eq!(dispatch.submit(plain(RequestId(4)), MS), Admission::Full);
    assert_eq!(dispatch.finish(RequestId(1), 2 * MS), Some(ONE));
    assert_eq!(dispatch.finish(RequestId(1), 2 * MS), None, "once");
    assert_eq!(next(&mut dispatch, 2 * MS), Some((RequestId(2), ONE)));
    submit(&mut dispatch, [5]);
}

#[test]
fn requests_wait_for_an_instance_that_is_not_there_yet() {
    let mut dispatch = with_room(2);
    dispatch.set_bounds(2, 3);
    submit(&mut dispatch, 0..5);
    assert_eq!(
        dispatch.submit(plain(RequestId(5)), MS),
        Admission::Full,
        "two that wait, and three that could run by now"
    );
    assert_eq!(next(&mut dispatch, MS), None);
    enable(&mut dispatch, ONE, HandlerMode::Concurrent, 3);
    assert_eq!(all(&mut dispatch, MS), [(0, ONE), (1, ONE), (2, ONE)]);
    dispatch.set_bounds(0, 1);
    assert_eq!((dispatch.waiting(), dispatch.in_flight()), (2, 3), "nothing that waits is thrown out");
    assert_eq!(dispatch.drain_queue(), ids([3, 4]));
    assert_eq!((dispatch.waiting(), dispatch.in_flight()), (0, 3));
}

#[test]
fn requests_of_a_draining_instance_take_no_place() {
    for mode in [HandlerMode::Serial, HandlerMode::Concurrent] {
        let mut dispatch = ready(1, 0, mode);
        submit(&mut dispatch, [1]);
        assert_eq!(next(&mut dispatch, MS), Some((RequestId(1), ONE)));
        assert_eq!(dispatch.submit(plain(RequestId(2)), MS), Admission::Full);
        dispatch.disable(ONE);
        submit(&mut dispatch, [3]);
        assert_eq!(dispatch.submit(plain(RequestId(4)), MS), Admission::Full, "one waits for the next instance");
        enable(&mut dispatch, TWO, mode, 1);
        assert_eq!(next(&mut dispatch, MS), Some((RequestId(3), TWO)));
        assert_eq!(dispatch.submit(plain(RequestId(5)), MS), Admission::Full);
        assert_eq!((dispatch.finish(RequestId(3), 2 * MS), dispatch.in_flight()), (Some(TWO), 1));
        submit(&mut dispatch, [6]);
    }
}

#[test]
fn a_fast_serial_handler_is_sent_requests_ahead_and_a_slow_one_is_not() {
    for (took, ahead) in [(Duration::from_micros(20), 32), (Duration::from_micros(250), 4), (5 * MS, 0)] {
        let mut dispatch = ready(1, 1000, HandlerMode::Serial);
        let mut now = Duration::ZERO;
        submit(&mut dispatch, 0..100);
        for id in 0..20 {
            all(&mut dispatch, now);
            now += took;
            assert_eq!(dispatch.finish(RequestId(id), now), Some(ONE));
        }
        all(&mut dispatch, now);
        assert_eq!(dispatch.in_flight(), 1 + ahead, "{took:?}");
        assert_eq!(dispatch.average_time(), Some(took));
    }
}

#[test]
fn a_death_fails_only_what_may_have_begun() {
    let mut dispatch = ready(1, 100, HandlerMode::Serial);
    warm_up(&mut dispatch, ONE, 0..8);
    submit(&mut dispatch, 10..30);
    assert_eq!(all(&mut dispatch, MS).len(), 20);
    assert_eq!(dispatch.cancel(RequestId(12), MS), Cancelled::InFlight(ONE));
    assert_eq!(dispatch.remove_instance(ONE), Lost { failed: vec![RequestId(10)], dropped: vec![RequestId(12)] });
    assert_eq!((dispatch.in_flight(), dispatch.waiting()), (0, 18));
    assert_eq!(dispatch.remove_instance(ONE), Lost::default());
    assert!(dispatch.average_time().is_some(), "what is known stays known");
    enable(&mut dispatch, TWO, HandlerMode::Serial, 1);
    for id in [11, 13, 14] {
        assert_eq!(next(&mut dispatch, MS), Some((RequestId(id), TWO)), "the rest waits in its old order");
        dispatch.finish(RequestId(id), 9 * MS);
    }
}

#[test]
fn a_concurrent_instance_loses_all_it_had_and_the_other_nothing() {
    let mut dispatch = ready(2, 10, HandlerMode::Concurrent);
    enable(&mut dispatch, TWO, HandlerMode::Concurrent, 2);
    submit(&mut dispatch, 0..6);
    assert_eq!(all(&mut dispatch, MS), [(0, ONE), (1, TWO), (2, ONE), (3, TWO)]);
    assert_eq!(dispatch.remove_instance(ONE), Lost { failed: vec![RequestId(0), RequestId(2)], dropped: vec![] });
    assert_eq!(dispatch.ids_in_flight(TWO), ids([1, 3]));
    assert_eq!((dispatch.waiting(), dispatch.in_flight_of(ONE), dispatch.in_flight_of(TWO)), (2, 0, 2));
}

#[test]
fn requests_that_lay_ahead_of_two_that_died_wait_in_their_old_order() {
    let mut dispatch = ready(1, 100, HandlerMode::Serial);
    enable(&mut dispatch, TWO, HandlerMode::Serial, 1);
    warm_up(&mut dispatch, ONE, 0..8);
    warm_up(&mut dispatch, TWO, 10..18);
    submit(&mut dispatch, 20..30);
    let sent = all(&mut dispatch, MS);
    assert_eq!(sent.iter().filter(|(_, instance)| *instance == ONE).count(), 5, "in turns");
    for instance in [TWO, ONE] {
        assert_eq!(dispatch.remove_instance(instance).failed.len(), 1);
    }
    submit(&mut dispatch, [30]);
    assert_eq!(dispatch.drain_queue(), ids([22, 23, 24, 25, 26, 27, 28, 29, 30]));
}

#[test]
fn a_request_that_never_left_waits_again_in_its_place() {
    let mut dispatch = ready(3, 10, HandlerMode::Concurrent);
    submit(&mut dispatch, 0..5);
    all(&mut dispatch, MS);
    assert_eq!(dispatch.cancel(RequestId(2), MS), Cancelled::InFlight(ONE));
    assert!(dispatch.requeue(RequestId(1)) && !dispatch.requeue(RequestId(1)));
    assert!(!dispatch.requeue(RequestId(2)), "nobody waits for it");
    assert!(!dispatch.requeue(RequestId(3)) && !dispatch.requeue(RequestId(9)));
    assert_eq!((dispatch.waiting(), dispatch.in_flight()), (3, 2));
    assert_eq!(next(&mut dispatch, MS), Some((RequestId(1), ONE)));
}

#[test]
fn a_turn_that_is_not_used_leaves_its_place_and_no_time() {
    let mut dispatch = ready(1, 10, HandlerMode::Concurrent);
    submit(&mut dispatch, 0..2);
    assert_eq!(next(&mut dispatch, MS), Some((RequestId(0), ONE)));
    assert_eq!(next(&mut dispatch, MS), None, "the instance has one place");
    dispatch.withdraw(RequestId(0));
    assert_eq!((dispatch.in_flight(), dispatch.average_time()), (0, None));
    assert_eq!(next(&mut dispatch, MS), Some((RequestId(1), ONE)));
    dispatch.withdraw(RequestId(9));
    assert_eq!(dispatch.in_flight(), 1);
}

#[test]
fn grace_counts_only_for_a_handler_that_runs() {
    let mut dispatch = ready(1, 100, HandlerMode::Serial);
    warm_up(&mut dispatch, ONE, 0..8);
    submit(&mut dispatch, [8, 9]);
    assert_eq!(all(&mut dispatch, MS), [(8, ONE), (9, ONE)]);
    dispatch.cancel(RequestId(9), MS * 2);
    assert_eq!(dispatch.cancelled_since(ONE), None, "9 lies behind 8");
    dispatch.finish(RequestId(8), MS * 3);
    assert_eq!(dispatch.cancelled_since(ONE), Some(MS * 3));
    assert_eq!(dispatch.cancelled_since(TWO), None);
}

#[test]
fn grace_does_not_begin_anew_with_the_answers_of_others() {
    let mut dispatch = ready(4, 100, HandlerMode::Concurrent);
    submit(&mut dispatch, 0..4);
    assert_eq!(all(&mut dispatch, MS).len(), 4);
    dispatch.cancel(RequestId(1), MS * 5);
    dispatch.cancel(RequestId(2), MS * 7);
    dispatch.cancel(RequestId(1), MS * 8);
    dispatch.finish(RequestId(0), MS * 9);
    assert_eq!(dispatch.cancelled_since(ONE), Some(MS * 5));
    dispatch.finish(RequestId(1), MS * 10);
    assert_eq!(dispatch.cancelled_since(ONE), Some(MS * 7));
    dispatch.finish(RequestId(2), MS * 11);
    assert_eq!(dispatch.cancelled_since(ONE), None);
}

#[test]
fn requests_of_a_closed_lane_are_no_load() {
    let mut dispatch = ready(2, 100, HandlerMode::Concurrent);
    submit(&mut dispatch, 0..3);
    assert_eq!(all(&mut dispatch, MS).len(), 2);
    assert_eq!((dispatch.in_flight(), dispatch.load()), (2, 3));
    dispatch.disable(ONE);
    assert_eq!((dispatch.in_flight(), dispatch.load()), (2, 1));
    enable(&mut dispatch, TWO, HandlerMode::Concurrent, 2);
    assert_eq!(all(&mut dispatch, MS).len(), 1);
    assert_eq!((dispatch.in_flight(), dispatch.load()), (3, 1));
}

#[test]
fn a_cancelled_request_that_waits_is_forgotten() {
    let mut dispatch = ready(1, 10, HandlerMode::Serial);
    submit(&mut dispatch, 0..3);
    next(&mut dispatch, MS);
    assert_eq!(dispatch.cancel(RequestId(1), MS), Cancelled::Dequeued);
    assert_eq!(dispatch.cancel(RequestId(1), MS), Cancelled::Unknown);
    assert_eq!(dispatch.finish(RequestId(0), MS), Some(ONE));
    assert_eq!(dispatch.cancel(RequestId(0), MS), Cancelled::Unknown);
    assert_eq!(all(&mut dispatch, MS), [(2, ONE)]);
}

/// Each request: when it came, in milliseconds, and its priority. The order is by arrival less a second a level.
#[test]
fn a_priority_is_a_head_start() {
    type Case = (&'static [(u64, u8)], &'static [u64]);
    let cases: &[Case] = &[
        (&[(0, 0), (1, 0), (2, 0)], &[0, 1, 2]),
        (&[(0, 0), (1, 9), (2, 9), (3, 0)], &[1, 2, 0, 3]),
        (&[(0, 0), (999, 1), (1001, 1)], &[1, 0, 2]),
        (&[(0, 3), (2999, 6), (3001, 6), (2000, 5)], &[1, 3, 0, 2]),
        (&[(0, 0), (8999, 9), (9001, 9), (9001, 200)], &[1, 0, 2, 3]),
    ];
    for (requests, order) in cases {
        let mut dispatch = ready(1, 100, HandlerMode::Serial);
        let mut arrivals: Vec<_> = requests.iter().enumerate().collect();
        arrivals.sort_by_key(|(_, (at, _))| *at);
        for (id, (at, priority)) in arrivals {
            let ticket = Ticket { priority: *priority, ..plain(RequestId(id as u64)) };
            dispatch.submit(ticket, Duration::from_millis(*at));
        }
        for id in order.iter().copied().map(RequestId) {
            assert_eq!(next(&mut dispatch, 10 * SECOND), Some((id, ONE)), "{requests:?}");
            dispatch.finish(id, 20 * SECOND);
        }
    }
}
