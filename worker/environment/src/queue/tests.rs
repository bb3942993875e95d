//! Tests of the order in which environments are built: bounds, turns, and no starvation.

use super::*;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const ONE_EACH: Counts = Counts { wheels: 1, source: 1 };

fn key(number: u32) -> EnvironmentKey {
    EnvironmentKey::parse(&format!("{number:064x}")).unwrap()
}

fn begun(queue: &mut Queue) -> Vec<(u32, Kind)> {
    let next =
        || queue.begin_next().map(|(key, place)| (u32::from_str_radix(&key.as_str()[48..], 16).unwrap(), place.kind));
    std::iter::from_fn(next).collect()
}

#[test]
fn wheels_do_not_wait_for_builds_from_source() {
    let mut queue = Queue::new(ONE_EACH);
    queue.add(key(1), "slow", Kind::Source).unwrap();
    queue.add(key(2), "quick", Kind::Wheels).unwrap();
    queue.add(key(3), "slower", Kind::Source).unwrap();
    assert_eq!(begun(&mut queue), [(2, Kind::Wheels), (1, Kind::Source)]);
    assert_eq!(queue.counts(), (ONE_EACH, Counts { wheels: 0, source: 1 }));
    queue.again(&key(2), "quick", Kind::Source);
    assert_eq!((queue.runs(&key(2)), queue.kind(&key(2))), (Some(false), Some(Kind::Source)));
    assert_eq!(begun(&mut queue), []);
    queue.remove(&key(1));
    assert_eq!(begun(&mut queue), [(3, Kind::Source)], "it waited before the other");
    queue.remove(&key(3));
    assert_eq!(begun(&mut queue), [(2, Kind::Source)]);
    assert_eq!(queue.running(Kind::Source).collect::<Vec<_>>(), [(&key(2), "quick")]);
}

#[test]
fn models_take_turns_and_have_one_place_of_a_kind() {
    let mut queue = Queue::new(Counts { wheels: 2, source: 1 });
    for number in 1..=3 {
        queue.add(key(number), "many", Kind::Wheels).unwrap();
    }
    assert_eq!(begun(&mut queue), [(1, Kind::Wheels)], "the second place is for another model");
    queue.add(key(4), "one", Kind::Wheels).unwrap();
    queue.add(key(5), "two", Kind::Wheels).unwrap();
    assert_eq!(begun(&mut queue), [(4, Kind::Wheels)]);
    queue.remove(&key(1));
    assert_eq!(begun(&mut queue), [(2, Kind::Wheels)], "it has waited for its turn longer than `two`");
    queue.remove(&key(2));
    assert_eq!(begun(&mut queue), [(5, Kind::Wheels)], "and now it has not");
}

#[test]
fn an_unwanted_build_goes_on_for_another_model() {
    let mut queue = Queue::new(ONE_EACH);
    queue.add(key(1), "a", Kind::Wheels).unwrap();
    queue.add(key(2), "b", Kind::Wheels).unwrap();
    assert_eq!(begun(&mut queue), [(1, Kind::Wheels)]);
    queue.hand_over(&key(1), "c");
    assert_eq!(queue.running(Kind::Wheels).collect::<Vec<_>>(), [(&key(1), "c")]);
    queue.hand_over(&key(2), "d");
    queue.remove(&key(1));
    assert_eq!(begun(&mut queue), [(2, Kind::Wheels)]);
    assert_eq!(queue.running(Kind::Wheels).collect::<Vec<_>>(), [(&key(2), "d")]);
}

#[test]
fn a_models_environments_are_bounded_and_so_are_all() {
    let mut queue = Queue::new(ONE_EACH);
    for number in 0..u32::try_from(IN_ALL).unwrap() {
        queue.add(key(number), &format!("m{}", number as usize / PER_MODEL), Kind::Wheels).unwrap();
    }
    assert_eq!(queue.add(key(5000), "new", Kind::Wheels), Err(Full::All));
    queue.remove(&key(0));
    assert_eq!(queue.add(key(5000), "m1", Kind::Wheels), Err(Full::Model));
    assert_eq!(queue.add(key(5000), "new", Kind::Wheels), Ok(()));
}

#[test]
fn places_are_bounded_by_the_machine() {
    const GIB: u64 = 1 << 30;
    for (builds, processors, memory, uids, wheels, source) in [
        (2, 64, 64 * GIB, 4096, 2, 2),
        (2, 2, 64 * GIB, 4096, 2, 1),
        (2, 64, 8 * GIB, 4096, 2, 1),
        (8, 64, 64 * GIB, 4096, 8, 8),
        (16, 64, 64 * GIB, 4096, 16, 8),
        (16, 8, 64 * GIB, 4096, 16, 4),
        (4, 64, GIB, 4096, 4, 1),
        (4, 64, 64 * GIB, 4, 4, 2),
        (4, 64, 64 * GIB, 1, 4, 1),
    ] {
        let machine = Machine { processors, memory, uids };
        assert_eq!(places(builds, 4 * GIB, machine), Counts { wheels, source }, "{builds} {machine:?}");
    }
    assert_eq!([1, 2, 16].map(|processors| cpu_millis(None, processors)), [500, 500, 4000]);
    assert_eq!(cpu_millis(Some(0.1), 16), 100);
}

#[derive(Debug, Clone)]
enum Step {
    Add { model: u8, source: bool },
    NeedsSource(usize),
    End(usize),
    Drop(usize),
    HandOver(usize, u8),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..6_u8, any::<bool>()).prop_map(|(model, source)| Step::Add { model, source }),
        1 => any::<usize>().prop_map(Step::NeedsSource),
        2 => any::<usize>().prop_map(Step::End),
        1 => any::<usize>().prop_map(Step::Drop),
        1 => (any::<usize>(), 0..6_u8).prop_map(|(which, model)| Step::HandOver(which, model)),
    ]
}

/// Picks a key by number.
fn pick(keys: &[EnvironmentKey], which: usize) -> Option<EnvironmentKey> {
    keys.get(which.checked_rem(keys.len())?).cloned()
}

fn keys(queue: &Queue, runs: bool) -> Vec<EnvironmentKey> {
    queue.jobs.iter().filter(|(_, job)| job.place.is_some() == runs).map(|(key, _)| key.clone()).collect()
}

/// Places are neither overcommitted nor left free while a model waits that may have one.
fn assert_fair(queue: &Queue) {
    for kind in Kind::ALL {
        let running: Vec<_> = queue.running(kind).map(|(_, model)| model).collect();
        assert!(running.len() <= queue.places.of(kind) as usize);
        let places: BTreeSet<_> =
            queue.jobs.values().filter(|job| job.kind == kind).filter_map(|job| job.place).collect();
        assert_eq!(places.len(), running.len(), "each has a place of its own");
        let waits: BTreeSet<_> =
            queue.jobs.values().filter(|job| job.kind == kind && job.place.is_none()).map(|job| &job.model).collect();
        let may_begin = waits.iter().any(|model| !running.contains(&model.as_str()));
        assert!(!may_begin || running.len() == queue.places.of(kind) as usize, "a place is free and {waits:?} wait");
        let rounds: usize = queue.rounds.get(&kind).map_or(0, |round| round.iter().map(|(_, keys)| keys.len()).sum());
        assert_eq!(rounds, keys(queue, false).iter().filter(|key| queue.kind(key) == Some(kind)).count());
    }
}

proptest! {
    #[test]
    fn bounds_hold_and_no_model_starves(
        wheels in 1..4_u32, source in 1..4_u32, steps in prop::collection::vec(step(), 1..200)
    ) {
        let mut queue = Queue::new(Counts { wheels, source });
        // Turns that others had of the same kind since a model waits.
        let mut passed: BTreeMap<(Kind, String), BTreeMap<String, u32>> = BTreeMap::new();
        for (number, step) in (0_u32..).zip(steps) {
            match step {
                Step::Add { model, source } => {
                    let kind = if source { Kind::Source } else { Kind::Wheels };
                    let _ = queue.add(key(number), &format!("m{model}"), kind);
                }
                Step::NeedsSource(which) => {
                    let running: Vec<_> = queue.running(Kind::Wheels).map(|(key, _)| key.clone()).collect();
                    if let Some(key) = pick(&running, which) {
                        let model = queue.jobs[&key].model.clone();
                        queue.again(&key, &model, Kind::Source);
                    }
                }
                Step::End(which) => {
                    if let Some(key) = pick(&keys(&queue, true), which) { queue.remove(&key) }
                }
                Step::Drop(which) => {
                    if let Some(key) = pick(&keys(&queue, false), which) { queue.remove(&key) }
                }
                Step::HandOver(which, model) => {
                    // Only of what waits: a model that takes over what runs may have two places.
                    if let Some(key) = pick(&keys(&queue, false), which) { queue.hand_over(&key, &format!("m{model}")) }
                }
            }
            while let Some((key, place)) = queue.begin_next() {
                let turn = queue.jobs[&key].model.clone();
                passed.remove(&(place.kind, turn.clone()));
                let waits: BTreeSet<_> = queue.rounds.get(&place.kind).into_iter().flatten()
                    .map(|(model, _)| model.clone()).filter(|model| !queue.builds(model, place.kind)).collect();
                passed.retain(|(kind, model), _| *kind != place.kind || waits.contains(model));
                for model in waits {
                    let turns = passed.entry((place.kind, model)).or_default().entry(turn.clone()).or_default();
                    *turns += 1;
                    prop_assert!(*turns <= 1, "{turn} had {turns} turns while another model waited");
                }
            }
            passed.retain(|(kind, model), _| {
                let mut waits = queue.rounds.get(kind).into_iter().flatten();
                waits.any(|(waits, _)| waits == model) && !queue.builds(model, *kind)
            });
            assert_fair(&queue);
        }
    }
}
