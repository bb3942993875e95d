//! Instances of an earlier scheduler, found before or after the directory's content is known.

use super::*;

fn unknown() -> Table {
    Table { fleet: Fleet::new(false, 0), now: Moment::ZERO }
}

fn adopted(table: &mut Table, generation: Generation, ready: bool) -> (InstanceNumber, Vec<Action>) {
    let instance = table.fleet.next_number();
    (instance, table.feed(Event::Adopted { instance, generation, settings: up_to(2), ready, was_ready: false }))
}

#[test]
fn an_instance_of_the_present_content_serves_on() {
    let mut table = unknown();
    let serves_on = [Action::Serve(OLD), Action::RecordReady(OLD), Action::EnableRoute(A)];
    assert_eq!(adopted(&mut table, OLD, true), (A, serves_on.to_vec()));
    assert_eq!(adopted(&mut table, OLD, true), (B, vec![Action::EnableRoute(B)]), "and so does another one");
    assert_eq!(table.feed(content(OLD, up_to(2))), []);

    let mut table = Table::new(up_to(2));
    assert_eq!(adopted(&mut table, OLD, true), (A, vec![Action::RecordReady(OLD), Action::EnableRoute(A)]));
}

#[test]
fn missing_instances_start_only_after_adoption() {
    let two = Settings { min: 2, ..up_to(2) };
    let mut table = unknown();
    let instance = table.fleet.next_number();
    let first = table.feed(Event::Adopted { instance, generation: OLD, settings: two, ready: true, was_ready: false });
    assert_eq!(first, [Action::Serve(OLD), Action::RecordReady(OLD), Action::EnableRoute(A)]);
    let instance = table.fleet.next_number();
    table.feed(Event::Adopted { instance, generation: OLD, settings: two, ready: true, was_ready: false });
    assert_eq!(table.feed(content(OLD, two)), [], "both are there");

    let mut table = unknown();
    let instance = table.fleet.next_number();
    table.feed(Event::Adopted { instance, generation: OLD, settings: two, ready: true, was_ready: false });
    assert_eq!(table.feed(content(OLD, two)), [Action::Prepare(OLD)], "one is not");
}

#[test]
fn a_starting_instance_goes_on_after_adoption() {
    let mut table = unknown();
    assert_eq!(adopted(&mut table, OLD, false), (A, vec![Action::Serve(OLD)]));
    assert_eq!(table.fleet.wake_at(), Some(120 * SECOND));
    table.feed(content(OLD, up_to(2)));
    assert_eq!(table.feed(Event::Ready(A)), [Action::RecordReady(OLD), Action::EnableRoute(A)]);
}

#[test]
fn an_old_one_serves_until_the_new_content_is_ready() {
    for content_first in [true, false] {
        let mut table = unknown();
        if content_first {
            table.feed(content(NEW, settings()));
        }
        let (_, actions) = adopted(&mut table, OLD, true);
        assert!(
            actions.starts_with(&[Action::Serve(OLD), Action::RecordReady(OLD), Action::EnableRoute(A)]),
            "{actions:?}"
        );
        if !content_first {
            assert_eq!(table.feed(content(NEW, settings())), [Action::Prepare(NEW)]);
        }
        assert_eq!((table.fleet.serving(), table.fleet.candidate()), (Some(OLD), Some(NEW)));
        table.feed(Event::Prepared(NEW));
        assert!(table.feed(Event::Ready(B)).contains(&Action::Serve(NEW)));
    }
}

#[test]
fn in_the_middle_of_a_change_the_newest_ready_generation_serves_if_it_is_the_directorys() {
    // In which order the two are found, and when the directory's content becomes known.
    for (first, second) in [(OLD, NEW), (NEW, OLD)] {
        for known in 0..3 {
            for target in [OLD, NEW] {
                let mut table = unknown();
                for (found, generation) in [first, second].into_iter().enumerate() {
                    if known == found {
                        table.feed(content(target, up_to(2)));
                    }
                    adopted(&mut table, generation, true);
                }
                if known == 2 {
                    table.feed(content(target, up_to(2)));
                }
                assert_eq!(table.fleet.serving(), Some(target), "{first:?} first, known at {known}");
                assert_eq!(table.fleet.candidate(), None);
                let up = table.fleet.instances().filter(|(_, _, phase)| matches!(phase, Phase::Ready { .. }));
                assert_eq!(up.map(|(_, generation, _)| generation).collect::<Vec<_>>(), [target]);
            }
        }
    }
}

#[test]
fn a_change_goes_on_where_it_was() {
    let mut table = unknown();
    adopted(&mut table, OLD, true);
    assert_eq!(adopted(&mut table, NEW, false), (B, vec![]), "kept until it is known what it is");
    assert_eq!(table.feed(content(NEW, up_to(2))), []);
    assert!(table.feed(Event::Ready(B)).contains(&Action::Serve(NEW)));

    let mut table = unknown();
    adopted(&mut table, OLD, true);
    adopted(&mut table, OLD, true);
    adopted(&mut table, NEW, true);
    assert_eq!(table.feed(content(NEW, up_to(2))), [Action::Prepare(NEW)], "it needs a second one");
    assert_eq!(table.feed(Event::Prepared(NEW)), [start(D, NEW)]);
    assert!(table.feed(Event::Ready(D)).contains(&Action::Serve(NEW)));
}

#[test]
fn an_adopted_instance_without_need_ends() {
    let mut table = unknown();
    adopted(&mut table, OLD, true);
    adopted(&mut table, NEW, false);
    assert_eq!(table.feed(content(OLD, up_to(2))), [Action::Kill(B)]);
    assert_eq!(table.feed(Event::Gone(B)), [Action::Forget(NEW)]);

    let mut table = Table::new(up_to(2));
    assert_eq!(adopted(&mut table, NEW, false), (A, vec![Action::Kill(A)]), "not even ready");
    assert_eq!(table.fleet.serving(), Some(OLD));
}

#[test]
fn a_held_or_removed_model_keeps_nothing() {
    let mut table = Table { fleet: Fleet::new(true, 0), now: Moment::ZERO };
    assert_eq!(adopted(&mut table, OLD, true), (A, vec![Action::Stop(A), Action::Serve(OLD)]));
    let mut table = unknown();
    table.feed(Event::Removed);
    assert_eq!(adopted(&mut table, OLD, true), (A, vec![Action::Stop(A)]));
    assert_eq!(table.feed(Event::Gone(A)), [Action::Forget(OLD), Action::End]);
}

#[test]
fn the_serving_generation_goes_on_beside_an_unusable_directory() {
    let mut table = unknown();
    table.feed(Event::UnservableContent);
    let (_, actions) = adopted(&mut table, OLD, true);
    assert_eq!(actions, [Action::Serve(OLD), Action::RecordReady(OLD), Action::EnableRoute(A)]);
}

#[test]
fn a_starting_instance_serves_if_its_version_was_ready_once() {
    for was_ready in [false, true] {
        let mut table = unknown();
        let instance = table.fleet.next_number();
        table.feed(Event::Adopted { instance, generation: OLD, settings: up_to(2), ready: false, was_ready });
        table.feed(content(NEW, settings()));
        let expected = if was_ready { (Some(OLD), Some(NEW)) } else { (Some(NEW), None) };
        assert_eq!((table.fleet.serving(), table.fleet.candidate()), expected);
    }
}

/// A scheduler that came in the middle of a candidate's start knows from before what to fall back on.
#[test]
fn a_proven_generation_serves_before_a_starting_one() {
    for served_first in [true, false] {
        let mut table = unknown();
        let served = Event::LastServed { generation: OLD, settings: settings() };
        if served_first {
            assert_eq!(table.feed(served), [Action::Serve(OLD)]);
        }
        adopted(&mut table, NEW, false);
        if !served_first {
            assert_eq!(table.feed(served), [Action::Serve(OLD)]);
        }
        table.feed(content(NEW, settings()));
        assert_eq!((table.fleet.serving(), table.fleet.candidate()), (Some(OLD), Some(NEW)));
    }
}

/// A candidate of which only some instances are ready is found first, or last.
#[test]
fn a_candidate_that_is_ready_in_part_goes_on_as_one() {
    for order in [[NEW, OLD, OLD], [OLD, NEW, OLD], [OLD, OLD, NEW]] {
        let mut table = unknown();
        table.feed(Event::LastServed { generation: OLD, settings: up_to(2) });
        for generation in order {
            let (instance, actions) = adopted(&mut table, generation, true);
            let opens = (generation == OLD).then_some(Action::EnableRoute(instance));
            assert_eq!(actions, Vec::from_iter(opens), "{generation:?} in {order:?}");
        }
        assert_eq!(table.feed(content(NEW, up_to(2))), [Action::Prepare(NEW)]);
        assert_eq!(table.feed(Event::Prepared(NEW)), [start(D, NEW)]);
        let moved = table.feed(Event::Ready(D));
        assert!(moved.contains(&Action::Serve(NEW)) && moved.contains(&Action::RecordReady(NEW)), "{moved:?}");
    }
}

#[test]
fn the_last_served_version_makes_way_when_cold_for_ready_content() {
    let mut table = unknown();
    table.feed(Event::LastServed { generation: OLD, settings: up_to(2) });
    assert_eq!(adopted(&mut table, NEW, true), (A, vec![]));
    let serves = [Action::Serve(NEW), Action::RecordReady(NEW), Action::EnableRoute(A)];
    assert_eq!(table.feed(content(NEW, up_to(2))), serves);

    let mut table = unknown();
    table.feed(Event::LastServed { generation: OLD, settings: up_to(2) });
    adopted(&mut table, NEW, true);
    assert_eq!(table.feed(content(OLD, up_to(2))), [Action::Stop(A)], "it was not the directory's");
    assert_eq!(table.fleet.serving(), Some(OLD));
}

#[test]
fn the_last_served_version_counts_only_before_the_directory_is_known() {
    let mut table = Table::new(up_to(2));
    assert_eq!(table.feed(Event::LastServed { generation: NEW, settings: up_to(2) }), [Action::Forget(NEW)]);
    let mut table = unknown();
    adopted(&mut table, OLD, true);
    assert_eq!(table.feed(Event::LastServed { generation: NEW, settings: up_to(2) }), [Action::Forget(NEW)]);
    assert_eq!(table.fleet.serving(), Some(OLD), "and before something that is ready serves");
}
