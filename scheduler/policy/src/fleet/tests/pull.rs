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
fn a_stop_ends_a_pull() {
    for is_held in [false, true] {
        let mut table = Table::new(settings());
        if is_held {
            table.feed(Event::Stop);
        }
        table.feed(Event::Pull);
        assert_eq!(table.feed(Event::Stop), [Action::CancelPreparation(OLD), Action::RefuseWaiting], "{is_held}");
        assert_eq!(table.fleet.start_state(OLD), Some(StartState::Unprepared));
        assert_eq!(table.feed(Event::Pull), [Action::Prepare(OLD)], "the next one begins anew");
    }
}

#[test]
fn a_preparation_that_fails_is_no_death_and_starts_nothing() {
    for (permanent, is_pulled) in [(false, true), (true, true), (false, false), (true, false)] {
        let mut table = Table::new(settings());
        let asked = table.feed(if is_pulled { Event::Pull } else { Event::Demand });
        assert_eq!(asked, [Action::Prepare(OLD)]);
        let next = table.feed(Event::PrepareFailed { generation: OLD, permanent });
        assert_eq!(next.contains(&Action::Prepare(OLD)), !permanent, "{next:?}");
        table.feed(Event::PrepareFailed { generation: OLD, permanent });
        assert_eq!((table.fleet.deaths(), table.fleet.failures()), (0, if permanent { 1 } else { 2 }));
        // Retries belong to requests: a pull is over, and brings up no instance.
        let later = table.at(100, Event::Tick);
        assert_eq!(
            later.contains(&Action::Prepare(OLD)),
            !permanent && !is_pulled,
            "{permanent} {is_pulled}: {later:?}"
        );
    }
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
