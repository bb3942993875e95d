//! How many: by the load between `min` and `max`, fast up, down by the idle time.

use super::*;

/// Three ready instances, `A`, `B` and `C`, idle since 0, 10 and 20 seconds.
fn three(min: u32) -> Table {
    let mut table = Table::ready(Settings { min, ..up_to(3) });
    table.feed(Event::DesiredInstances(3));
    for instance in [B, C] {
        table.feed(Event::Ready(instance));
    }
    for (seconds, instance) in [(0, A), (10, B), (20, C)] {
        table.feed(Event::Busy(instance));
        table.at(seconds, Event::Idle(instance));
    }
    table
}

#[test]
fn a_model_with_a_minimum_is_up_without_a_request_and_stays_up() {
    let mut table = Table { fleet: Fleet::new(false, 0), now: Moment::ZERO };
    let two = Settings { min: 2, ..up_to(3) };
    assert_eq!(table.feed(content(OLD, two)), [Action::Serve(OLD), Action::Prepare(OLD)]);
    assert_eq!(table.feed(Event::Prepared(OLD)), [start(A, OLD), start(B, OLD)]);
    table.feed(Event::Ready(A));
    table.feed(Event::Ready(B));
    assert_eq!(table.fleet.wake_at(), None, "no idle end");
    assert_eq!(table.at(5000, Event::Tick), []);
    assert_eq!(table.feed(Event::Gone(A)), [Action::Prepare(OLD)]);
}

#[test]
fn load_starts_further_ones_but_never_the_first() {
    let mut table = Table::new(up_to(3));
    assert_eq!(table.feed(Event::DesiredInstances(2)), [], "nobody waits");
    table.feed(Event::Demand);
    assert_eq!(table.feed(Event::Prepared(OLD)), [start(A, OLD), start(B, OLD)]);
    table.feed(Event::Ready(A));
    assert_eq!(table.feed(Event::DesiredInstances(9)), [start(C, OLD)], "never above max");
    assert_eq!(table.feed(Event::DesiredInstances(9)), []);
}

#[test]
fn unneeded_instances_stop_after_their_idle_time_the_longest_idle_first() {
    let mut table = three(0);
    assert_eq!(table.fleet.wake_at(), None, "all are needed");
    assert_eq!(table.at(700, Event::Tick), []);
    table.feed(Event::DesiredInstances(2));
    assert_eq!(table.fleet.wake_at(), Some(600 * SECOND));
    assert_eq!(table.feed(Event::Tick), [Action::DisableRoute(A), Action::Stop(A)]);
    assert_eq!(table.feed(Event::Tick), [], "two are needed");
    table.feed(Event::DesiredInstances(1));
    assert_eq!(
        table.feed(Event::Tick),
        [Action::DisableRoute(B), Action::Stop(B), Action::DisableRoute(C), Action::Stop(C)]
    );
    assert_eq!(table.fleet.deaths(), 0);
}

#[test]
fn the_minimum_stays_whatever_the_load_says() {
    let mut table = three(2);
    table.feed(Event::DesiredInstances(0));
    assert_eq!(table.at(5000, Event::Tick), [Action::DisableRoute(A), Action::Stop(A)]);
    assert_eq!(table.fleet.wake_at(), Some(5010 * SECOND), "only the end of the one that goes");
}

#[test]
fn a_leaving_instance_counts_until_it_is_gone() {
    let mut table = three(0);
    table.feed(Event::DesiredInstances(2));
    table.at(700, Event::Tick);
    assert_eq!(table.feed(Event::DesiredInstances(3)), []);
    assert_eq!(table.feed(Event::Gone(A)), [start(D, OLD)]);
}

#[test]
fn a_death_beside_others_is_made_good_only_if_it_is_needed_and_refuses_nobody() {
    let mut table = three(0);
    assert_eq!(table.at(30, Event::Gone(A)), [Action::Prepare(OLD)]);
    table.feed(Event::Prepared(OLD));
    assert_eq!(table.feed(Event::Gone(D)), [], "back-off, but two are there");
    assert!(!table.fleet.refuses_requests() && table.fleet.state() == ModelState::Ready);
    let mut table = three(0);
    table.feed(Event::DesiredInstances(2));
    assert_eq!(table.at(30, Event::Gone(A)), []);
}
