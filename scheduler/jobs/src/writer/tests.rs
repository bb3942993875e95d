//! Tests of group commit: answers after the commit, failures of one command and of all.

use super::*;
use crate::files::Folder;
use crate::id::BatchId;
use crate::schema;
use nix::fcntl::FlockArg;
use std::path::Path;
use std::sync::mpsc::sync_channel;
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};

struct World {
    writer: Writer,
    runtime: Runtime,
    reader: Connection,
    dir: TempDir,
}

fn world() -> World {
    let dir = tempfile::tempdir().unwrap();
    let folder = Folder::create(dir.path()).unwrap();
    let connection = schema::open_writer(&folder.database()).unwrap();
    connection.execute_batch("CREATE TABLE numbers (number INTEGER PRIMARY KEY)").unwrap();
    let reader = schema::open_reader(&folder.database()).unwrap();
    let lock = Flock::lock(File::create(folder.lock()).unwrap(), FlockArg::LockExclusiveNonblock).unwrap();
    let writer = Writer::start(connection, ResultFiles::new(&folder), lock).unwrap();
    World { writer, runtime: Builder::new_current_thread().build().unwrap(), reader, dir }
}

fn insert(unit: &mut Unit<'_>, number: u32) -> Result<u32, JobError> {
    unit.connection.execute("INSERT INTO numbers VALUES (?)", [number])?;
    Ok(number)
}

impl World {
    fn numbers(&self) -> Vec<u32> {
        let mut statement = self.reader.prepare("SELECT number FROM numbers").unwrap();
        statement.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
    }

    /// Has the thread wait while commands queue up, so that they are one group.
    fn grouped<T>(&self, begin: impl FnOnce() -> T) -> T {
        let (go, wait) = sync_channel::<()>(0);
        let (inside, entered) = sync_channel::<()>(0);
        self.writer.post(move |_| {
            // Done again, nobody waits for it any more.
            let _ = inside.send(()).map(|()| wait.recv());
            Ok(())
        });
        entered.recv().unwrap();
        let begun = begin();
        go.send(()).unwrap();
        begun
    }
}

#[test]
fn a_command_that_fails_is_rolled_back_alone() {
    let world = world();
    let answers = world.grouped(|| {
        [1, 2, 1, 3].map(|number| {
            let (caller, answer) = oneshot::channel();
            let work = move |unit: &mut Unit<'_>| {
                insert(unit, number + 100)?;
                insert(unit, number)
            };
            let task = Task { work: Some(work), result: Err(JobError::Closed), caller };
            world.writer.queue.try_send(Message::Command(Box::new(task))).ok().unwrap();
            answer
        })
    });
    let answers = answers.map(|answer| answer.blocking_recv().unwrap());
    assert!(matches!(answers, [Ok(1), Ok(2), Err(JobError::Database(_)), Ok(3)]));
    assert_eq!(world.numbers(), [1, 2, 3, 101, 102, 103]);
}

#[test]
fn results_that_cannot_be_written_fail_the_whole_group() {
    let world = world();
    let results = world.dir.path().join("results");
    let append = |number: u32| {
        world.writer.submit(10, move |unit| {
            insert(unit, number)?;
            unit.results.append(BatchId::new(), 0, b"record")
        })
    };
    // Not even root opens a file in a folder that is a file.
    std::fs::remove_dir(&results).unwrap();
    std::fs::write(&results, "").unwrap();
    assert!(matches!(world.runtime.block_on(append(1)), Err(JobError::Io { .. })));
    std::fs::remove_file(&results).unwrap();
    std::fs::create_dir(&results).unwrap();
    world.runtime.block_on(append(2)).unwrap();
    assert_eq!(world.numbers(), [2]);

    let (full, other) = world.grouped(|| {
        let full = world.writer.submit(0, |unit| {
            // Every write to this file is refused, as on a full disk.
            let id = BatchId::new();
            link_full(unit, id);
            insert(unit, 3)?;
            unit.results.append(id, 0, b"record")
        });
        let other = world.writer.submit(0, |unit| insert(unit, 4));
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        let (mut full, mut other) = (Box::pin(full), Box::pin(other));
        assert!(full.as_mut().poll(&mut context).is_pending() && other.as_mut().poll(&mut context).is_pending());
        (full, other)
    });
    let (full, other) = (world.runtime.block_on(full), world.runtime.block_on(other));
    assert!(matches!(full, Err(JobError::Io { action: "write results", .. })), "{full:?}");
    assert!(matches!(other, Err(JobError::Io { action: "write results", .. })), "{other:?}");
    assert_eq!(world.numbers(), [2]);
    world.runtime.block_on(world.writer.submit(0, |unit| insert(unit, 5))).unwrap();
    assert_eq!(world.numbers(), [2, 5], "the next group is not affected");
}

#[test]
fn posted_work_of_a_failed_group_is_done_again() {
    let world = world();
    let (done, wait) = sync_channel(1);
    let mut tries = 0;
    world.grouped(|| {
        world.writer.post(move |unit| {
            tries += 1;
            insert(unit, tries)?;
            if tries == 1 {
                let id = BatchId::new();
                link_full(unit, id);
                unit.results.append(id, 0, b"record")?;
            } else {
                done.send(()).unwrap();
            }
            Ok(())
        });
    });
    wait.recv().unwrap();
    world.runtime.block_on(world.writer.close());
    assert_eq!(world.numbers(), [2]);
}

fn link_full(unit: &Unit<'_>, id: BatchId) {
    let database: String = unit.connection.path().unwrap().to_owned();
    let results = Path::new(&database).parent().unwrap().join("results");
    std::os::unix::fs::symlink("/dev/full", results.join(id.to_string())).unwrap();
}

#[test]
fn posted_commands_are_done_without_an_answer() {
    let world = world();
    world.writer.post(|unit| insert(unit, 1).map(drop));
    world.writer.post(|unit| insert(unit, 1).map(drop));
    world.writer.post(|unit| insert(unit, 2).map(drop));
    world.runtime.block_on(world.writer.close());
    assert_eq!(world.numbers(), [1, 2]);
    assert!(matches!(world.runtime.block_on(world.writer.submit(0, |unit| insert(unit, 3))), Err(JobError::Closed)));
}
