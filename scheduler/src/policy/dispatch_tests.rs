//! Tables for single rules, and generated sequences against a simple reference.

use super::*;
use proptest::prelude::*;

const MS: Duration = Duration::from_millis(1);

fn ready(concurrency: u32, queue: u32, mode: HandlerMode) -> Dispatch {
    let mut dispatch = Dispatch::new(concurrency, queue);
    dispatch.open(mode);
    dispatch
}

#[test]
fn one_runs_two_wait_the_fourth_is_refused() {
    let mut dispatch = ready(1, 2, HandlerMode::Serial);
    assert_eq!(dispatch.submit(1), Admission::Waits);
    assert_eq!(dispatch.next(MS), Some(1));
    assert_eq!(dispatch.submit(2), Admission::Waits);
    assert_eq!(dispatch.submit(3), Admission::Waits);
    assert_eq!(dispatch.next(MS), None, "a handler of unknown pace gets nothing ahead");
    assert_eq!(dispatch.submit(4), Admission::Full);
    assert!(dispatch.finished(1, 2 * MS));
    assert_eq!(dispatch.next(2 * MS), Some(2));
    assert_eq!(dispatch.submit(5), Admission::Waits);
}

#[test]
fn a_fast_serial_handler_is_sent_requests_ahead_and_a_slow_one_is_not() {
    for (took, ahead) in [(Duration::from_micros(20), 32), (Duration::from_micros(250), 4), (5 * MS, 0)] {
        let mut dispatch = ready(1, 1000, HandlerMode::Serial);
        let mut now = Duration::ZERO;
        for id in 0..100 {
            dispatch.submit(id);
        }
        for id in 0..20 {
            while dispatch.next(now).is_some() {}
            now += took;
            assert!(dispatch.finished(id, now));
        }
        while dispatch.next(now).is_some() {}
        assert_eq!(dispatch.in_flight(), 1 + ahead, "{took:?}");
    }
}

#[test]
fn a_death_fails_only_what_may_have_begun() {
    let mut dispatch = ready(1, 100, HandlerMode::Serial);
    for id in 0..30 {
        dispatch.submit(id);
    }
    for id in 0..10 {
        while dispatch.next(Duration::ZERO).is_some() {}
        dispatch.finished(id, Duration::from_micros(1));
    }
    while dispatch.next(Duration::ZERO).is_some() {}
    assert_eq!(dispatch.cancel(12), Cancelled::TellModel);
    let lost = dispatch.lost();
    assert_eq!(lost, Lost { failed: vec![10], dropped: vec![12] });
    dispatch.open(HandlerMode::Serial);
    assert_eq!(dispatch.next(MS), Some(11), "the rest waits in front and in order");
    dispatch.finished(11, MS);
    assert_eq!(dispatch.next(MS), Some(13));
}

#[test]
fn a_concurrent_instance_loses_all_it_had() {
    let mut dispatch = ready(3, 10, HandlerMode::Concurrent);
    for id in 0..5 {
        dispatch.submit(id);
        dispatch.next(MS);
    }
    assert_eq!(dispatch.lost(), Lost { failed: vec![0, 1, 2], dropped: vec![] });
    assert_eq!(dispatch.waiting(), 2);
}

#[test]
fn grace_counts_only_for_a_handler_that_runs() {
    let mut dispatch = ready(1, 100, HandlerMode::Serial);
    for id in 0..10 {
        dispatch.submit(id);
    }
    for id in 0..8 {
        dispatch.next(Duration::ZERO);
        dispatch.finished(id, Duration::from_micros(1));
    }
    while dispatch.next(Duration::ZERO).is_some() {}
    dispatch.cancel(9);
    assert!(!dispatch.cancelled_and_begun(), "9 lies behind 8");
    dispatch.finished(8, MS);
    assert!(dispatch.cancelled_and_begun());
}

#[derive(Debug, Clone)]
enum Step {
    Submit,
    Next,
    FinishFirst,
    Cancel(usize),
    Lose,
    Open(bool),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => Just(Step::Submit),
        4 => Just(Step::Next),
        3 => Just(Step::FinishFirst),
        1 => (0_usize..20).prop_map(Step::Cancel),
        1 => Just(Step::Lose),
        1 => any::<bool>().prop_map(Step::Open),
    ];
    prop::collection::vec(step, 1..200)
}

proptest! {
    /// Every request is in exactly one place, order is kept, and no bound is passed.
    #[test]
    fn no_request_is_lost_or_doubled(steps in steps(), concurrency in 1_u32..4, queue in 0_u32..6) {
        let mut dispatch = Dispatch::new(concurrency, queue);
        let (mut next_id, mut alive, mut last_sent) = (0, Vec::<u64>::new(), None);
        let mut now = Duration::ZERO;
        for step in steps {
            now += Duration::from_micros(10);
            match step {
                Step::Submit => {
                    let full = alive.len() >= (concurrency + queue) as usize;
                    let admission = dispatch.submit(next_id);
                    prop_assert_eq!(admission == Admission::Full, full);
                    if !full { alive.push(next_id); }
                    next_id += 1;
                }
                Step::Next => if let Some(id) = dispatch.next(now) {
                    prop_assert!(alive.contains(&id));
                    prop_assert!(last_sent.is_none_or(|last| last < id), "order: {:?} then {}", last_sent, id);
                    last_sent = Some(id);
                },
                Step::FinishFirst => if let Some(sent) = dispatch.sent.front().copied() {
                    prop_assert!(dispatch.finished(sent.id, now));
                    alive.retain(|id| *id != sent.id);
                },
                Step::Cancel(at) => if let Some(id) = alive.get(at).copied() {
                    match dispatch.cancel(id) {
                        Cancelled::Unqueued => alive.retain(|other| *other != id),
                        Cancelled::TellModel => {}
                        Cancelled::Unknown => prop_assert!(false, "{} is alive", id),
                    }
                },
                Step::Lose => {
                    let lost = dispatch.lost();
                    alive.retain(|id| !lost.failed.contains(id) && !lost.dropped.contains(id));
                    last_sent = None;
                }
                Step::Open(serial) => if dispatch.in_flight() == 0 {
                    dispatch.open(if serial { HandlerMode::Serial } else { HandlerMode::Concurrent });
                },
            }
            prop_assert_eq!(dispatch.in_flight() + dispatch.waiting(), alive.len());
            prop_assert!(dispatch.in_flight() <= (concurrency + AHEAD_LIMIT) as usize);
        }
    }
}
