//! Any order of claims, reports, deaths, restarts, cancellation and time: every item has one result, in one file.

use crate::support::{HOUR, MODEL, OWNER, World, inconsistencies, left};
use omni_jobs::{Claim, Interruption, Limits, MAX_DEATHS, Recorded, Scope};
use proptest::prelude::*;
use std::collections::BTreeMap;

const ITEMS: u32 = 6;

#[derive(Debug, Clone, Copy)]
enum Op {
    Claim(u32),
    Complete(usize, u16),
    Die(usize),
    Preempt(usize),
    Drop(usize),
    Restart,
    Cancel,
    Hours(u32),
    Tend,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (1..4_u32).prop_map(Op::Claim),
        8 => (0..4_usize, prop_oneof![3 => Just(200), 1 => Just(500)]).prop_map(|(at, status)| Op::Complete(at, status)),
        3 => (0..4_usize).prop_map(Op::Die),
        2 => (0..4_usize).prop_map(Op::Preempt),
        2 => (0..4_usize).prop_map(Op::Drop),
        2 => Just(Op::Restart),
        1 => Just(Op::Cancel),
        1 => (1..9_u32).prop_map(Op::Hours),
        2 => Just(Op::Tend),
    ]
}

/// Reports that callers have made.
#[derive(Debug, Default)]
struct Known {
    /// Status of each recorded response.
    results: BTreeMap<u32, u16>,
    deaths: BTreeMap<u32, u32>,
}

fn take(claims: &mut Vec<Claim>, at: usize) -> Option<Claim> {
    (!claims.is_empty()).then(|| claims.remove(at % claims.len()))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases.div_ceil(4)))]
    #[test]
    fn every_item_has_one_result(ops in proptest::collection::vec(op(), 0..40)) {
        let mut world = World::new(Limits::default());
        let id = world.running(ITEMS);
        let (mut claims, mut known) = (Vec::new(), Known::default());
        for op in ops {
            match op {
                Op::Claim(most) => claims.extend(world.claim(id, most)),
                Op::Complete(at, status) => if let Some(mut claim) = take(&mut claims, at)
                    && world.complete(&mut claim, status) == Recorded::First
                {
                    prop_assert_eq!(known.results.insert(claim.item(), status), None);
                },
                Op::Die(at) => if let Some(claim) = take(&mut claims, at) {
                    *known.deaths.entry(claim.item()).or_default() += 1;
                    world.wait(claim.interrupted(Interruption::InstanceDied, world.now)).unwrap();
                },
                Op::Preempt(at) => if let Some(claim) = take(&mut claims, at) {
                    world.wait(claim.interrupted(Interruption::Preempted, world.now)).unwrap();
                },
                Op::Drop(at) => drop(take(&mut claims, at)),
                Op::Restart => {
                    claims.clear();
                    world = world.restart(Limits::default());
                }
                Op::Cancel => drop(world.wait(world.store.cancel(Scope::Owner(OWNER), id, world.now))),
                Op::Hours(hours) => world.pass(HOUR * hours),
                Op::Tend => drop(world.tend()),
            }
            let mut items: Vec<_> = claims.iter().map(Claim::item).collect();
            items.sort_unstable();
            items.dedup();
            prop_assert_eq!(items.len(), claims.len(), "an item is in flight once");
        }
        claims.clear();
        world = world.restart(Limits::default());
        prop_assert_eq!(inconsistencies(world.dir.path()), [""; 0]);
        finish(&world, id, &mut known);
        check(&world, id, &known)?;
    }
}

/// Completes what may still run.
fn finish(world: &World, id: omni_jobs::BatchId, known: &mut Known) {
    loop {
        let mut claims = world.wait(world.store.claim(id, MODEL, ITEMS)).unwrap();
        if claims.is_empty() {
            break;
        }
        for claim in &mut claims {
            assert_eq!(world.complete(claim, 200), Recorded::First);
            assert_eq!(known.results.insert(claim.item(), 200), None);
        }
    }
    world.tend();
}

fn check(world: &World, id: omni_jobs::BatchId, known: &Known) -> Result<(), TestCaseError> {
    let batch = world.batch(id);
    prop_assert!(batch.phase.is_over(), "{:?}", batch);
    let (output, error) = (world.output(batch.output), world.output(batch.error));
    let mut places: BTreeMap<String, &str> = BTreeMap::new();
    for (name, line) in &output {
        let item: u32 = name.trim_start_matches("item-").parse().unwrap();
        prop_assert_eq!(known.results.get(&item), Some(&200), "{}", line);
        prop_assert!(places.insert(name.clone(), "output").is_none());
    }
    let mut poisoned = 0;
    for (name, line) in &error {
        let item: u32 = name.trim_start_matches("item-").parse().unwrap();
        prop_assert!(places.insert(name.clone(), "error").is_none());
        match line["error"]["code"].as_str() {
            None => prop_assert_eq!(known.results.get(&item), Some(&500)),
            Some("instance_died") => {
                prop_assert_eq!(known.deaths.get(&item), Some(&MAX_DEATHS));
                poisoned += 1;
            }
            Some(code) => {
                prop_assert!(
                    ["batch_expired", "batch_cancelled"].contains(&code) && batch.status().name() != "completed"
                );
                prop_assert!(!known.results.contains_key(&item));
            }
        }
    }
    prop_assert_eq!(places.len(), ITEMS as usize);
    prop_assert_eq!(batch.counts.total, u64::from(ITEMS));
    prop_assert_eq!(batch.counts.completed, output.len() as u64);
    let failed = known.results.values().filter(|status| **status == 500).count() + poisoned;
    prop_assert_eq!(batch.counts.failed, failed as u64);
    prop_assert_eq!(
        left(world.dir.path()).len(),
        1 + usize::from(batch.output.is_some()) + usize::from(batch.error.is_some())
    );
    Ok(())
}
