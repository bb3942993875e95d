//! Files of snapshots are shared, unchanged ones are not read again, and what is damaged is made good.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed set-up fails the test")]

mod common;

use common::Folder;
use omni_snapshot::{Limits, Progress, Snapshot, SnapshotError};
use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

const LIMITS: Limits = Limits { files: 100, bytes: 1 << 30 };
const LARGE: usize = 2 << 20;

fn folder() -> Folder {
    let folder = Folder::new(LIMITS);
    folder.write("model.py", b"x = 1\n");
    folder
}

/// Bytes that this thread has read from files, as the kernel counts them.
fn bytes_read() -> u64 {
    let io = fs::read_to_string("/proc/thread-self/io").unwrap();
    io.lines().find_map(|line| line.strip_prefix("rchar: ")).unwrap().parse().unwrap()
}

#[test]
fn a_changed_line_beside_large_files_costs_neither_a_copy_nor_a_look_at_them() {
    let folder = folder();
    folder.write("weights.bin", &vec![7; LARGE]);
    folder.settle("weights.bin");
    let first = folder.take();
    folder.write("model.py", b"x = 2\n");
    let before = bytes_read();
    let second = folder.take();
    assert!(bytes_read() - before < LARGE as u64 / 2, "the large file was read again");
    assert_ne!(first.digest, second.digest);
    let inode = |of: &Snapshot| fs::metadata(folder.in_snapshot(of, "weights.bin")).unwrap().ino();
    assert_eq!(inode(&first), inode(&second));
    assert_eq!(fs::read(folder.in_snapshot(&second, "weights.bin")).unwrap(), vec![7; LARGE]);

    // The next launcher of this boot knows it too.
    let folder = folder.opened_again(LIMITS);
    folder.write("model.py", b"x = 3\n");
    let before = bytes_read();
    folder.take();
    assert!(bytes_read() - before < LARGE as u64 / 2, "the next launcher has read it again");
}

/// The first copy waits for the clock to tick, so that the next edit need not read what has not changed.
#[test]
fn a_large_file_that_was_just_written_is_read_for_one_copy_alone() {
    let folder = folder();
    folder.write("weights.bin", &vec![7; LARGE]);
    folder.take();
    folder.write("model.py", b"x = 2\n");
    let before = bytes_read();
    folder.take();
    assert!(bytes_read() - before < LARGE as u64 / 2, "the large file was read again");
}

#[test]
fn a_snapshot_is_intact_until_something_of_it_is_another() {
    type Damage = fn(&Path);
    let table: [(&str, Damage); 5] = [
        ("another byte", |dir| {
            let path = dir.join("weights.bin");
            let time = fs::metadata(&path).unwrap().modified().unwrap();
            let mut file = OpenOptions::new().write(true).open(&path).unwrap();
            file.write_all(b"x").unwrap();
            file.set_modified(time).unwrap(); // as the fault of a disk leaves it
        }),
        ("cut", |dir| OpenOptions::new().write(true).open(dir.join("weights.bin")).unwrap().set_len(7).unwrap()),
        ("gone", |dir| fs::remove_file(dir.join("model.py")).unwrap()),
        ("one more", |dir| fs::write(dir.join("more.py"), "").unwrap()),
        ("executable", |dir| fs::set_permissions(dir.join("model.py"), Permissions::from_mode(0o755)).unwrap()),
    ];
    for (what, damage) in table {
        let folder = folder();
        folder.write("weights.bin", &vec![7; LARGE]);
        std::os::unix::fs::symlink("model.py", folder.model().join("link")).unwrap();
        fs::create_dir(folder.model().join("empty")).unwrap();
        let taken = folder.take();
        assert!(folder.store.is_intact(&taken.digest).unwrap());
        // Copies of the same files take links and leave them: what has not changed is known or read, and right.
        folder.write("more.txt", b"more");
        let next = folder.take();
        assert!(folder.store.is_intact(&taken.digest).unwrap() && folder.store.is_intact(&next.digest).unwrap());
        let before = bytes_read();
        assert!(folder.store.is_intact(&taken.digest).unwrap());
        damage(&folder.store.find(&taken.digest).unwrap());
        assert!(!folder.store.is_intact(&taken.digest).unwrap(), "{what}");
        assert!(bytes_read() > before);
        // The author's files make it good.
        fs::remove_file(folder.model().join("more.txt")).unwrap();
        assert_eq!(folder.take().digest, taken.digest);
        assert!(folder.store.is_intact(&taken.digest).unwrap(), "{what}");
    }
}

#[test]
fn a_snapshot_is_intact_while_other_copies_link_its_files() {
    let folder = folder();
    (0..64).for_each(|file| folder.write(&format!("part-{file}.py"), b"x = 1\n"));
    let taken = folder.take();
    let dir = folder.store.find(&taken.digest).unwrap();
    let (file, link) = (dir.join("part-32.py"), folder.dir.path().join("link"));
    let ended = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(std::sync::atomic::Ordering::Relaxed) {
                fs::hard_link(&file, &link).unwrap();
                fs::remove_file(&link).unwrap();
            }
        });
        let wrong = (0..200).filter(|_| !matches!(folder.store.is_intact(&taken.digest), Ok(true))).count();
        ended.store(true, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(wrong, 0, "of 200");
    });
}

/// Ends a copy at one step.
struct EndsAt(std::sync::atomic::AtomicU32);

impl Progress for EndsAt {
    fn step(&self) -> Result<(), SnapshotError> {
        let left = self.0.fetch_sub(1, std::sync::atomic::Ordering::Relaxed);
        if left == 0 { Err(SnapshotError::Unwanted) } else { Ok(()) }
    }
}

#[test]
fn an_unneeded_copy_ends_at_any_step_and_leaves_nothing() {
    let folder = folder();
    folder.write("weights.bin", &vec![7; LARGE]);
    File::create(folder.model().join("sparse")).unwrap().set_len(1 << 20).unwrap();
    let dir = folder.dir.path().join("snapshots");
    let mut step = 0;
    let made = loop {
        match folder.copier.copy(folder.models(), Path::new("m"), None, &EndsAt(step.into())) {
            Err(SnapshotError::Unwanted) => {}
            other => break other.unwrap().unwrap(),
        }
        let left: Vec<_> = fs::read_dir(&dir).unwrap().flatten().map(|entry| entry.file_name()).collect();
        assert!(!left.iter().any(|name| name.to_string_lossy().starts_with(".tmp-")), "step {step}: {left:?}");
        assert_eq!(folder.contents(), 0, "step {step}");
        step += 1;
    };
    assert!(step > 20, "{step} steps");
    folder.store.adopt(&made.name, &made.snapshot.digest).unwrap();
    assert!(folder.store.is_intact(&made.snapshot.digest).unwrap());
}

#[test]
fn equal_files_of_different_models_are_one_and_different_rights_are_two() {
    let folder = folder();
    fs::create_dir(folder.dir.path().join("models/n")).unwrap();
    for name in ["m/a", "m/b", "m/run", "n/c"] {
        fs::write(folder.dir.path().join("models").join(name), "equal").unwrap();
    }
    fs::set_permissions(folder.model().join("run"), Permissions::from_mode(0o755)).unwrap();
    let m = folder.take();
    let n = folder.copy("n", None).unwrap();
    let found = |of, name| fs::metadata(folder.in_snapshot(of, name)).unwrap();
    assert_eq!(found(&m, "a").ino(), found(&m, "b").ino());
    assert_eq!(found(&m, "a").ino(), found(&n, "c").ino());
    assert_ne!(found(&m, "a").ino(), found(&m, "run").ino());
    assert_eq!([found(&m, "a"), found(&m, "run")].map(|found| found.mode() & 0o7777), [0o644, 0o755]);
}

/// A file whose time was set back, or that was written within one tick of the clock, is read again.
#[test]
fn a_large_file_of_the_same_size_and_time_is_read_again() {
    let folder = folder();
    let path = folder.model().join("weights.bin");
    for round in 0..10_u8 {
        // No pause: these changes lie within a tick of the file system's clock.
        folder.write("weights.bin", &vec![round; LARGE]);
        let first = folder.take();
        let time = fs::metadata(&path).unwrap().modified().unwrap();
        let mut file = OpenOptions::new().write(true).open(&path).unwrap();
        file.write_all(&[round + 100]).unwrap();
        file.set_modified(time).unwrap();
        drop(file);
        let second = folder.take();
        let mut byte = [0];
        File::open(folder.in_snapshot(&second, "weights.bin")).unwrap().read_exact(&mut byte).unwrap();
        assert_eq!(byte, [round + 100], "round {round}");
        assert_ne!(first.digest, second.digest);
    }
}

#[test]
fn a_damaged_snapshot_is_replaced_and_a_whole_one_is_left() {
    type Damage = fn(&Path);
    let table: [(&str, Damage, bool); 6] = [
        ("nothing", |_| (), false),
        ("emptied", |dir| fs::write(dir.join("model.py"), "").unwrap(), true),
        ("another byte", |dir| fs::write(dir.join("model.py"), "x = 7\n").unwrap(), true),
        ("gone", |dir| fs::remove_file(dir.join("model.py")).unwrap(), true),
        ("one more", |dir| fs::write(dir.join("more.py"), "").unwrap(), true),
        (
            "a copy of its own, as earlier releases made them",
            |dir| {
                fs::remove_file(dir.join("model.py")).unwrap();
                fs::write(dir.join("model.py"), "x = 1\n").unwrap();
            },
            false,
        ),
    ];
    for (what, damage, replaced) in table {
        let folder = folder();
        let place = folder.store.find(&folder.take().digest).unwrap();
        let inode = fs::metadata(&place).unwrap().ino();
        damage(&place);
        let again = folder.take();
        assert_eq!(folder.store.find(&again.digest).unwrap(), place);
        assert_eq!(fs::read(place.join("model.py")).unwrap(), b"x = 1\n", "{what}");
        assert_eq!(fs::read_dir(&place).unwrap().count(), 1, "{what}");
        assert_eq!(fs::metadata(&place).unwrap().ino() != inode, replaced, "{what}");
    }
}

#[test]
fn a_damaged_large_file_is_replaced_though_its_source_is_known() {
    let folder = folder();
    folder.write("weights.bin", &vec![7; LARGE]);
    folder.settle("weights.bin");
    let taken = folder.take();
    let mut file = OpenOptions::new().write(true).open(folder.in_snapshot(&taken, "weights.bin")).unwrap();
    file.write_all(b"damage").unwrap();
    drop(file);
    let again = folder.take();
    assert_eq!(again.digest, taken.digest);
    assert_eq!(fs::read(folder.in_snapshot(&again, "weights.bin")).unwrap(), vec![7; LARGE]);
}

#[test]
fn contents_go_with_the_last_snapshot_that_has_them() {
    let folder = folder();
    folder.write("weights.bin", &vec![7; LARGE]);
    folder.settle("weights.bin");
    let first = folder.take();
    folder.write("model.py", b"x = 2\n");
    let second = folder.take();
    assert_eq!(folder.contents(), 3);
    folder.store.release(&first.digest);
    folder.store.release(&second.digest);
    folder.store.retain(&BTreeSet::from([second.digest.clone()])).unwrap();
    assert_eq!(folder.contents(), 2);
    folder.store.retain(&BTreeSet::new()).unwrap();
    assert_eq!(folder.contents(), 0);
    let sources = folder.dir.path().join("snapshots/.sources");
    assert_eq!(fs::read_dir(sources).unwrap().count(), 0, "nothing is remembered of what is gone");
}

#[test]
fn holes_stay_holes() {
    let folder = folder();
    let file = File::create(folder.model().join("sparse")).unwrap();
    file.set_len(128 << 20).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, b"data", 64 << 20).unwrap();
    drop(file);
    let taken = folder.take();
    let found = fs::metadata(folder.in_snapshot(&taken, "sparse")).unwrap();
    assert_eq!(found.len(), 128 << 20);
    assert!(found.blocks() * 512 < 4 << 20, "{} bytes", found.blocks() * 512);
    let mut bytes = [0; 4];
    let copy = File::open(folder.in_snapshot(&taken, "sparse")).unwrap();
    std::os::unix::fs::FileExt::read_exact_at(&copy, &mut bytes, 64 << 20).unwrap();
    assert_eq!(&bytes, b"data");
}

#[test]
fn the_time_of_a_copied_file_tells_its_content() {
    let folder = folder();
    let time = |of: &Snapshot| fs::metadata(folder.in_snapshot(of, "model.py")).unwrap().mtime();
    let first = folder.take();
    folder.write("model.py", b"x = 2\n"); // the same size: caches of compilers have nothing else to go by
    let second = folder.take();
    assert_ne!(time(&first), time(&second));
}
