//! Changes of content: beside the old one, ready first, then the traffic, then the drain; and everything that can come
//! between.

use super::*;

/// `A` of the old generation is ready and busy, `B` of the new one is starting.
fn changing() -> Table {
    let mut table = Table::ready(settings());
    table.feed(Event::Busy(A));
    assert_eq!(table.at(1, content(NEW, settings())), [Action::Prepare(NEW)]);
    assert_eq!(table.at(2, Event::Prepared(NEW)), [start(B, NEW)]);
    assert_eq!((table.fleet.serving(), table.fleet.candidate()), (Some(OLD), Some(NEW)));
    table
}

#[test]
fn without_a_proven_generation_the_newest_content_serves_at_once_and_starts_with_a_request() {
    let mut table = Table::new(settings());
    assert_eq!(table.feed(content(NEW, settings())), [Action::Serve(NEW), Action::Forget(OLD)]);
    assert_eq!(table.feed(Event::Demand), [Action::Prepare(NEW)]);
    table.feed(Event::Prepared(NEW));
    assert_eq!(
        table.feed(content(NEWEST, settings())),
        [Action::Kill(A), Action::Serve(NEWEST), Action::Prepare(NEWEST)]
    );
    assert_eq!(table.feed(Event::Prepared(NEWEST)), [], "one at a time");
    assert_eq!(table.feed(Event::Gone(A)), [start(B, NEWEST), Action::Forget(NEW)], "who waited is not forgotten");
    assert_eq!(table.fleet.deaths(), 0);
}

#[test]
fn a_new_generation_gets_ready_beside_the_old_one_then_takes_the_traffic() {
    let mut table = changing();
    assert_eq!(table.fleet.state(), ModelState::Ready);
    assert_eq!(table.at(3, Event::Demand), [], "the old one serves");
    let moved = [Action::DisableRoute(A), Action::Serve(NEW), Action::RecordReady(NEW), Action::EnableRoute(B)];
    assert_eq!(table.at(4, Event::Ready(B)), moved);
    assert_eq!((table.fleet.serving(), table.fleet.candidate()), (Some(NEW), None));
    assert_eq!(table.fleet.previous, Some(OLD));
    assert_eq!(table.phase(A), Phase::Draining { until: 34 * SECOND });
    assert_eq!(table.at(5, Event::Idle(A)), [Action::Stop(A)]);
    assert_eq!(table.at(6, Event::Gone(A)), [], "it can be rolled back to");
    assert_eq!(table.fleet.wake_at(), Some(604 * SECOND), "its idle time begins with its traffic");
}

#[test]
fn a_cold_model_proves_its_new_content_too() {
    let mut table = Table::ready(settings());
    table.at(600, Event::Tick);
    table.feed(Event::Gone(A));
    assert_eq!(table.feed(content(NEW, settings())), [Action::Prepare(NEW)]);
    assert_eq!(table.fleet.state(), ModelState::Preparing);
    assert_eq!(table.feed(Event::Demand), [Action::Prepare(OLD)], "who asks meanwhile gets the old one");
    table.feed(Event::Prepared(NEW));
    table.feed(Event::Prepared(OLD));
    let moved = [Action::Kill(C), Action::Serve(NEW), Action::RecordReady(NEW), Action::EnableRoute(B)];
    assert_eq!(table.feed(Event::Ready(B)), moved, "whichever is ready first");
}

#[test]
fn as_many_candidates_as_serving_instances_are_ready_before_traffic_moves() {
    let mut table = Table::ready(up_to(3));
    table.feed(Event::DesiredInstances(3));
    table.feed(Event::Ready(B));
    table.feed(Event::Ready(C));
    table.feed(content(NEW, up_to(2)));
    let (e, f) = (InstanceNumber(5), InstanceNumber(6));
    assert_eq!(table.feed(Event::Prepared(NEW)), [start(D, NEW), start(e, NEW)], "but no more than it may have");
    assert_eq!(table.feed(Event::Ready(D)), []);
    assert_eq!(table.feed(Event::Gone(e)), [Action::Prepare(NEW)], "one dies on the way");
    assert_eq!(table.feed(Event::Prepared(NEW)), [start(f, NEW)]);
    let moved = table.feed(Event::Ready(f));
    assert!(
        moved.ends_with(&[
            Action::Serve(NEW),
            Action::RecordReady(NEW),
            Action::EnableRoute(D),
            Action::EnableRoute(f)
        ]),
        "{moved:?}"
    );
    assert!([A, B, C].iter().all(|old| moved.contains(&Action::DisableRoute(*old))));
}

#[test]
fn the_candidate_matches_serving_instances_added_meanwhile() {
    let mut table = Table::ready(up_to(3));
    table.feed(content(NEW, up_to(3)));
    assert_eq!(table.feed(Event::Prepared(NEW)), [start(B, NEW)]);
    let e = InstanceNumber(5);
    assert_eq!(
        table.feed(Event::DesiredInstances(3)),
        [start(C, OLD), start(D, OLD)],
        "load comes while the new one starts"
    );
    assert_eq!(table.feed(Event::Ready(C)), [Action::EnableRoute(C), start(e, NEW)]);
    assert_eq!(table.feed(Event::Ready(B)), [], "one for two is too few");
    table.feed(Event::Gone(C));
    assert_eq!(table.fleet.serving(), Some(NEW), "one for one");
}

#[test]
fn when_nothing_serves_any_more_the_first_ready_one_is_enough() {
    let mut table = Table::ready(up_to(2));
    table.feed(Event::DesiredInstances(2));
    table.feed(Event::Ready(B));
    table.feed(content(NEW, up_to(2)));
    table.feed(Event::Prepared(NEW));
    assert_eq!(table.feed(Event::Ready(C)), []);
    table.feed(Event::Gone(A));
    assert_eq!(table.fleet.serving(), Some(NEW), "one for one");
}

#[test]
fn a_candidate_that_cannot_work_never_serves_and_is_not_tried_again() {
    let mut table = changing();
    table.feed(Event::ContentRejected(B));
    assert_eq!(table.at(3, Event::Gone(B)), []);
    assert_eq!((table.fleet.serving(), table.fleet.candidate()), (Some(OLD), Some(NEW)));
    assert_eq!(table.fleet.start_state(NEW), Some(StartState::Refused));
    assert_eq!((table.fleet.state(), table.fleet.wake_at()), (ModelState::Ready, None));
    assert_eq!(table.at(4, Event::Gone(A)), [Action::Prepare(OLD)], "the old one is started again");
    assert!(!table.fleet.refuses_requests());
    let mut table = Table::ready(settings());
    table.feed(content(NEW, settings()));
    assert_eq!(table.feed(Event::PrepareFailed { generation: NEW, permanent: true }), []);
    assert_eq!(table.fleet.start_state(NEW), Some(StartState::Refused));
}

#[test]
fn with_one_of_a_candidate_that_cannot_work_the_others_go() {
    let mut table = Table::ready(up_to(2));
    table.feed(Event::DesiredInstances(2));
    table.feed(Event::Ready(B));
    table.feed(content(NEW, up_to(2)));
    table.feed(Event::Prepared(NEW));
    table.feed(Event::Ready(C));
    table.feed(Event::ContentRejected(D));
    assert_eq!(table.feed(Event::Gone(D)), [Action::Stop(C)]);
}

#[test]
fn the_idle_time_of_a_candidate_begins_with_its_traffic() {
    let mut table = Table::ready(up_to(2));
    table.feed(Event::DesiredInstances(2));
    table.feed(Event::Ready(B));
    table.feed(content(NEW, up_to(2)));
    table.feed(Event::Prepared(NEW));
    table.at(1, Event::Ready(C));
    table.feed(Event::DesiredInstances(1));
    table.feed(Event::Busy(A));
    table.feed(Event::Busy(B));
    table.at(100, Event::Ready(D));
    assert_eq!(table.at(101, Event::Idle(A)), [Action::Stop(A)]);
    table.feed(Event::Gone(A));
    table.feed(Event::Idle(B));
    table.feed(Event::Gone(B));
    assert_eq!(table.fleet.wake_at(), Some(700 * SECOND));
}

#[test]
fn a_candidate_that_fails_may_try_again_later_and_the_old_one_serves_on() {
    let mut table = changing();
    assert_eq!(table.at(10, Event::Gone(B)), [Action::Prepare(NEW)]);
    table.feed(Event::Prepared(NEW));
    assert_eq!(table.feed(Event::Gone(C)), []);
    assert_eq!(table.fleet.start_state(NEW), Some(StartState::BackingOff { until: Duration::from_millis(10_500) }));
    assert!(!table.fleet.refuses_requests());
    assert_eq!(table.at(11, Event::Tick), [Action::Prepare(NEW)]);
    table.feed(Event::Prepared(NEW));
    assert_eq!(table.feed(Event::Ready(D))[1], Action::Serve(NEW));
}

#[test]
fn newer_content_takes_the_place_of_a_candidate() {
    let mut table = changing();
    assert_eq!(table.at(3, content(NEWEST, settings())), [Action::Kill(B), Action::Prepare(NEWEST)]);
    assert_eq!(table.feed(Event::Prepared(NEWEST)), [], "the room is taken still");
    assert_eq!(table.feed(Event::Gone(B)), [start(C, NEWEST), Action::Forget(NEW)]);
    assert_eq!(table.feed(Event::Ready(C))[1], Action::Serve(NEWEST));
    assert_eq!(table.fleet.previous, Some(OLD));
}

#[test]
fn a_late_word_about_a_candidate_that_was_given_up_changes_nothing() {
    let mut table = Table::ready(settings());
    table.feed(content(NEW, settings()));
    table.feed(content(NEWEST, settings()));
    for late in [Event::Prepared(NEW), Event::PrepareFailed { generation: NEW, permanent: true }] {
        assert_eq!(table.feed(late), []);
    }
    assert_eq!(table.feed(Event::Prepared(NEWEST)), [start(B, NEWEST)]);
}

#[test]
fn content_back_to_what_serves_gives_the_candidate_up() {
    let mut table = changing();
    assert_eq!(table.feed(content(OLD, settings())), [Action::Kill(B)]);
    assert_eq!(table.feed(Event::Ready(B)), [], "too late");
    assert_eq!(table.feed(Event::Gone(B)), [Action::Forget(NEW)]);
    assert_eq!((table.fleet.serving(), table.fleet.candidate(), table.fleet.deaths()), (Some(OLD), None, 0));
}

#[test]
fn content_that_cannot_be_served_drops_the_candidate_and_what_is_not_proven() {
    let mut table = changing();
    assert_eq!(table.feed(Event::UnservableContent), [Action::Kill(B)]);
    assert_eq!((table.fleet.serving(), table.fleet.state()), (Some(OLD), ModelState::Ready));
    table.feed(Event::Gone(B));
    table.feed(Event::Gone(A));
    assert!(!table.fleet.refuses_requests(), "what was ready once starts cold, too");

    let mut table = Table::new(settings());
    assert_eq!(table.feed(Event::UnservableContent), [Action::Forget(OLD), Action::RefuseWaiting]);
    assert_eq!(table.fleet.state(), ModelState::Failed);
    assert_eq!(table.feed(Event::Demand), [Action::RefuseWaiting]);
    assert_eq!(table.feed(content(NEW, settings()))[0], Action::Serve(NEW));
}

#[test]
fn a_stop_ends_both_and_a_start_begins_both() {
    let mut table = changing();
    let actions = table.feed(Event::Stop);
    assert_eq!(actions, [Action::DisableRoute(A), Action::Kill(B), Action::RefuseWaiting]);
    table.feed(Event::Idle(A));
    table.feed(Event::Gone(A));
    table.feed(Event::Gone(B));
    assert_eq!(table.fleet.wake_at(), None);
    assert_eq!(table.feed(content(NEWEST, settings())), [Action::Forget(NEW)], "noted, but nothing is started");
    assert_eq!(table.feed(Event::Start), [Action::Prepare(OLD), Action::Prepare(NEWEST)]);
}

#[test]
fn restart_tries_refused_content_again_beside_the_old_one() {
    let mut table = changing();
    table.feed(Event::ContentRejected(B));
    table.feed(Event::Gone(B));
    assert_eq!(table.feed(Event::Restart), [Action::Prepare(NEW)]);
    assert_eq!(table.fleet.state(), ModelState::Ready, "the old one serves on");
}

#[test]
fn a_rollback_is_a_change_like_any_other() {
    let mut table = changing();
    table.feed(Event::Ready(B));
    table.feed(Event::Idle(A));
    let back = Event::RollBack { generation: OLD, settings: settings() };
    assert_eq!(table.feed(back), [], "its instance from before is there still");
    assert_eq!((table.fleet.serving(), table.fleet.candidate()), (Some(NEW), Some(OLD)));
    assert_eq!(table.feed(Event::Gone(A)), [start(C, OLD)]);
    let moved = [Action::DisableRoute(B), Action::Stop(B), Action::Serve(OLD), Action::EnableRoute(C)];
    assert_eq!(table.feed(Event::Ready(C)), moved);
    assert_eq!(table.fleet.previous, Some(NEW));
}

#[test]
fn a_rollback_from_content_that_never_worked_is_at_once() {
    let mut table = Table::new(settings());
    let back = Event::RollBack { generation: NEWEST, settings: settings() };
    assert_eq!(table.feed(back), [Action::Serve(NEWEST), Action::Forget(OLD)]);
    assert!(table.fleet.was_ready(NEWEST));
    table.feed(Event::Removed);
    assert_eq!(table.feed(back), [Action::End], "a model that is gone stays gone");
}

#[test]
fn requests_wait_for_a_candidate_when_what_serves_cannot() {
    let mut table = Table::ready(settings());
    table.feed(Event::ContentRejected(A));
    assert_eq!(table.feed(Event::Gone(A)), [Action::RefuseWaiting]);
    table.feed(content(NEW, settings()));
    assert!(!table.fleet.refuses_requests());
    assert_eq!(table.feed(Event::Demand), []);
    table.feed(Event::Prepared(NEW));
    table.feed(Event::ContentRejected(B));
    assert_eq!(table.feed(Event::Gone(B)), [Action::RefuseWaiting], "now nothing can come");
}

#[test]
fn only_what_is_of_no_use_is_forgotten() {
    let mut table = changing();
    table.feed(Event::Ready(B));
    table.feed(Event::Idle(A));
    table.feed(content(NEWEST, settings()));
    table.feed(Event::Prepared(NEWEST));
    assert_eq!(table.feed(Event::Gone(A)), [start(C, NEWEST)], "the one before can be rolled back to");
    let moved = table.feed(Event::Ready(C));
    assert!(moved.ends_with(&[Action::EnableRoute(C), Action::Forget(OLD)]), "the one before that cannot: {moved:?}");
}
