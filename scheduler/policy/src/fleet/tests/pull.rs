//! Pull: the newest content is prepared, and nothing starts for it.

use super::*;

#[test]
fn a_pull_prepares_and_starts_nothing() {
    let mut table = Table::new(settings());
    assert_eq!(table.feed(Event::Pull), [Action::Prepare(OLD)]);
    assert_eq!(table.fleet.start_state(OLD), Some(StartState::Preparing));
    assert_eq!(table.feed(Event::Pull), []);
    assert_eq!(table.at(5, Event::Tick), [], "nobody needs it, and it goes on");
    assert_eq!(table.feed(Event::Prepared(OLD)), []);
    assert_eq!(table.fleet.start_state(OLD), Some(StartState::Unprepared));
    // A request starts it as ever.
    assert_eq!(table.feed(Event::Demand), [Action::Prepare(OLD)]);
    assert_eq!(table.feed(Event::Prepared(OLD)), [start(A, OLD)]);
}

#[test]
fn a_request_during_a_pull_starts_an_instance_with_its_end() {
    let mut table = Table::new(settings());
    table.feed(Event::Pull);
    assert_eq!(table.feed(Event::Demand), []);
    assert_eq!(table.feed(Event::Prepared(OLD)), [start(A, OLD)]);
}

#[test]
fn a_failed_pull_is_over_and_the_next_one_tries_a_refused_content_again() {
    let mut table = Table::new(settings());
    table.feed(Event::Pull);
    table.feed(Event::PrepareFailed { generation: OLD, permanent: true });
    assert_eq!(table.fleet.start_state(OLD), Some(StartState::Refused));
    assert_eq!(table.at(1000, Event::Tick), []);
    assert_eq!(table.feed(Event::Pull), [Action::Prepare(OLD)]);
}

#[test]
fn a_held_model_is_pulled_and_stays_held() {
    let mut table = Table::new(settings());
    table.feed(Event::Stop);
    assert_eq!(table.feed(Event::Pull), [Action::Prepare(OLD)]);
    assert_eq!(table.feed(Event::Prepared(OLD)), []);
    assert!(table.fleet.held());
}

#[test]
fn a_pull_ends_with_its_content() {
    let mut table = Table::new(settings());
    table.feed(Event::Pull);
    let actions = table.feed(content(NEW, settings()));
    assert!(actions.contains(&Action::CancelPreparation(OLD)), "{actions:?}");
    assert!(!actions.contains(&Action::Prepare(NEW)), "{actions:?}");
    let mut table = Table::new(settings());
    table.feed(Event::Pull);
    assert!(table.feed(Event::Removed).contains(&Action::End));
}
