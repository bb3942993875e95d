//! Batches from their creation to their output.

use crate::support::{ENDPOINT, HOUR, MODEL, OWNER, START, World, inconsistencies, left, line, lines, new_batch};
use omni_jobs::{BatchId, FileId, Form, JobError, JobStore, Limits, NewBatch, OpenError, Page, Recorded, Scope, Usage};
use serde_json::{Value, json};
use std::time::Duration;

#[test]
fn results_are_in_the_order_of_the_items_and_failures_in_the_error_file() {
    let world = World::new(Limits::default());
    let input = world.upload(lines(4).as_bytes());
    let new = NewBatch { metadata: Some(r#"{"a":"b"}"#.into()), ..new_batch(input) };
    let batch = world.wait(world.store.create(new, world.now)).unwrap();
    assert_eq!((batch.status().name(), batch.counts.total, batch.model), ("validating", 0, None));
    assert_eq!(world.tend(), Some(world.now.after(24 * HOUR)));

    let mut claims = world.claim(batch.id, 10);
    let request = world.wait(claims[1].request()).unwrap();
    assert_eq!((request.endpoint.as_deref(), request.model.as_str()), (Some(ENDPOINT), MODEL));
    assert_eq!(String::from_utf8(request.body).unwrap(), format!(r#"{{"model":"{MODEL}","input":"1"}}"#));
    assert_eq!((claims[1].item(), claims[1].attempt(), claims[1].owner()), (1, 1, OWNER));
    for (claim, status) in claims.iter_mut().rev().zip([200, 429, 200]) {
        assert_eq!(world.complete(claim, status), Recorded::First);
    }
    let work = &world.wait(world.store.work()).unwrap()[0];
    assert_eq!((work.pending, work.in_flight, work.model.as_str(), work.stopping), (0, 1, MODEL, false));
    world.wait(claims[0].fail("unknown_model", "There is no such model.", world.now)).unwrap();
    assert_eq!(world.batch(batch.id).status().name(), "finalizing");
    assert_eq!(inconsistencies(world.dir.path()), [""; 0]);
    world.tend();

    let ended = world.batch(batch.id);
    assert_eq!((ended.status().name(), ended.counts.completed, ended.counts.failed), ("completed", 2, 2));
    assert_eq!(ended.usage, Usage { input: 9, cached: 3, output: 6, reasoning: 0 });
    assert_eq!((ended.model.as_deref(), ended.metadata.as_deref()), (Some(MODEL), Some(r#"{"a":"b"}"#)));
    assert_eq!(ended.form, Form::OpenAi { endpoint: ENDPOINT.into() });
    let output = world.output(ended.output);
    assert_eq!(output.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["item-1", "item-3"]);
    let digits = batch.id.to_string().replace("batch_", "");
    let expected = json!({
        "id": format!("batch_req_{digits}_1"),
        "custom_id": "item-1",
        "response": {"status_code": 200, "request_id": "r1", "body": {"item": 1}},
        "error": null,
    });
    assert_eq!(output[0].1, expected);
    let errors = world.output(ended.error);
    assert_eq!(errors[0].1["error"], json!({"code": "unknown_model", "message": "There is no such model."}));
    assert_eq!((&errors[0].1["response"], &errors[1].1["error"]), (&Value::Null, &Value::Null));
    assert_eq!(errors[1].1["response"]["status_code"], 429);
    assert_eq!(errors[1].0, "item-2");
    drop(claims);
    assert!(left(world.dir.path()).iter().all(|name| name.starts_with("file-")), "the results are in the output files");
}

#[test]
fn a_batch_of_failures_has_no_output_file() {
    let world = World::new(Limits::default());
    let id = world.running(2);
    for claim in &mut world.claim(id, 2) {
        world.complete(claim, 500);
    }
    world.tend();
    let batch = world.batch(id);
    assert_eq!((batch.status().name(), batch.output, batch.counts.failed), ("completed", None, 2));
    assert_eq!(world.names(batch.error), ["item-0", "item-1"]);
}

#[test]
fn a_bad_file_fails_its_batch_with_line_numbers() {
    let world = World::new(Limits::default());
    let text = format!("{}\n{}\nnonsense\n{}", line(0), line(1).replace(ENDPOINT, "/v1/other"), line(0));
    let batch = world.create(world.upload(text.as_bytes()));
    world.tend();
    let batch = world.batch(batch.id);
    assert_eq!((batch.status().name(), batch.counts.total), ("failed", 0));
    let errors: Vec<_> = batch.errors.iter().map(|error| (error.line, error.code.as_str())).collect();
    assert_eq!(
        errors,
        [(Some(2), "mismatched_endpoint"), (Some(3), "invalid_json_line"), (Some(4), "duplicate_custom_id")]
    );
    assert!(world.claim(batch.id, 9).is_empty());
    let error = world.wait(world.store.cancel(Scope::Owner(OWNER), batch.id, world.now)).unwrap_err();
    assert_eq!(error.to_string(), "the batch has ended as failed, and cannot be cancelled");
}

#[test]
fn a_batch_has_the_items_of_each_model_apart() {
    let world = World::new(Limits::default());
    let text = format!("{}\n{}\n{}", line(0), line(1).replace(MODEL, "other"), line(2));
    let batch = world.create(world.upload(text.as_bytes()));
    world.tend();
    let work: Vec<_> =
        world.wait(world.store.work()).unwrap().into_iter().map(|work| (work.model, work.pending)).collect();
    assert_eq!(work, [(MODEL.to_owned(), 2), ("other".to_owned(), 1)]);
    assert_eq!(world.batch(batch.id).model, None);
    let items: Vec<_> = world.claim(batch.id, 9).iter().map(omni_jobs::Claim::item).collect();
    assert_eq!(items, [0, 2]);
    assert!(world.wait(world.store.claim(batch.id, "third", 9)).unwrap().is_empty());
}

#[test]
fn workers_ai_results_are_read_while_they_are_kept() {
    let mut world = World::new(Limits::default());
    let inputs =
        vec![b"{\"prompt\": \"a\",\n \"external_reference\": \"r\"}".to_vec(), b"{\"prompt\": \"b\"}".to_vec()];
    let batch = world.wait(world.store.queue(OWNER, MODEL, inputs, world.now)).unwrap();
    world.tend();
    let mut claims = world.claim(batch.id, 2);
    let request = world.wait(claims[0].request()).unwrap();
    assert_eq!((request.endpoint, request.model.as_str()), (None, MODEL));
    assert_eq!(request.body, b"{\"prompt\": \"a\",  \"external_reference\": \"r\"}");
    world.complete(&mut claims[1], 200);
    let reports = |world: &World| world.wait(world.store.reports(Scope::Owner(OWNER), batch.id, 0, 9, u64::MAX));
    let found = reports(&world).unwrap();
    assert_eq!((found[0].name.as_str(), found[0].result.as_deref()), ("\"r\"", None));
    assert_eq!((found[1].name.as_str(), found[1].success), ("null", true));
    world.complete(&mut claims[0], 500);
    world.tend();
    assert_eq!(world.batch(batch.id).status().name(), "completed");
    let result = reports(&world).unwrap()[0].result.clone().unwrap();
    assert_eq!(result, r#"{"status_code":500,"request_id":"r0","body":{ "item": 0}}"#);
    let page = Page { after: None, limit: 9 };
    assert!(world.wait(world.store.files(Scope::Owner(OWNER), None, page, world.now)).unwrap().is_empty());

    world.pass(29 * 24 * HOUR);
    assert_eq!(reports(&world).unwrap().len(), 2);
    world.pass(3 * 24 * HOUR);
    assert!(matches!(reports(&world), Err(JobError::NoBatch)));
    assert_eq!((left(world.dir.path()).len(), world.store.disk_used()), (0, 0));
}

#[test]
fn a_retried_creation_is_the_same_batch() {
    let mut world = World::new(Limits::default());
    let input = world.upload(lines(1).as_bytes());
    let first = world.create(input);
    assert_eq!(world.create(input).id, first.id);
    let other = NewBatch { metadata: Some("{}".into()), ..new_batch(input) };
    assert_ne!(world.wait(world.store.create(other, world.now)).unwrap().id, first.id, "no retry says something else");
    world.pass(Duration::from_secs(14 * 60));
    assert_eq!(world.create(input).id, first.id);
    world.wait(world.store.cancel(Scope::Owner(OWNER), first.id, world.now)).unwrap();
    let second = world.create(input);
    assert_ne!(second.id, first.id, "a cancelled one is not meant");
    world.pass(Duration::from_secs(16 * 60));
    assert_ne!(world.create(input).id, second.id);
}

#[test]
fn others_do_not_see_what_is_not_theirs() {
    let world = World::new(Limits::default());
    let id = world.running(1);
    let input = world.batch(id).input;
    let (mallory, node, page) = (Scope::Owner("mallory"), Scope::Node, Page { after: None, limit: 10 });
    let store = &world.store;
    assert!(matches!(world.wait(store.batch(mallory, id)), Err(JobError::NoBatch)));
    assert!(matches!(world.wait(store.cancel(mallory, id, world.now)), Err(JobError::NoBatch)));
    assert!(matches!(world.wait(store.reports(mallory, id, 0, 1, u64::MAX)), Err(JobError::NoBatch)));
    assert!(matches!(world.wait(store.content(mallory, input, world.now)), Err(JobError::NoFile)));
    assert!(matches!(world.wait(store.delete_file(mallory, input, world.now)), Err(JobError::NoFile)));
    let theirs = NewBatch { owner: "mallory".into(), ..new_batch(input) };
    assert!(matches!(world.wait(store.create(theirs, world.now)), Err(JobError::NoFile)));
    assert!(world.wait(store.batches(mallory, Page { after: None, limit: 10 })).unwrap().is_empty());
    assert!(world.wait(store.files(mallory, None, page, world.now)).unwrap().is_empty());
    assert_eq!(world.wait(store.batch(node, id)).unwrap().owner, OWNER);
    assert_eq!(world.wait(store.batches(node, Page { after: None, limit: 10 })).unwrap().len(), 1);
}

#[test]
fn lists_are_in_pages_the_newest_first() {
    let world = World::new(Limits::default());
    let files: Vec<FileId> = (0..5).map(|_| world.upload(lines(1).as_bytes())).collect();
    let batches: Vec<BatchId> = files.iter().map(|file| world.create(*file).id).collect();
    let (mut seen_files, mut seen_batches) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        let page = Page { after: seen_files.last().copied(), limit: 2 };
        let found = world.wait(world.store.files(Scope::Owner(OWNER), None, page, world.now)).unwrap();
        seen_files.extend(found.into_iter().map(|file| file.id));
        let page = Page { after: seen_batches.last().copied(), limit: 2 };
        let found = world.wait(world.store.batches(Scope::Owner(OWNER), page)).unwrap();
        seen_batches.extend(found.into_iter().map(|batch| batch.id));
    }
    assert_eq!(seen_files, files.into_iter().rev().collect::<Vec<_>>());
    assert_eq!(seen_batches, batches.into_iter().rev().collect::<Vec<_>>());
}

#[test]
fn one_process_has_the_store() {
    let world = World::new(Limits::default());
    let open = || JobStore::open(world.dir.path(), Limits::default(), START);
    assert!(matches!(open(), Err(OpenError::InUse(_))));
    world.wait(world.store.close());
    let input = FileId::parse(&format!("file-{}", "0".repeat(32))).unwrap();
    assert!(matches!(world.wait(world.store.create(new_batch(input), world.now)), Err(JobError::Closed)));
    open().unwrap();
}
