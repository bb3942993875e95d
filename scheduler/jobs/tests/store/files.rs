//! Files: bounds, deletion, expiry, what a killed process leaves.

use crate::support::{HOUR, MODEL, OWNER, START, World, inconsistencies, left, lines, response, upload};
use omni_jobs::{BatchId, FileId, ItemResult, JobError, JobStore, Limits, NewBatch, Page, Purpose, Scope};
use std::task::Poll;
use std::time::Duration;

#[test]
fn uploads_are_bounded_and_leave_nothing_behind() {
    let limits = Limits { upload: 1_000_000, disk: 1_500_000, ..Limits::default() };
    let world = World::new(limits);
    let begin = || world.wait(world.store.upload(OWNER, "x")).unwrap();
    let write = |upload: &mut omni_jobs::Upload, bytes: usize| world.wait(upload.write(&vec![b'x'; bytes]));
    let mut large = begin();
    write(&mut large, 600_000).unwrap();
    assert!(matches!(write(&mut large, 600_000), Err(JobError::TooLarge { bound: 1_000_000, .. })));
    assert!(matches!(world.wait(large.finish(None, world.now)), Err(JobError::Closed)));
    assert_eq!((left(world.dir.path()).len(), world.store.disk_used()), (0, 0));

    let (mut first, mut second) = (begin(), begin());
    write(&mut first, 900_000).unwrap();
    assert!(matches!(write(&mut second, 900_000), Err(JobError::DiskBound)));
    drop(second);
    let file = world.wait(first.finish(None, world.now)).unwrap();
    assert_eq!((file.bytes, file.expires_at, file.purpose), (900_000, START.after(30 * 24 * HOUR), Purpose::Batch));
    assert_eq!((left(world.dir.path()), world.store.disk_used()), (vec![file.id.to_string()], 900_000));
    let world = world.restart(Limits { disk: 900_000, ..Limits::default() });
    assert_eq!(world.store.disk_used(), 900_000);
    assert!(world.wait(world.store.queue(OWNER, "m", vec![b"{}".to_vec()], world.now)).is_err(), "full");
}

/// Bytes that are reserved for the rows and the output files of three items.
const RESERVED: u64 = 3 * (60 + 256 + 8);

/// A batch of three items, of which two have results that leave no room for the third.
fn filled(limits: Limits) -> (World, BatchId) {
    let world = World::new(limits);
    let id = world.running(3);
    let mut claims = world.claim(id, 2);
    for claim in &mut claims {
        world.complete(claim, 200);
    }
    assert!(matches!(world.wait(world.store.claim(id, MODEL, 1)), Err(JobError::DiskBound)));
    (world, id)
}

#[test]
fn a_full_store_hands_nothing_out_and_takes_what_is_in_flight() {
    let bytes = lines(3).len() as u64;
    let (world, id) = filled(Limits { disk: bytes + RESERVED + 100, ..Limits::default() });
    world.wait(world.store.cancel(Scope::Node, id, world.now)).unwrap();
    world.tend();
    let batch = world.batch(id);
    assert_eq!(world.names(batch.output), ["item-0", "item-1"]);
    let sizes = [batch.output, batch.error]
        .map(|file| world.wait(world.store.file(Scope::Node, file.unwrap(), world.now)).unwrap().bytes);
    assert_eq!(world.store.disk_used(), bytes + sizes[0] + sizes[1], "the results have gone");
}

#[test]
fn an_owner_has_a_part_of_the_store() {
    let limits = Limits { owner_disk: 1000, owner_files: 3, owner_batches: 1, ..Limits::default() };
    let world = World::new(limits);
    let file = |owner: &str, bytes: usize| {
        let mut upload = world.wait(world.store.upload(owner, "x"))?;
        world.wait(upload.write(&vec![b'x'; bytes]))?;
        world.wait(upload.finish(None, world.now))
    };
    let queue = |owner: &str| world.wait(world.store.queue(owner, "m", vec![b"{}".to_vec()], world.now));
    file("a", 900).unwrap();
    assert!(matches!(file("a", 200), Err(JobError::OwnerBound(_))), "bytes");
    assert_eq!((left(world.dir.path()).len(), world.store.disk_used()), (1, 900), "the refused file is gone");
    file("b", 900).unwrap();
    file("a", 10).unwrap();
    queue("a").unwrap();
    assert!(matches!(file("a", 1), Err(JobError::OwnerBound(_))), "files");
    queue("b").unwrap();
    assert!(matches!(queue("b"), Err(JobError::OwnerBound(_))), "batches");
    for _ in 0..10 {
        file("", 900).unwrap();
        queue("").unwrap();
    }
    assert!(matches!(queue(""), Err(JobError::OwnerBound(_))), "batches of the nameless owner");
}

#[test]
fn batches_that_have_ended_are_bounded() {
    let world = World::new(Limits { owner_kept: 2, ..Limits::default() });
    for _ in 0..2 {
        world.create(world.upload(b"no json"));
        world.tend();
    }
    let new = crate::support::new_batch(world.upload(b"no json"));
    let error = world.wait(world.store.create(new, world.now)).unwrap_err();
    assert!(matches!(error, JobError::OwnerBound(_)), "{error:?}");
}

#[test]
fn results_of_one_owner_do_not_use_up_the_store() {
    let bytes = lines(3).len() as u64;
    let (world, _) = filled(Limits { owner_disk: bytes + RESERVED + 100, ..Limits::default() });
    let other = world.wait(world.store.queue("other", "m", vec![b"{}".to_vec()], world.now)).unwrap();
    world.tend();
    assert_eq!(world.wait(world.store.claim(other.id, "m", 1)).unwrap().len(), 1, "others go on");
}

#[test]
fn batches_are_counted_by_state() {
    let world = World::new(Limits::default());
    let counts = || {
        let states = world.wait(world.store.states()).unwrap();
        states
            .into_iter()
            .filter(|(_, count)| *count > 0)
            .map(|(status, count)| (status.name(), count))
            .collect::<Vec<_>>()
    };
    assert_eq!(counts(), []);
    let id = world.running(1);
    world.create(world.upload(b"no json"));
    assert_eq!(counts(), [("validating", 1), ("in_progress", 1)]);
    world.tend();
    world.wait(world.store.cancel(Scope::Node, id, world.now)).unwrap();
    world.tend();
    assert_eq!(counts(), [("failed", 1), ("cancelled", 1)]);
}

#[test]
fn a_deleted_file_is_read_to_the_end_by_its_batch() {
    let world = World::new(Limits::default());
    let id = world.running(1);
    let input = world.batch(id).input;
    let delete = |file: FileId| world.wait(world.store.delete_file(Scope::Owner(OWNER), file, world.now));
    delete(input).unwrap();
    assert!(matches!(delete(input), Err(JobError::NoFile)));
    world.tend();
    assert!(matches!(world.wait(world.store.file(Scope::Owner(OWNER), input, world.now)), Err(JobError::NoFile)));
    let mut claims = world.claim(id, 1);
    world.wait(claims[0].request()).unwrap();
    world.complete(&mut claims[0], 200);
    world.tend();
    let batch = world.batch(id);
    assert_eq!(world.names(batch.output), ["item-0"]);
    assert_eq!(left(world.dir.path()), [batch.output.unwrap().to_string()]);
    let wrong = NewBatch { input: batch.output.unwrap(), ..crate::support::new_batch(input) };
    assert!(matches!(world.wait(world.store.create(wrong, world.now)), Err(JobError::Purpose)));
    delete(batch.output.unwrap()).unwrap();
    world.tend();
    assert_eq!((left(world.dir.path()).len(), world.store.disk_used()), (0, 0));
}

#[test]
fn removed_results_are_not_kept_open() {
    let world = World::new(Limits::default());
    let id = world.running(1);
    world.complete(&mut world.claim(id, 1)[0], 200);
    world.tend();
    let open =
        std::fs::read_dir("/proc/self/fd").unwrap().filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    let held: Vec<_> = open.filter(|path| path.starts_with(world.dir.path().join("results"))).collect();
    assert!(held.is_empty(), "{held:?}");
}

#[test]
fn an_owner_reads_a_bounded_number_of_contents_at_a_time() {
    let world = World::new(Limits::default());
    let id = world.upload(b"text");
    let open = || world.wait(world.store.content(Scope::Owner(OWNER), id, world.now));
    let mut contents: Vec<_> = (0..32).map(|_| open().unwrap()).collect();
    assert!(matches!(open(), Err(JobError::OwnerBusy(_))));
    let other = world.wait(async {
        let upload = world.store.upload("other", "x").await?;
        let id = upload.finish(None, world.now).await?.id;
        world.store.content(Scope::Owner("other"), id, world.now).await
    });
    assert!(other.is_ok(), "another owner has its own");
    contents.pop();
    assert!(open().is_ok(), "one has been read");
}

#[test]
fn unfinished_uploads_have_the_owner_s_part() {
    let world = World::new(Limits { owner_disk: 1_000_000, ..Limits::default() });
    let begin = || world.wait(world.store.upload(OWNER, "x")).unwrap();
    let (mut first, mut second) = (begin(), begin());
    world.wait(first.write(&vec![b'x'; 600_000])).unwrap();
    let error = world.wait(second.write(&vec![b'x'; 600_000])).unwrap_err();
    assert!(matches!(error, JobError::OwnerBound(_)), "{error:?}");
    let mut other = world.wait(world.store.upload("other", "x")).unwrap();
    world.wait(other.write(&vec![b'x'; 900_000])).unwrap();
}

#[test]
fn an_upload_whose_client_leaves_is_counted() {
    let world = World::new(Limits::default());
    let page = Page { after: None, limit: 100 };
    for polls in 0..40_u32 {
        let mut upload = world.wait(world.store.upload(OWNER, "x")).unwrap();
        world.wait(upload.write(b"text")).unwrap();
        let mut finish = Box::pin(upload.finish(None, world.now));
        world.wait(async {
            for _ in 0..polls {
                if std::future::poll_fn(|context| Poll::Ready(finish.as_mut().poll(context))).await.is_ready() {
                    break;
                }
                std::thread::sleep(Duration::from_micros(100));
            }
        });
    }
    let counted = || {
        let files = world.wait(world.store.files(Scope::Owner(OWNER), None, page, world.now)).unwrap();
        (files.iter().map(|file| file.bytes).sum::<u64>(), left(world.dir.path()).len() as u64 * 4)
    };
    for _ in 0..100 {
        if counted() == (world.store.disk_used(), world.store.disk_used()) {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(counted(), (world.store.disk_used(), world.store.disk_used()));
}

#[test]
fn output_files_whose_commit_fails_are_removed() {
    let mut world = World::new(Limits::default());
    let id = world.running(1);
    world.complete(&mut world.claim(id, 1)[0], 200);
    let database = world.dir.path().join("jobs.db");
    let execute = |sql: &str| {
        rusqlite::Connection::open(&database).unwrap().execute_batch(sql).unwrap();
    };
    execute("CREATE TRIGGER fails BEFORE INSERT ON files BEGIN SELECT RAISE(ABORT, 'no'); END");
    world.tend();
    assert_eq!(left(world.dir.path()), [world.batch(id).input.to_string(), id.to_string()]);
    execute("DROP TRIGGER fails");
    world.tend();
    assert_eq!(world.batch(id).output, None, "a step that failed waits");
    world.pass(Duration::from_secs(30));
    assert_eq!(world.names(world.batch(id).output), ["item-0"]);
}

#[test]
fn a_list_goes_on_after_an_entry_that_is_gone() {
    let world = World::new(Limits::default());
    let scope = Scope::Owner(OWNER);
    let mut files: Vec<FileId> = (0..6).map(|_| world.upload(b"x")).collect();
    let (mut listed, mut after) = (Vec::new(), None);
    loop {
        let page = world.wait(world.store.files(scope, None, Page { after, limit: 2 }, world.now)).unwrap();
        let Some(last) = page.last() else { break };
        after = Some(last.id);
        for file in page {
            world.wait(world.store.delete_file(scope, file.id, world.now)).unwrap();
            listed.push(file.id);
        }
        world.tend();
    }
    files.reverse();
    assert_eq!(listed, files);
    let batch = world.running(1);
    let after = |digit: &str| {
        let after = BatchId::parse(&format!("batch_{}", digit.repeat(32)));
        let page = world.wait(world.store.batches(scope, Page { after, limit: 2 })).unwrap();
        page.into_iter().map(|batch| batch.id).collect::<Vec<_>>()
    };
    assert_eq!((after("f"), after("0")), (vec![batch], vec![]));
}

/// File system of a few mebibytes, gone with its handle.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn mount() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let flags = nix::mount::MsFlags::empty();
        nix::mount::mount(Some("none"), dir.path(), Some("tmpfs"), flags, Some("size=3m")).unwrap();
        Self(dir)
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = nix::mount::umount2(self.0.path(), nix::mount::MntFlags::MNT_DETACH);
    }
}

#[test]
fn a_full_disk_refuses_changes_and_loses_none() {
    let disk = SmallDisk::mount();
    let dir = disk.0.path().join("jobs");
    let store = JobStore::open(&dir, Limits::default(), START).unwrap();
    let runtime = crate::support::runtime();
    runtime.block_on(async {
        let input = upload(&store, lines(40).as_bytes(), START).await;
        let id = store.create(crate::support::new_batch(input), START).await.unwrap().id;
        store.tend(START).await.unwrap();
        let mut claims = store.claim(id, MODEL, 40).await.unwrap();
        let large = |item: u32| ItemResult { body: vec![b'1'; 100_000], ..response(item, 200) };
        let mut refused = 0;
        for claim in &mut claims {
            while let Err(error) = claim.complete(large(claim.item()), START).await {
                assert!(error.is_passing(), "{error:?}");
                if matches!(error, JobError::Io { action: "write results", .. }) {
                    let length = std::fs::metadata(dir.join("results").join(id.to_string())).unwrap().len();
                    let stored = store.results_bytes(Scope::Node, id).await.unwrap();
                    assert_eq!(length, stored, "what was written of a refused result is cut off");
                }
                refused += 1;
                // Some space, not enough for all.
                assert!(refused < 100);
                let size = if refused % 2 == 0 { "size=3m" } else { "size=6m" };
                let flags = nix::mount::MsFlags::MS_REMOUNT;
                let _ = nix::mount::mount(Some("none"), disk.0.path(), Some("tmpfs"), flags, Some(size));
            }
        }
        assert!(refused > 0);
        assert_eq!(store.batch(Scope::Node, id).await.unwrap().counts.completed, 40);
        assert_eq!(inconsistencies(&dir), [""; 0]);
        let flags = nix::mount::MsFlags::MS_REMOUNT;
        nix::mount::mount(Some("none"), disk.0.path(), Some("tmpfs"), flags, Some("size=20m")).unwrap();
        store.tend(START).await.unwrap();
        assert_eq!(store.batch(Scope::Node, id).await.unwrap().status().name(), "completed");
        let mut large = store.upload(OWNER, "large").await.unwrap();
        let error = large.write(&vec![b'x'; 30 << 20]).await.unwrap_err();
        assert!(matches!(error, JobError::Io { .. }), "{error:?}");
        drop(large);
        assert_eq!(left(&dir).len(), 2, "input and output");
    });
}

#[test]
fn a_batch_is_cancelled_on_a_full_disk() {
    let disk = SmallDisk::mount();
    let store = JobStore::open(&disk.0.path().join("jobs"), Limits::default(), START).unwrap();
    let runtime = crate::support::runtime();
    runtime.block_on(async {
        let input = upload(&store, lines(2).as_bytes(), START).await;
        let id = store.create(crate::support::new_batch(input), START).await.unwrap().id;
        store.tend(START).await.unwrap();
        let mut claims = store.claim(id, MODEL, 2).await.unwrap();
        claims[0].complete(response(0, 200), START).await.unwrap();
        let filler = disk.0.path().join("filler");
        let free = nix::sys::statvfs::statvfs(disk.0.path()).unwrap();
        let free = free.blocks_available() * free.fragment_size();
        std::fs::write(&filler, vec![0; usize::try_from(free).unwrap() - (64 << 10)]).unwrap();
        let large = ItemResult { body: vec![b'1'; 200_000], ..response(1, 200) };
        let error = claims[1].complete(large, START).await.unwrap_err();
        assert!(error.is_passing(), "{error:?}");
        let cancelled = store.cancel(Scope::Node, id, START).await.unwrap();
        assert_eq!(cancelled.status().name(), "cancelling", "what the result had taken is free");
        drop(claims);
        std::fs::remove_file(filler).unwrap();
        // Steps that failed meanwhile are tried again.
        for minutes in 1..5 {
            store.tend(START.after(Duration::from_secs(60 * minutes))).await.unwrap();
        }
        let batch = store.batch(Scope::Node, id).await.unwrap();
        assert_eq!((batch.status().name(), batch.counts.completed), ("cancelled", 1));
    });
}

#[test]
fn a_store_on_a_full_disk_can_be_opened_later() {
    let disk = SmallDisk::mount();
    let filler = disk.0.path().join("filler");
    std::fs::write(&filler, vec![0; (3 << 20) - (16 << 10)]).unwrap();
    let dir = disk.0.path().join("jobs");
    let error = JobStore::open(&dir, Limits::default(), START).unwrap_err();
    assert!(error.is_passing(), "{error:?}");
    std::fs::remove_file(filler).unwrap();
    JobStore::open(&dir, Limits::default(), START).unwrap();
}

#[test]
fn files_and_batches_go_when_their_time_is_over() {
    let mut world = World::new(Limits::default());
    let input = world.upload(lines(1).as_bytes());
    let new = NewBatch { output_expires_after: Some(HOUR), ..crate::support::new_batch(input) };
    let id = world.wait(world.store.create(new, world.now)).unwrap().id;
    world.tend();
    world.complete(&mut world.claim(id, 1)[0], 200);
    let next = world.tend();
    assert_eq!(next, Some(world.now.after(HOUR)), "the output file is the next to expire");
    let output = world.batch(id).output.unwrap();
    world.now = world.now.after(HOUR);
    assert!(matches!(world.wait(world.store.content(Scope::Node, output, world.now)), Err(JobError::NoFile)));
    world.tend();
    assert_eq!(left(world.dir.path()), [input.to_string()]);
    world.pass(30 * 24 * HOUR);
    assert!(matches!(world.wait(world.store.batch(Scope::Node, id)), Err(JobError::NoBatch)));
    assert_eq!((left(world.dir.path()).len(), world.store.disk_used()), (0, 0));
}

#[test]
fn what_a_killed_process_left_is_swept_away() {
    let world = World::new(Limits::default());
    let file = world.wait(upload(&world.store, b"text", world.now));
    for name in ["files/file-x.part", "files/other", &format!("files/file-{}", "0".repeat(32)), "results/batch_x"] {
        std::fs::write(world.dir.path().join(name), "left").unwrap();
    }
    let world = world.restart(Limits::default());
    assert_eq!(left(world.dir.path()), [file.to_string()]);
    let page = Page { after: None, limit: 100 };
    assert_eq!(world.wait(world.store.files(Scope::Owner(OWNER), None, page, world.now)).unwrap()[0].id, file);
}
