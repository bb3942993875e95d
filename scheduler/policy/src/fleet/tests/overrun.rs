//! Handlers that ignore their cancellation: who is replaced, when, beside whom; and that no start waits for it.

use super::*;

fn overran(instance: InstanceNumber, other_requests: bool, free_slots: bool) -> Event {
    Event::StuckHandlers { instance, other_requests, free_slots }
}

/// Fleet with one busy instance.
fn busy(settings: Settings) -> Table {
    let mut table = Table::ready(settings);
    table.feed(Event::Busy(A));
    table
}

#[test]
fn an_instance_with_nobody_else_in_it_is_replaced_at_once() {
    let mut table = busy(settings());
    assert_eq!(table.at(1, overran(A, false, false)), [Action::DisableRoute(A), Action::Kill(A)]);
    assert!(table.fleet.stops_for_stuck_handlers(A) && !table.fleet.stop_was_requested(A));
    assert_eq!(table.feed(Event::Demand), [], "it waits for the next one");
    assert_eq!(table.at(2, Event::Gone(A)), [start(B, OLD)]);
    assert_eq!((table.fleet.deaths(), table.fleet.failures()), (1, 0));
}

#[test]
fn ten_in_a_row_delay_no_start_and_refuse_nothing() {
    let mut table = busy(settings());
    for number in 1..=10 {
        let (this, next) = (InstanceNumber(number), InstanceNumber(number + 1));
        assert_eq!(table.feed(overran(this, false, false)), [Action::DisableRoute(this), Action::Kill(this)]);
        assert_eq!(table.feed(Event::Demand), []);
        assert_eq!(table.feed(Event::Gone(this)), [start(next, OLD)]);
        assert!(!table.fleet.refuses_requests());
        assert_eq!(table.feed(Event::Ready(next)), [Action::EnableRoute(next)]);
        table.feed(Event::Busy(next));
    }
    assert_eq!((table.fleet.deaths(), table.fleet.failures()), (10, 0));
    // An instance that dies by itself backs off as ever.
    let next = InstanceNumber(11);
    assert_eq!(table.feed(Event::Gone(next)), [Action::Prepare(OLD)]);
    assert!(!table.fleet.refuses_requests(), "it was the first death");
}

#[test]
fn other_handlers_go_on_until_their_end_after_a_replacement_is_ready() {
    let mut table = busy(settings());
    assert_eq!(table.at(1, overran(A, true, true)), [start(B, OLD)], "one more than `max`");
    assert_eq!(table.at(2, overran(A, true, false)), [], "another handler is stuck");
    assert_eq!(table.at(3, Event::Ready(B)), [Action::EnableRoute(B), Action::DisableRoute(A)]);
    assert_eq!(table.phase(A), Phase::Draining { until: 63 * SECOND }, "as long as their deadlines allow, not `drain`");
    assert_eq!(table.at(40, overran(A, false, true)), [Action::Kill(A)], "the last of them has its answer");
    assert_eq!(table.at(41, Event::Gone(A)), []);
    assert_eq!((table.fleet.deaths(), table.fleet.failures(), table.fleet.live(OLD)), (1, 0, 1));
}

#[test]
fn with_slots_left_it_serves_until_the_next_one_does_though_nobody_is_in_it() {
    let mut table = busy(settings());
    assert_eq!(table.at(1, overran(A, false, true)), [start(B, OLD)]);
    assert_eq!(table.at(2, Event::Ready(B)), [Action::EnableRoute(B), Action::DisableRoute(A), Action::Kill(A)]);
    assert_eq!(table.at(3, Event::Gone(A)), []);
}

#[test]
fn without_room_beside_it_serves_with_what_is_left_and_ends_when_nobody_is_in_it() {
    let mut table = busy(settings());
    assert_eq!(table.at(1, overran(A, true, true)), [start(B, OLD)]);
    assert_eq!(table.feed(Event::NoCapacity { instance: B, permanent: true, recreate_fits: false }), []);
    assert!(!table.fleet.refuses_requests());
    assert_eq!(table.feed(overran(A, true, false)), [], "others have its slots");
    assert_eq!(table.at(2, overran(A, false, true)), [Action::DisableRoute(A), Action::Kill(A)]);
    assert_eq!(table.at(3, Event::Gone(A)), [Action::Prepare(OLD)], "its place is free: nothing waits for a pause");
    // There may be room later.
    let mut table = busy(settings());
    table.at(1, overran(A, true, true));
    table.feed(Event::NoCapacity { instance: B, permanent: false, recreate_fits: false });
    assert_eq!(table.at(3, Event::Tick), [Action::Prepare(OLD)]);
    assert_eq!(table.feed(Event::Prepared(OLD)), [start(C, OLD)]);
}

#[test]
fn a_recovered_instance_goes_on_unless_it_was_replaced() {
    let mut table = busy(settings());
    table.at(1, overran(A, true, true));
    table.feed(Event::NoCapacity { instance: B, permanent: false, recreate_fits: false });
    assert_eq!(table.feed(Event::Recovered(A)), []);
    table.feed(Event::Idle(A));
    assert_eq!(table.at(100, Event::Tick), [], "nothing is missing");
    assert_eq!((table.phase(A), table.fleet.live(OLD)), (table.phase(A), 1));
    // The one that was started takes its place.
    let mut table = busy(settings());
    assert_eq!(table.at(1, overran(A, true, true)), [start(B, OLD)]);
    assert_eq!(table.feed(Event::Recovered(A)), []);
    assert_eq!(table.feed(Event::Idle(A)), []);
    assert_eq!(table.feed(Event::Ready(B)), [Action::EnableRoute(B), Action::DisableRoute(A), Action::Stop(A)]);
    assert_eq!((table.at(2, Event::Gone(A)), table.fleet.deaths()), (vec![], 0), "a wanted end");
    // Where the model may have as many, both serve.
    let mut table = busy(up_to(2));
    assert_eq!(table.at(1, overran(A, true, true)), [start(B, OLD)]);
    table.feed(Event::Recovered(A));
    assert_eq!(table.feed(Event::Ready(B)), [Action::EnableRoute(B)]);
}

#[test]
fn replacements_of_stuck_instances_are_at_most_max_instances() {
    let mut table = busy(settings());
    assert_eq!(table.at(1, overran(A, true, true)), [start(B, OLD)]);
    assert_eq!(table.feed(Event::Ready(B)), [Action::EnableRoute(B), Action::DisableRoute(A)]);
    table.feed(Event::Busy(B));
    assert_eq!(table.at(2, overran(B, true, true)), [], "two are there");
    assert_eq!(table.feed(overran(B, true, false)), [], "it serves as long as somebody is in it");
    assert_eq!(table.feed(overran(A, false, false)), [Action::Kill(A)]);
    assert_eq!(table.feed(Event::Gone(A)), [start(C, OLD)]);
    assert_eq!(table.feed(Event::Ready(C)), [Action::EnableRoute(C), Action::DisableRoute(B)]);
}

#[test]
fn on_the_way_down_others_are_waited_for_and_stuck_handlers_are_not() {
    for order in [Event::Stop, content(NEW, settings())] {
        let mut table = busy(settings());
        table.at(1, order);
        if order != Event::Stop {
            table.feed(Event::Prepared(NEW));
            assert_eq!(table.at(2, Event::Ready(B))[..2], [Action::DisableRoute(A), Action::Serve(NEW)]);
        }
        assert!(matches!(table.phase(A), Phase::Draining { .. }));
        assert_eq!(table.feed(overran(A, true, false)), []);
        assert_eq!(table.feed(overran(A, false, false)), [Action::Kill(A)]);
        assert!(table.fleet.stop_was_requested(A));
        table.feed(Event::Gone(A));
        assert_eq!(table.fleet.deaths(), 0, "{order:?}");
    }
    // No other request is in it when it has to go.
    let mut table = busy(up_to(2));
    table.at(1, overran(A, false, true));
    assert_eq!(table.feed(Event::Stop)[..2], [Action::DisableRoute(A), Action::Kill(A)]);
}
