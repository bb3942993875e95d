//! Bounds of the disk, with what batches take beside their input and their results, and of one pass over what is due.

use crate::support::{ENDPOINT, HOUR, MODEL, OWNER, World, lines, new_batch};
use omni_jobs::{BatchId, Limits, NewBatch, Scope};
use std::time::Duration;

/// File with few requests whose names are nearly all of it.
fn of_names(items: usize) -> String {
    let body = format!(r#"{{"model":"{MODEL}"}}"#);
    let line = |item| {
        let name = format!("{item}{}", "n".repeat(5000));
        format!(r#"{{"custom_id":"{name}","method":"POST","url":"{ENDPOINT}","body":{body}}}"#) + "\n"
    };
    (0..items).map(line).collect()
}

/// Bytes of all files below a folder of the store.
fn on_disk(world: &World, folder: &str) -> u64 {
    let entries = std::fs::read_dir(world.dir.path().join(folder)).unwrap();
    entries.map(|entry| entry.unwrap().metadata().unwrap().len()).sum()
}

#[test]
fn cancelled_batches_stay_within_the_bound_of_the_disk_and_of_their_owner() {
    let text = of_names(20);
    let bytes = text.len() as u64;
    let limits = [
        (Limits { disk: bytes * 4, ..Limits::default() }, "node's space"),
        (Limits { owner_disk: bytes * 4, ..Limits::default() }, "this token's part"),
    ];
    for (limits, reason) in limits {
        let world = World::new(limits);
        let input = world.upload(text.as_bytes());
        let create = |number: usize| {
            let metadata = Some(format!(r#"{{"number":"{number}"}}"#));
            world.wait(world.store.create(NewBatch { metadata, ..new_batch(input) }, world.now)).unwrap().id
        };
        let ids: Vec<BatchId> = (0..15).map(create).collect();
        world.tend();
        let states: Vec<_> = ids.iter().map(|id| world.batch(*id).status().name()).collect();
        assert_eq!(states.iter().filter(|state| **state == "in_progress").count(), 2, "{states:?}");
        let refused = world.batch(ids[14]);
        assert_eq!((refused.status().name(), refused.errors[0].code.as_str()), ("failed", "insufficient_storage"));
        assert!(refused.errors[0].message.contains(reason), "{:?}", refused.errors);
        for id in &ids[..2] {
            world.wait(world.store.cancel(Scope::Owner(OWNER), *id, world.now)).unwrap();
        }
        world.tend();
        assert!(world.store.disk_used() <= bytes * 4 && on_disk(&world, "files") <= bytes * 4);
        assert_eq!(world.store.disk_used(), on_disk(&world, "files"), "what was reserved is given back");
    }
}

#[test]
fn rows_of_items_and_output_files_are_reserved_over_a_restart() {
    let mut world = World::new(Limits::default());
    let (id, input) = (world.running(3), lines(3).len() as u64);
    let queued = world.wait(world.store.queue(OWNER, "m", vec![b"{}".to_vec(); 2], world.now)).unwrap();
    world.tend();
    let expected = input + 3 * (60 + 256 + 8) + 6 + 2 * 60;
    assert_eq!(world.store.disk_used(), expected);
    world = world.restart(Limits::default());
    assert_eq!(world.store.disk_used(), expected);
    world.pass(24 * HOUR);
    assert_eq!(world.batch(id).status().name(), "expired");
    let files = on_disk(&world, "files");
    assert_eq!(world.store.disk_used(), files + 2 * 60, "results of Workers AI are kept where they are");
    assert_eq!(world.batch(queued.id).status().name(), "expired");
    world.pass(31 * 24 * HOUR);
    world.pass(31 * 24 * HOUR);
    assert_eq!((world.store.disk_used(), on_disk(&world, "files")), (0, 0));
}

#[test]
fn a_pass_is_bounded_and_owners_take_turns() {
    let world = World::new(Limits { pass: 1, ..Limits::default() });
    let file = world.upload(b"deleted");
    let queue = |owner: &str| world.wait(world.store.queue(owner, "m", vec![b"{}".to_vec()], world.now)).unwrap().id;
    let queued: Vec<BatchId> = ["a", "a", "a", "b", "b", "c"].map(queue).into();
    world.wait(world.store.delete_file(Scope::Owner(OWNER), file, world.now)).unwrap();
    let validated = || {
        let is_new =
            |id: &&BatchId| world.wait(world.store.batch(Scope::Node, **id)).unwrap().status().name() == "validating";
        queued.iter().enumerate().filter(|(_, id)| !is_new(id)).map(|(at, _)| at).collect::<Vec<_>>()
    };
    let mut order = Vec::new();
    while order.len() < queued.len() {
        assert_eq!(world.tend(), Some(world.now), "there is more to do");
        let new = validated().into_iter().filter(|at| !order.contains(at)).collect::<Vec<_>>();
        assert_eq!(new.len(), 1, "one step at a time");
        order.extend(new);
        assert!(!world.dir.path().join("files").join(file.to_string()).exists(), "old files go in every pass");
    }
    assert_eq!(order, [0, 3, 5, 1, 4, 2]);
    assert!(world.tend().is_some_and(|next| next > world.now));
}

#[test]
fn a_step_that_fails_waits_and_keeps_nobody_else() {
    let mut world = World::new(Limits { pass: 1, ..Limits::default() });
    let inputs = [world.upload(lines(1).as_bytes()), world.upload(lines(2).as_bytes())];
    let [lost, good] = inputs.map(|input| world.create(input).id);
    let input = world.dir.path().join("files").join(inputs[0].to_string());
    let kept = std::fs::read(&input).unwrap();
    std::fs::remove_file(&input).unwrap();
    assert_eq!(world.tend(), Some(world.now));
    let status = |world: &World, id| world.batch(id).status().name();
    assert_eq!((status(&world, lost), status(&world, good)), ("validating", "in_progress"));
    let retry = world.now.after(Duration::from_secs(30));
    assert_eq!(world.tend(), Some(retry));
    std::fs::write(input, kept).unwrap();
    world.tend();
    assert_eq!(status(&world, lost), "validating");
    world.pass(Duration::from_secs(30));
    assert_eq!(status(&world, lost), "in_progress");
}
