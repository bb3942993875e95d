//! Idle time: from a model's last use, whatever becomes of its instances.

use super::*;

/// The instance that begins to leave at this second for having nothing to do.
fn leaves(table: &mut Table, second: u64) -> Vec<(InstanceNumber, StopReason)> {
    table.now = Moment::from_secs(second);
    table.reasons(Event::Tick)
}

/// `A` had a request until the tenth second.
fn used() -> Table {
    let mut table = Table::ready(settings());
    table.feed(Event::Busy(A));
    table.at(10, Event::Idle(A));
    table
}

/// The instance in place of one that died at this second.
fn dies(table: &mut Table, second: u64, instance: InstanceNumber, next: InstanceNumber) {
    let prepared = |actions: Vec<Action>| assert_eq!(actions, [Action::Prepare(OLD)]);
    prepared(table.at(second, Event::Gone(instance)));
    assert_eq!(table.feed(Event::Prepared(OLD)), [start(next, OLD)]);
    assert_eq!(table.feed(Event::Ready(next)), [Action::EnableRoute(next)]);
}

#[test]
fn a_model_that_dies_while_it_is_idle_stops_all_the_same() {
    let mut table = used();
    dies(&mut table, 200, A, B);
    dies(&mut table, 550, B, C);
    assert_eq!(leaves(&mut table, 609), []);
    assert_eq!(leaves(&mut table, 610), [(C, StopReason::Idle)]);
}

#[test]
fn an_instance_that_dies_after_its_idle_time_is_not_restarted() {
    let mut table = used();
    assert_eq!(table.at(610, Event::Gone(A)), []);
    assert_eq!(table.at(611, Event::Demand), [Action::Prepare(OLD)], "a request starts it");

    // Nor is one whose pause between two tries outlasts it.
    let mut table = used();
    table.at(605, Event::Gone(A));
    table.at(606, Event::Prepared(OLD));
    table.at(607, Event::Gone(B));
    assert!(
        matches!(table.fleet.start_state(OLD), Some(StartState::BackingOff { .. })),
        "{:?}",
        table.fleet.start_state(OLD)
    );
    assert_eq!(table.at(1200, Event::Tick), []);
}

#[test]
fn an_instance_ready_after_the_idle_time_stops_soon() {
    let mut table = used();
    assert_eq!(table.at(600, Event::Gone(A)), [Action::Prepare(OLD)]);
    assert_eq!(table.feed(Event::Prepared(OLD)), [start(B, OLD)]);
    assert_eq!(table.at(650, Event::Ready(B)), [Action::EnableRoute(B)]);
    assert_eq!(leaves(&mut table, 650), []);
    assert_eq!(leaves(&mut table, 651), [(B, StopReason::Idle)]);
}

#[test]
fn a_death_in_use_and_a_start_for_a_request_begin_it_anew() {
    let mut table = used();
    table.at(300, Event::Busy(A));
    dies(&mut table, 400, A, B);
    assert_eq!(leaves(&mut table, 999), []);
    assert_eq!(leaves(&mut table, 1000), [(B, StopReason::Idle)]);

    // The `setup` takes longer than the idle time.
    let mut table = Table::new(Settings { startup: 3600 * SECOND, ..settings() });
    table.feed(Event::Demand);
    table.feed(Event::Prepared(OLD));
    table.at(1000, Event::Ready(A));
    assert_eq!(leaves(&mut table, 1599), []);
    assert_eq!(leaves(&mut table, 1600), [(A, StopReason::Idle)]);
}

#[test]
fn a_further_instance_counts_from_the_use_of_the_others() {
    let mut table = Table::ready(up_to(2));
    table.feed(Event::Busy(A));
    table.at(100, Event::DesiredInstances(2));
    table.at(300, Event::Ready(B));
    table.at(301, Event::DesiredInstances(1));
    assert_eq!(leaves(&mut table, 899), []);
    assert_eq!(leaves(&mut table, 900), [(B, StopReason::Idle)]);
}

#[test]
fn a_deployment_and_an_adoption_begin_it_anew_and_a_death_after_them_does_not() {
    let mut table = used();
    table.at(400, content(NEW, settings()));
    table.feed(Event::Prepared(NEW));
    assert_eq!(table.at(500, Event::Ready(B))[..1], [Action::DisableRoute(A)]);
    table.feed(Event::Gone(A));
    table.at(600, Event::Gone(B));
    table.feed(Event::Prepared(NEW));
    assert_eq!(table.at(610, Event::Ready(C)), [Action::EnableRoute(C)]);
    assert_eq!(leaves(&mut table, 1099), []);
    assert_eq!(leaves(&mut table, 1100), [(C, StopReason::Idle)]);

    let mut table = Table { fleet: Fleet::new(false, 0), now: Moment::from_secs(50) };
    let instance = table.fleet.next_number();
    table.feed(Event::Adopted { instance, generation: OLD, settings: settings(), ready: true, was_ready: true });
    table.feed(content(OLD, settings()));
    dies(&mut table, 100, A, B);
    assert_eq!(leaves(&mut table, 649), []);
    assert_eq!(leaves(&mut table, 650), [(B, StopReason::Idle)]);
}

#[test]
fn a_failed_start_is_not_retried_without_a_request() {
    let mut table = used();
    table.at(20, Event::Gone(A));
    table.feed(Event::Prepared(OLD));
    assert!(!table.fleet.is_unsolicited_retry(), "it served a moment ago");
    table.at(21, Event::Gone(B));
    assert!(matches!(table.fleet.start_state(OLD), Some(StartState::BackingOff { .. })));
    assert!(table.fleet.is_unsolicited_retry());
    for asks in [Event::Demand, Event::Start] {
        let mut asked = Table { fleet: table.fleet.clone(), ..Table::new(settings()) };
        asked.at(22, asks);
        assert!(!asked.fleet.is_unsolicited_retry());
    }
}
