//! No room: for the only instance, for a further one, for a new generation beside the old one; and giving way to
//! others.

use super::*;
use crate::capacity::MIN_IDLE;

fn on_no_capacity(instance: InstanceNumber, permanent: bool) -> Event {
    Event::NoCapacity { instance, permanent, recreate_fits: false }
}

/// `A` is being started.
fn starting(settings: Settings) -> Table {
    let mut table = Table::new(settings);
    table.feed(Event::Demand);
    assert_eq!(table.feed(Event::Prepared(OLD))[0], start(A, OLD));
    table
}

/// `A` of the old generation is ready, and there is no room for the new one beside it.
fn no_room_beside() -> Table {
    let mut table = Table::ready(settings());
    table.feed(content(NEW, settings()));
    assert_eq!(table.feed(Event::Prepared(NEW)), [start(B, NEW)]);
    assert_eq!(table.feed(on_no_capacity(B, false)), [], "nobody is refused");
    assert_eq!(table.fleet.start_state(NEW), Some(StartState::NoCapacity { retry_at: Some(2 * SECOND) }));
    table
}

#[test]
fn the_wait_for_a_place_is_not_the_models_own_time() {
    let mut table = starting(settings());
    assert_eq!(table.fleet.wake_at(), Some(120 * SECOND));
    table.at(100, Event::Placed(A));
    assert_eq!(table.fleet.wake_at(), Some(220 * SECOND));
    assert_eq!(table.at(101, Event::Ready(A)), [Action::RecordReady(OLD), Action::EnableRoute(A)]);
}

#[test]
fn without_a_place_it_refuses_what_waits_and_the_next_request_asks_again() {
    let mut table = starting(settings());
    assert_eq!(table.at(1, on_no_capacity(A, false)), [Action::RefuseWaiting]);
    assert_eq!((table.fleet.lacks_capacity(), table.fleet.deaths()), (Some(false), 0));
    assert!(!table.fleet.refuses_requests(), "a request may ask");
    assert_eq!(table.feed(Event::Demand), [Action::RefuseWaiting], "but not in the same moment");
    assert_eq!(table.fleet.state(), ModelState::Failed);
    assert_eq!(table.at(2, Event::Demand), [Action::Prepare(OLD)]);
    table.feed(Event::Prepared(OLD));
    assert_eq!(table.feed(on_no_capacity(B, false)), [Action::RefuseWaiting]);
    assert_eq!(table.fleet.wake_at(), Some(6 * SECOND));
    assert_eq!(table.at(6, Event::Tick), [], "nobody asks");
    assert_eq!((table.fleet.lacks_capacity(), table.fleet.state()), (None, ModelState::Stopped));
}

#[test]
fn an_instance_wanted_without_a_request_retries_after_doubling_pauses() {
    let mut table = Table { fleet: Fleet::new(false, 0), now: Moment::ZERO };
    table.feed(content(OLD, Settings { min: 1, ..settings() }));
    let mut pauses = Vec::new();
    for number in 1..=6 {
        assert_eq!(table.feed(Event::Prepared(OLD)), [start(InstanceNumber(number), OLD)]);
        table.feed(on_no_capacity(InstanceNumber(number), false));
        let wake = table.fleet.wake_at().expect("it asks again");
        pauses.push((wake - table.now).as_secs());
        table.now = wake;
        assert_eq!(table.feed(Event::Tick), [Action::Prepare(OLD)]);
    }
    assert_eq!(pauses, [2, 4, 8, 16, 30, 30]);
    table.feed(Event::Prepared(OLD));
    table.feed(Event::Ready(InstanceNumber(7)));
    table.feed(Event::Busy(InstanceNumber(7)));
    table.feed(Event::Idle(InstanceNumber(7)));
    table.feed(Event::Displaced(InstanceNumber(7)));
    let retry_at = Some(table.now + FIRST_CAPACITY_PAUSE);
    assert_eq!(table.fleet.start_state(OLD), Some(StartState::NoCapacity { retry_at }), "it was of use since");
}

#[test]
fn a_model_that_fits_nowhere_waits_for_somebody_to_change_it() {
    let mut table = starting(settings());
    assert_eq!(table.at(1, on_no_capacity(A, true)), [Action::RefuseWaiting]);
    assert_eq!((table.fleet.lacks_capacity(), table.fleet.wake_at()), (Some(true), None));
    assert_eq!(table.at(2, Event::Demand), [Action::RefuseWaiting]);
    table.at(3, Event::Stop);
    assert_eq!(table.fleet.lacks_capacity(), None, "a person's word is the reason now");
    assert_eq!(table.at(4, Event::Start), [Action::Prepare(OLD)]);
}

#[test]
fn no_place_for_a_further_one_is_no_failure() {
    let mut table = Table::ready(up_to(3));
    assert_eq!(table.feed(Event::DesiredInstances(3)), [start(B, OLD), start(C, OLD)]);
    for instance in [B, C] {
        assert_eq!(table.feed(on_no_capacity(instance, instance == C)), []);
    }
    let pause = StartState::NoCapacity { retry_at: Some(2 * SECOND) };
    assert_eq!(
        table.fleet.start_state(OLD),
        Some(pause),
        "two refusals at a time are one; one of it fits, so never permanent"
    );
    assert_eq!((table.fleet.refuses_requests(), table.fleet.lacks_capacity(), table.fleet.deaths()), (false, None, 0));
    assert_eq!(table.at(1, Event::DesiredInstances(2)), []);
    assert_eq!(table.at(2, Event::Tick), [Action::Prepare(OLD)]);
    assert_eq!(table.feed(Event::Prepared(OLD)), [start(D, OLD)]);
}

#[test]
fn a_candidate_without_room_waits_and_asks_again() {
    let mut table = no_room_beside();
    assert_eq!(table.fleet.state(), ModelState::Ready);
    assert_eq!(table.at(2, Event::Tick), [Action::Prepare(NEW)]);
    assert_eq!(table.feed(Event::Prepared(NEW)), [start(C, NEW)]);
    assert_eq!(table.feed(Event::Ready(C))[2], Action::Serve(NEW));
}

#[test]
fn an_instance_without_room_retries_when_another_has_ended() {
    let mut table = no_room_beside();
    assert_eq!(table.at(1, Event::CapacityFreed), [Action::Prepare(NEW)]);
    assert_eq!(table.feed(Event::Prepared(NEW)), [start(C, NEW)]);
    assert_eq!(table.feed(on_no_capacity(C, false)), []);
    let retry_at = Some(table.now + 2 * FIRST_CAPACITY_PAUSE);
    assert_eq!(table.fleet.start_state(NEW), Some(StartState::NoCapacity { retry_at }), "the pause goes on growing");
    // Where there can never be room, and where none is wanted, nothing is asked for.
    let mut table = starting(settings());
    table.at(1, on_no_capacity(A, true));
    assert_eq!(table.at(2, Event::CapacityFreed), []);
    assert_eq!(Table::ready(settings()).at(2, Event::CapacityFreed), []);
}

#[test]
fn a_candidate_with_room_for_fewer_serves_with_those() {
    let mut table = Table::ready(up_to(2));
    table.feed(Event::DesiredInstances(2));
    table.feed(Event::Ready(B));
    table.feed(content(NEW, up_to(2)));
    assert_eq!(table.feed(Event::Prepared(NEW)), [start(C, NEW), start(D, NEW)]);
    assert_eq!(table.feed(on_no_capacity(D, false)), []);
    assert!(table.feed(Event::Ready(C)).contains(&Action::Serve(NEW)));
}

#[test]
fn restart_replaces_in_place_what_has_no_room_beside() {
    let mut table = no_room_beside();
    table.feed(Event::Busy(A));
    assert_eq!(table.at(1, Event::Restart), [Action::Prepare(NEW)], "it serves on until there is an environment");
    assert_eq!(table.feed(Event::Prepared(NEW)), [Action::DisableRoute(A)]);
    assert_eq!(table.feed(Event::Demand), [], "it waits");
    table.feed(Event::Idle(A));
    assert_eq!(table.feed(Event::Gone(A)), [start(C, NEW)]);
    assert_eq!(table.feed(Event::Ready(C)), [Action::Serve(NEW), Action::RecordReady(NEW), Action::EnableRoute(C)]);
}

/// The new version is refused a place beside `A`, which has been idle for so long; there is one instead of it.
fn refused_beside_idle(seconds: u64) -> Table {
    let mut table = Table::ready(settings());
    table.at(10, Event::Busy(A));
    table.at(20, Event::Idle(A));
    table.at(20 + seconds, content(NEW, settings()));
    assert_eq!(table.feed(Event::Prepared(NEW)), [start(B, NEW)]);
    table
}

#[test]
fn a_candidate_without_room_takes_the_place_of_what_nobody_asks_for() {
    let refused = Event::NoCapacity { instance: B, permanent: false, recreate_fits: true };
    let mut table = refused_beside_idle(MIN_IDLE.as_secs());
    assert_eq!(table.feed(refused), [Action::DisableRoute(A), Action::Stop(A)]);
    assert_eq!(table.feed(Event::Demand), [], "a request waits for the new one");
    assert_eq!(table.feed(Event::Gone(A)), [start(C, NEW)]);
    assert_eq!(table.feed(Event::Ready(C)), [Action::Serve(NEW), Action::RecordReady(NEW), Action::EnableRoute(C)]);
    assert_eq!(table.fleet.deaths(), 0);

    // A candidate that cannot serve gives the capacity back.
    let mut table = refused_beside_idle(MIN_IDLE.as_secs());
    table.feed(refused);
    table.feed(Event::Gone(A));
    table.feed(Event::ContentRejected(C));
    assert_eq!(table.feed(Event::Gone(C)), [Action::Prepare(OLD)]);
}

#[test]
fn a_requested_instance_keeps_its_place_from_a_candidate() {
    let refused = |recreate_fits| Event::NoCapacity { instance: B, permanent: false, recreate_fits };
    let mut table = refused_beside_idle(MIN_IDLE.as_secs() - 1);
    assert_eq!(table.feed(refused(true)), [], "it was asked a moment ago");
    assert_eq!(table.at(30, Event::Tick), [Action::Prepare(NEW)]);
    let mut table = refused_beside_idle(MIN_IDLE.as_secs());
    table.feed(Event::Busy(A));
    assert_eq!(table.feed(refused(true)), [], "it works");
    let mut table = refused_beside_idle(MIN_IDLE.as_secs());
    assert_eq!(table.feed(refused(false)), [], "in vain");
}

#[test]
fn restart_makes_room_for_what_waits_for_it() {
    let mut table = no_room_beside();
    table.at(2, Event::Tick);
    assert_eq!(table.feed(Event::Prepared(NEW)), [start(C, NEW)], "it waits for its place once more");
    assert_eq!(table.feed(Event::Restart), [Action::DisableRoute(A), Action::Stop(A)]);
    assert_eq!(table.feed(Event::Gone(A)), []);
    table.feed(Event::Placed(C));
    assert_eq!(table.feed(Event::Ready(C))[0], Action::Serve(NEW));
}

#[test]
fn a_candidate_that_fails_in_place_makes_way_for_the_old_version() {
    for permanent in [true, false] {
        let mut table = no_room_beside();
        table.feed(Event::Restart);
        assert_eq!(table.feed(Event::Prepared(NEW)), [Action::DisableRoute(A), Action::Stop(A)]);
        assert_eq!(table.feed(Event::Gone(A)), [start(C, NEW)]);
        let actions = if permanent {
            table.feed(Event::ContentRejected(C));
            table.feed(Event::Gone(C))
        } else {
            table.feed(on_no_capacity(C, false))
        };
        assert_eq!(actions, [Action::Prepare(OLD)], "though nobody asks: it served");
        assert_eq!(table.feed(Event::Prepared(OLD)), [start(D, OLD)]);
        assert_eq!(table.feed(Event::Ready(D)), [Action::EnableRoute(D)]);
    }
}

#[test]
fn a_displaced_instance_rests_until_the_next_request() {
    let mut table = Table::ready(settings());
    assert_eq!(table.at(5, Event::Displaced(A)), [Action::DisableRoute(A), Action::Stop(A)]);
    assert_eq!(table.at(6, Event::Gone(A)), []);
    assert_eq!((table.fleet.state(), table.fleet.deaths()), (ModelState::Stopped, 0));
    let mut table = Table::ready(settings());
    table.at(5, Event::Displaced(A));
    assert_eq!(table.feed(Event::Demand), []);
    assert_eq!(table.at(6, Event::Gone(A)), [start(B, OLD)]);
}

#[test]
fn an_instance_displaced_below_the_minimum_retries_after_a_pause() {
    let mut table = Table { fleet: Fleet::new(false, 0), now: Moment::ZERO };
    table.feed(content(OLD, Settings { min: 1, ..settings() }));
    table.feed(Event::Prepared(OLD));
    table.feed(Event::Ready(A));
    table.feed(Event::Displaced(A));
    assert_eq!(table.at(1, Event::Gone(A)), [], "not at once: it would take the place back");
    assert_eq!(table.at(2, Event::Tick), [Action::Prepare(OLD)]);
}
