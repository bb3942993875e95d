//! Selection of the instance for a request.

use super::*;
use std::collections::BTreeMap;

fn several(modes: &[(u32, HandlerMode, u32)]) -> Dispatch {
    let mut dispatch = with_room(100_000);
    for (instance, mode, concurrency) in modes {
        enable(&mut dispatch, InstanceNumber(*instance), *mode, *concurrency);
    }
    dispatch
}

/// Where a session's request goes when nobody is busy.
fn home(dispatch: &mut Dispatch, session: u64) -> InstanceNumber {
    let id = 1_000_000 + session;
    dispatch.submit(Ticket { session: Some(session), ..plain(RequestId(id)) }, Duration::ZERO);
    let (sent, instance) = next(dispatch, Duration::ZERO).unwrap();
    assert_eq!(sent, RequestId(id));
    dispatch.finish(RequestId(id), 9 * MS);
    instance
}

fn homes(dispatch: &mut Dispatch) -> BTreeMap<u64, InstanceNumber> {
    (0..1000).map(|session| (session, home(dispatch, session))).collect()
}

#[test]
fn the_one_with_least_in_flight_for_its_size_gets_it() {
    use HandlerMode::{Concurrent, Serial};
    let mut dispatch = several(&[(1, Concurrent, 4), (2, Concurrent, 2), (3, Serial, 8)]);
    submit(&mut dispatch, 0..9);
    let sent: Vec<_> = all(&mut dispatch, MS).into_iter().map(|(_, instance)| instance.0).collect();
    assert_eq!(sent, [1, 2, 3, 1, 1, 2, 1], "a serial one takes one at a time");
    dispatch.finish(RequestId(1), MS);
    assert_eq!(next(&mut dispatch, MS), Some((RequestId(7), TWO)));
}

#[test]
fn under_light_load_the_youngest_stay_idle() {
    let mut dispatch =
        several(&[(7, HandlerMode::Serial, 1), (3, HandlerMode::Serial, 1), (5, HandlerMode::Serial, 1)]);
    for id in 0..10 {
        submit(&mut dispatch, [id]);
        assert_eq!(next(&mut dispatch, MS), Some((RequestId(id), InstanceNumber(3))));
        dispatch.finish(RequestId(id), 9 * MS);
    }
}

#[test]
fn a_blocked_or_closed_instance_gets_no_request() {
    let mut dispatch = several(&[(1, HandlerMode::Concurrent, 2), (2, HandlerMode::Concurrent, 2)]);
    submit(&mut dispatch, 0..6);
    assert_eq!(next_of(&mut dispatch, MS, |_| false), None);
    assert_eq!(next_of(&mut dispatch, MS, |instance| instance == TWO), Some((RequestId(0), TWO)));
    dispatch.disable(TWO);
    assert_eq!(all(&mut dispatch, MS), [(1, ONE), (2, ONE)]);
    assert_eq!(dispatch.finish(RequestId(0), MS), Some(TWO), "what it has goes on");
    assert_eq!(next(&mut dispatch, MS), None);
    enable(&mut dispatch, TWO, HandlerMode::Concurrent, 2);
    assert_eq!(next(&mut dispatch, MS), Some((RequestId(3), TWO)));
}

#[test]
fn sessions_spread_and_only_those_move_that_must() {
    let routes: Vec<_> = (1..=8).map(|instance| (instance, HandlerMode::Concurrent, 4)).collect();
    let mut dispatch = several(&routes);
    let before = homes(&mut dispatch);
    for (instance, ..) in &routes {
        let count = before.values().filter(|home| home.0 == *instance).count();
        assert!((80..=180).contains(&count), "{count} of 1000 sessions at instance {instance}");
    }
    dispatch.remove_instance(InstanceNumber(5));
    for (session, home) in homes(&mut dispatch) {
        let old = before[&session];
        assert!(home == old || old == InstanceNumber(5), "{session}: {old:?} to {home:?}");
    }
    enable(&mut dispatch, InstanceNumber(9), HandlerMode::Concurrent, 4);
    enable(&mut dispatch, InstanceNumber(5), HandlerMode::Concurrent, 4);
    for (session, home) in homes(&mut dispatch) {
        assert!(home == before[&session] || home == InstanceNumber(9), "{session}");
    }
}

/// A scheduler that adopts instances numbers them as it finds them.
#[test]
fn sessions_stay_with_their_instances_under_other_numbers() {
    let opened = |numbers: [u32; 5]| {
        let mut dispatch = with_room(100_000);
        for (instance, number) in (1..).map(InstanceNumber).zip(numbers) {
            dispatch.enable(InstanceNumber(number), name(instance), HandlerMode::Concurrent, 4);
        }
        homes(&mut dispatch)
    };
    let numbers = [4, 1, 5, 3, 2];
    let before = opened([1, 2, 3, 4, 5]);
    for (session, home) in opened(numbers) {
        assert_eq!(home.0, numbers[before[&session].0 as usize - 1], "{session}");
    }
}

/// Another value, and each session moves with the release that has it.
#[test]
fn a_name_has_the_same_number_in_each_release() {
    let known = [("", 0xcbf2_9ce4_8422_2325), ("a", 0xaf63_dc4c_8601_ec8c), ("foobar", 0x8594_4171_f739_67e8)];
    for (name, number) in known {
        assert_eq!(hash_name(name.as_bytes()), number, "{name}");
    }
    let mut dispatch = several(&[1, 2, 3].map(|instance| (instance, HandlerMode::Concurrent, 4)));
    let homes: Vec<_> = (0..8).map(|session| home(&mut dispatch, session).0).collect();
    assert_eq!(homes, [3, 3, 2, 1, 2, 1, 2, 2]);
}

#[test]
fn requests_of_another_scheduler_take_room() {
    let mut dispatch = several(&[(1, HandlerMode::Concurrent, 2), (2, HandlerMode::Concurrent, 2)]);
    dispatch.set_external_requests(ONE, 2);
    submit(&mut dispatch, 0..4);
    assert_eq!(all(&mut dispatch, MS), [(0, TWO), (1, TWO)]);
    dispatch.set_external_requests(ONE, 1);
    assert_eq!(all(&mut dispatch, MS), [(2, ONE)]);
    dispatch.set_external_requests(ONE, 0);
    dispatch.set_external_requests(InstanceNumber(3), 1); // it has gone meanwhile
    assert_eq!(all(&mut dispatch, MS), [(3, ONE)]);
}

#[test]
fn a_session_waits_for_no_one() {
    let mut dispatch = several(&[(1, HandlerMode::Serial, 1), (2, HandlerMode::Serial, 1)]);
    let session = (0..).find(|session| home(&mut dispatch, *session) == TWO);
    let ticket = |id| Ticket { session, ..plain(id) };
    for id in 0..3 {
        dispatch.submit(ticket(RequestId(id)), Duration::ZERO);
    }
    assert_eq!(all(&mut dispatch, MS), [(0, TWO), (1, ONE)], "its own is busy, the other has room");
    dispatch.finish(RequestId(0), 99 * MS);
    assert_eq!(next_of(&mut dispatch, 99 * MS, |instance| instance != TWO), None, "its own may not, the other is busy");
    assert_eq!(next(&mut dispatch, 99 * MS), Some((RequestId(2), TWO)));
}

#[test]
fn a_session_lies_ahead_of_a_fast_instance_rather_than_go_elsewhere() {
    let mut dispatch = several(&[(1, HandlerMode::Serial, 1), (2, HandlerMode::Serial, 1)]);
    let session = (0..).find(|session| home(&mut dispatch, *session) == TWO);
    enable(&mut dispatch, TWO, HandlerMode::Serial, 1);
    warm_up(&mut dispatch, TWO, 0..8);
    for id in 10..13 {
        dispatch.submit(Ticket { session, ..plain(RequestId(id)) }, Duration::ZERO);
    }
    assert_eq!(all(&mut dispatch, MS), [(10, TWO), (11, TWO), (12, TWO)]);
}
