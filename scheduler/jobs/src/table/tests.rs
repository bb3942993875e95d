//! Tables of items under reports in every order.

use super::items::{self, ItemRef, Kind, Record, Recorded};
use super::{UnixMillis, batches};
use crate::files::Folder;
use crate::id::{BatchId, FileId};
use crate::lifecycle::{Event, Interruption, Phase};
use crate::results::ResultFiles;
use crate::schema;
use crate::turns::Turns;
use crate::types::{Batch, Counts, Form, Scope, Times, Usage};
use crate::validate::Line;
use crate::writer::Unit;
use rusqlite::Connection;
use std::time::Duration;
use tempfile::TempDir;

const NOW: UnixMillis = UnixMillis(7);

struct World {
    connection: Connection,
    results: ResultFiles,
    turns: Turns,
    no: i64,
    batch: BatchId,
    _dir: TempDir,
}

impl World {
    /// A batch of three items that runs.
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::create(dir.path()).unwrap();
        let connection = schema::open_writer(&folder.database()).unwrap();
        let batch = Batch {
            id: BatchId::new(),
            owner: "a".into(),
            form: Form::OpenAi { endpoint: "/v1/embeddings".into() },
            input: FileId::new(),
            phase: Phase::Validating,
            times: Times { expires: UnixMillis(u64::MAX), ..Times::default() },
            counts: Counts::default(),
            model: None,
            usage: Usage::default(),
            output: None,
            error: None,
            errors: Vec::new(),
            metadata: None,
        };
        batches::insert(&connection, &batch, Duration::MAX).unwrap();
        let stored = batches::find(&connection, Scope::Node, batch.id).unwrap().unwrap();
        assert_eq!(stored.batch.times.expires, UnixMillis(i64::MAX as u64), "the latest time that the database knows");
        let no = stored.no;
        let line = |number| Line { number, offset: 0, length: 1, model: 0 };
        items::insert(&connection, no, 0, &[line(1), line(2), line(3)]).unwrap();
        batches::apply(&connection, no, Event::Accepted, NOW).unwrap();
        batches::set_models(&connection, no, &[("m".to_owned(), 3)]).unwrap();
        let results = ResultFiles::new(&folder);
        Self { connection, results, turns: Turns::default(), no, batch: batch.id, _dir: dir }
    }

    fn item(&self, item: u32) -> ItemRef {
        ItemRef { no: self.no, batch: self.batch, item }
    }

    fn record(&mut self, item: u32) -> Recorded {
        self.record_usage(item, Usage { input: 1, ..Usage::default() })
    }

    fn record_usage(&mut self, item: u32, usage: Usage) -> Recorded {
        let item = self.item(item);
        let record = Record { kind: Kind::Success, json: b"{}".to_vec(), usage };
        let mut unit = Unit { connection: &self.connection, results: &mut self.results };
        items::record(&mut unit, &item, &record, NOW).unwrap().0
    }

    fn interrupt(&mut self, item: u32, attempt: u32) {
        let item = self.item(item);
        let mut unit = Unit { connection: &self.connection, results: &mut self.results };
        items::interrupt(&mut unit, &item, attempt, Interruption::InstanceDied, NOW).unwrap();
    }

    fn claim(&mut self) -> Vec<(u32, u32)> {
        let claimed = items::claim(&self.connection, &mut self.turns, (self.no, "m"), 1).unwrap();
        claimed.into_iter().map(|claimed| (claimed.item, claimed.attempt)).collect()
    }

    fn counts(&self) -> (u64, u64, u64, u64) {
        let batch = batches::find(&self.connection, Scope::Node, self.batch).unwrap().unwrap().batch;
        let work = batches::work(&self.connection).unwrap();
        let (pending, in_flight) = work.first().map_or((0, 0), |work| (work.pending, work.in_flight));
        (pending, in_flight, batch.counts.completed, batch.usage.input)
    }
}

#[test]
fn a_second_result_is_dropped() {
    let mut world = World::new();
    assert_eq!(world.claim(), [(0, 1)]);
    assert_eq!(world.counts(), (2, 1, 0, 0));
    assert_eq!(world.record(0), Recorded::First);
    assert_eq!(world.record(0), Recorded::Duplicate);
    assert_eq!(world.counts(), (2, 0, 1, 1));
}

#[test]
fn a_late_result_of_an_item_that_waits_again_is_taken() {
    let mut world = World::new();
    world.claim();
    world.interrupt(0, 1);
    assert_eq!(world.counts(), (3, 0, 0, 0));
    assert_eq!(world.record(0), Recorded::First);
    assert_eq!(world.counts(), (2, 0, 1, 1));
    world.record(1);
    world.record(2);
    assert_eq!(batches::phase(&world.connection, world.no).unwrap().unwrap().status().name(), "finalizing");
    assert_eq!(world.record(2), Recorded::Closed);
}

#[test]
fn reports_of_other_attempts_change_nothing() {
    let mut world = World::new();
    world.claim();
    world.interrupt(0, 2);
    world.interrupt(1, 1);
    assert_eq!(world.counts(), (2, 1, 0, 0));
    world.interrupt(0, 1);
    world.interrupt(0, 1);
    assert_eq!(world.counts(), (3, 0, 0, 0));
    assert_eq!((world.claim(), world.claim()), (vec![(0, 2)], vec![]), "a suspect runs first, and alone");
    world.interrupt(0, 1);
    assert_eq!(world.counts(), (2, 1, 0, 0));
}

#[test]
fn any_number_of_tokens_is_stored() {
    let mut world = World::new();
    for item in 0..3 {
        assert_eq!(world.record_usage(item, Usage { output: u64::MAX, ..Usage::default() }), Recorded::First);
    }
    let stored = batches::find(&world.connection, Scope::Node, world.batch).unwrap().unwrap();
    assert_eq!(stored.batch.usage, Usage { output: 3 << 40, ..Usage::default() });
}
