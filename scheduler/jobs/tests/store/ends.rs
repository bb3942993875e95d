//! Attempts and batches that do not end well: deaths, interruptions, cancellation, the end of the window.

use crate::support::{HOUR, MODEL, OWNER, World, inconsistencies};
use omni_jobs::{BatchId, Claim, Interruption, JobError, Limits, MAX_DEATHS, MAX_LOST, Recorded, Scope};
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);

fn items(claims: &[Claim]) -> Vec<u32> {
    claims.iter().map(Claim::item).collect()
}

fn die(world: &World, claim: Claim) {
    world.wait(claim.interrupted(Interruption::InstanceDied, world.now)).unwrap();
}

#[test]
fn an_item_that_kills_its_instance_ends_and_takes_nobody_along() {
    let world = World::new(Limits::default());
    let id = world.running(6);
    // Item 2 kills: 0, 1 and 2 were in flight on that instance.
    let mut deaths = 0;
    loop {
        let claims = world.claim(id, 3);
        if claims.is_empty() {
            break;
        }
        let killed = claims.iter().any(|claim| claim.item() == 2);
        deaths += u32::from(killed);
        for mut claim in claims {
            if killed {
                die(&world, claim);
            } else {
                assert_eq!(world.complete(&mut claim, 200), Recorded::First);
            }
        }
        assert_eq!(inconsistencies(world.dir.path()), [""; 0]);
    }
    assert_eq!(deaths, MAX_DEATHS);
    world.tend();
    let batch = world.batch(id);
    assert_eq!((batch.status().name(), batch.counts.completed, batch.counts.failed), ("completed", 5, 1));
    let error = &world.output(batch.error)[0];
    assert_eq!((error.0.as_str(), &error.1["error"]["code"]), ("item-2", &"instance_died".into()));
}

#[test]
fn a_suspect_runs_alone_and_first() {
    let world = World::new(Limits::default());
    let (id, other) = (world.running(4), world.running(2));
    let mut claims = world.claim(id, 3);
    assert!(claims.iter().all(|claim| !claim.is_suspect()));
    die(&world, claims.remove(0));
    die(&world, claims.remove(0));
    assert!(world.claim(id, 9).is_empty(), "a suspect waits until its model has nothing else in flight");
    assert!(world.claim(other, 9).is_empty(), "nothing begins before it");
    world.complete(&mut claims[0], 200);
    let suspect = world.claim(id, 9);
    assert_eq!((items(&suspect), suspect[0].attempt(), suspect[0].is_suspect()), (vec![0], 2, true));
    assert!(world.claim(id, 9).is_empty() && world.claim(other, 9).is_empty(), "nothing runs beside it");
    let work = world.wait(world.store.work()).unwrap();
    assert_eq!((work[0].pending, work[0].suspects, work[0].in_flight), (2, 1, 1));
    drop(suspect);
    let mut others = world.claim(other, 9);
    assert_eq!(items(&others), [0, 1], "other batches have their turn");
    others.iter_mut().for_each(|claim| assert_eq!(world.complete(claim, 200), Recorded::First));
    for item in [0, 1] {
        let mut suspect = world.claim(id, 9);
        assert_eq!(items(&suspect), [item]);
        world.complete(&mut suspect[0], 200);
    }
    assert_eq!(items(&world.claim(id, 9)), [3], "then the others");
}

/// Batch of items that were all in flight when an instance died.
fn suspects(world: &World, items: u32) -> BatchId {
    let id = world.running(items);
    world.claim(id, items).into_iter().for_each(|claim| die(world, claim));
    id
}

/// Claims two items of each batch, whose turn it is or not.
fn look(world: &World, batches: &[BatchId]) -> Vec<Claim> {
    batches.iter().flat_map(|id| world.claim(*id, 2)).collect()
}

#[test]
fn suspects_of_one_batch_leave_turns_to_other_batches() {
    let world = World::new(Limits::default());
    let batches = [suspects(&world, 3), suspects(&world, 2), world.running(4)];
    let mut claimed = Vec::new();
    while batches.iter().any(|id| world.batch(*id).status().name() == "in_progress") {
        let mut claims = look(&world, &batches);
        let of = |claim: &Claim| batches.iter().position(|id| *id == claim.batch()).unwrap();
        claimed.push(claims.iter().map(|claim| (of(claim), claim.item())).collect::<Vec<_>>());
        claims.iter_mut().for_each(|claim| assert_eq!(world.complete(claim, 200), Recorded::First));
    }
    let turns = [
        vec![(0, 0)],
        vec![(1, 0)],
        vec![(2, 0), (2, 1)],
        vec![(0, 1)],
        vec![(1, 1)],
        vec![(2, 2), (2, 3)],
        vec![(0, 2)],
    ];
    assert_eq!(claimed, turns);
    assert_eq!(inconsistencies(world.dir.path()), [""; 0]);
}

#[test]
fn a_suspect_has_its_turn_beside_a_batch_that_always_runs() {
    let world = World::new(Limits::default());
    let batches = [world.running(100), suspects(&world, 1)];
    let mut running = look(&world, &batches);
    for looks in 0.. {
        assert!(looks < 5, "the suspect waits for the whole other batch");
        world.complete(&mut running.remove(0), 200);
        running.extend(look(&world, &batches));
        if running.iter().any(|claim| claim.batch() == batches[1]) {
            break;
        }
    }
    assert_eq!(running.len(), 1, "it runs alone");
}

#[test]
fn attempts_of_an_ended_process_are_counted_up_to_a_bound() {
    let mut world = World::new(Limits::default());
    let id = world.running(2);
    for attempt in 1..=MAX_LOST {
        let claims = world.claim(id, 1);
        assert_eq!((claims[0].item(), claims[0].attempt()), (0, attempt));
        claims.into_iter().for_each(std::mem::forget);
        // A copy of the files is what a killed process leaves: a store that was never closed.
        let copy = tempfile::tempdir().unwrap();
        copy_store(world.dir.path(), copy.path());
        let store = omni_jobs::JobStore::open(copy.path(), Limits::default(), world.now).unwrap();
        std::mem::forget(std::mem::replace(&mut world.store, store));
        world.dir = copy;
    }
    assert_eq!(items(&world.claim(id, 9)), [1]);
    world.pass(24 * HOUR);
    let batch = world.batch(id);
    assert_eq!(batch.status().name(), "expired");
    let errors = world.output(batch.error);
    assert_eq!((errors[0].0.as_str(), &errors[0].1["error"]["code"]), ("item-0", &"interrupted".into()));
}

fn copy_store(from: &std::path::Path, to: &std::path::Path) {
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            std::fs::create_dir_all(&target).unwrap();
            copy_store(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

#[test]
fn cancellation_keeps_results_and_waits_for_those_in_flight() {
    let mut world = World::new(Limits::default());
    let id = world.running(5);
    let mut claims = world.claim(id, 3);
    world.complete(&mut claims[0], 200);
    let cancel = |world: &World| world.wait(world.store.cancel(Scope::Owner(OWNER), id, world.now)).unwrap();
    assert_eq!(cancel(&world).status().name(), "cancelling");
    assert_eq!(cancel(&world).status().name(), "cancelling", "again");
    assert!(world.claim(id, 9).is_empty());
    assert!(world.wait(world.store.work()).unwrap()[0].stopping);
    world.pass(5 * MINUTE);
    assert_eq!(world.complete(&mut claims[1], 200), Recorded::First, "in the grace");
    world.pass(4 * MINUTE);
    assert_eq!(world.batch(id).status().name(), "cancelling");
    world.pass(2 * MINUTE);
    let batch = world.batch(id);
    assert_eq!((batch.status().name(), batch.counts.completed, batch.counts.failed), ("cancelled", 2, 0));
    assert_eq!(world.names(batch.output), ["item-0", "item-1"]);
    let errors = world.output(batch.error);
    assert_eq!(errors.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["item-2", "item-3", "item-4"]);
    assert_eq!(errors[0].1["error"]["code"], "batch_cancelled");
    assert_eq!(world.complete(&mut claims[2], 200), Recorded::Closed, "too late");
    assert_eq!(cancel(&world).status().name(), "cancelled", "again");
}

#[test]
fn cancellation_ends_at_once_with_nothing_in_flight() {
    let world = World::new(Limits::default());
    let id = world.running(2);
    let claims = world.claim(id, 2);
    world.wait(world.store.cancel(Scope::Node, id, world.now)).unwrap();
    let mut changes = world.store.changes();
    drop(claims);
    world.tend();
    while world.batch(id).status().name() != "cancelled" {
        world.wait(changes.changed()).unwrap();
        world.tend();
    }

    let fresh = world.create(world.batch(id).input);
    world.wait(world.store.cancel(Scope::Owner(OWNER), fresh.id, world.now)).unwrap();
    world.tend();
    let batch = world.batch(fresh.id);
    assert_eq!((batch.status().name(), batch.error), ("cancelled", None), "before it was validated");
}

#[test]
fn the_end_of_the_window_keeps_results_and_names_the_rest() {
    let mut world = World::new(Limits::default());
    let id = world.running(4);
    let mut claims = world.claim(id, 2);
    world.complete(&mut claims[0], 200);
    world.pass(24 * HOUR - MINUTE);
    assert_eq!(world.batch(id).status().name(), "in_progress");
    world.pass(MINUTE);
    assert_eq!(world.batch(id).status().name(), "finalizing");
    world.complete(&mut claims[1], 404);
    world.tend();
    let batch = world.batch(id);
    assert_eq!((batch.status().name(), batch.counts.completed, batch.counts.failed), ("expired", 1, 1));
    assert_eq!(world.names(batch.output), ["item-0"]);
    let errors = world.output(batch.error);
    assert_eq!(errors.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["item-1", "item-2", "item-3"]);
    assert_eq!(
        (&errors[0].1["error"], &errors[1].1["error"]["code"]),
        (&serde_json::Value::Null, &"batch_expired".into())
    );
    let error = world.wait(world.store.cancel(Scope::Owner(OWNER), id, world.now)).unwrap_err();
    assert!(matches!(error, JobError::Ended("expired")));
}

#[test]
fn a_batch_whose_last_result_comes_in_the_grace_is_complete() {
    let mut world = World::new(Limits::default());
    let id = world.running(1);
    let mut claims = world.claim(id, 1);
    world.pass(24 * HOUR);
    world.complete(&mut claims[0], 200);
    world.tend();
    assert_eq!(world.batch(id).status().name(), "completed");
}

#[test]
fn every_step_is_taken_up_after_a_restart() {
    let mut world = World::new(Limits::default());
    let input = world.upload(crate::support::lines(2).as_bytes());
    let id = world.create(input).id;
    // The process was killed while it inserted the items.
    let database = rusqlite::Connection::open(world.dir.path().join("jobs.db")).unwrap();
    let sql = "INSERT INTO items (batch, item, model, offset, length) VALUES (1, 0, 9, 7, 7), (1, 1, 9, 7, 7)";
    assert_eq!(database.execute(sql, []).unwrap(), 2);
    drop(database);
    world = world.restart(Limits::default());
    world.tend();
    let mut claims = world.claim(id, 2);
    world.complete(&mut claims[0], 200);
    drop(claims);
    world = world.restart(Limits::default());
    let mut claims = world.claim(id, 2);
    assert_eq!((items(&claims), claims[0].attempt()), (vec![1], 2));
    world.complete(&mut claims[0], 200);
    drop(claims);
    world = world.restart(Limits::default());
    assert_eq!(world.batch(id).status().name(), "finalizing");
    world.tend();
    assert_eq!(world.names(world.batch(id).output), ["item-0", "item-1"]);
    assert!(world.wait(world.store.claim(id, MODEL, 9)).unwrap().is_empty());
}
