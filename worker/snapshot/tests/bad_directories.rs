//! Directories that are refused, each with a message for its author; and what is done to those that are taken.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed set-up fails the test")]

mod common;

use common::Folder;
use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
use nix::sys::stat::{Mode, SFlag, mknod};
use nix::unistd::mkfifo;
use omni_snapshot::{Limits, SnapshotError, Store};
use std::collections::BTreeSet;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;

const LIMITS: Limits = Limits { files: 100, bytes: 1 << 30 };

fn folder() -> Folder {
    let folder = Folder::new(LIMITS);
    fs::create_dir(folder.model().join("sub")).unwrap();
    folder.write("model.py", b"x = 1\n");
    folder
}

#[test]
fn a_directory_that_cannot_be_a_model_is_refused_with_its_path() {
    type Make = fn(&Path);
    let table: [(&str, Make, &str); 14] = [
        ("FIFO", |m| mkfifo(&m.join("sub/pipe"), Mode::S_IRUSR).unwrap(), "`sub/pipe` is a FIFO"),
        (
            "device",
            |m| mknod(&m.join("zero"), SFlag::S_IFCHR, Mode::S_IRUSR, nix::sys::stat::makedev(1, 5)).unwrap(),
            "`zero` is a device",
        ),
        ("socket", |m| drop(UnixListener::bind(m.join("s")).unwrap()), "`s` is a socket"),
        (
            "absolute link",
            |m| symlink("/etc/passwd", m.join("a")).unwrap(),
            "`a` is an absolute link, to `/etc/passwd`",
        ),
        ("outside link", |m| symlink("../../x", m.join("sub/a")).unwrap(), "`sub/a` links to `../../x`, outside"),
        (
            "outside through a link",
            |m| {
                symlink("sub", m.join("d")).unwrap();
                symlink("d/../../../x", m.join("e")).unwrap();
            },
            "`e` links to `d/../../../x`, outside",
        ),
        ("broken link", |m| symlink("nothing", m.join("a")).unwrap(), "`a` links to `nothing`, which is not there"),
        ("circle", |m| symlink("a", m.join("a")).unwrap(), "`a` links to `a`, which is not there"),
        (
            "hidden target",
            |m| {
                fs::write(m.join(".env"), "").unwrap();
                symlink(".env", m.join("env")).unwrap();
            },
            "`env` links to `.env`, which is not part of the copy",
        ),
        (
            "10 GiB sparse file",
            |m| File::create(m.join("weights.bin")).unwrap().set_len(10 << 30).unwrap(),
            "with `weights.bin` (10.0 GiB) the directory has more than 1.0 GiB",
        ),
        (
            "many small files together",
            |m| (0..3).for_each(|n| File::create(m.join(format!("{n}.bin"))).unwrap().set_len(400 << 20).unwrap()),
            "(400.0 MiB) the directory has more than 1.0 GiB",
        ),
        (
            "too many files",
            |m| (0..100).for_each(|n| drop(File::create(m.join(n.to_string())).unwrap())),
            "more than 100 files",
        ),
        ("too deep", |m| fs::create_dir_all(m.join("d/".repeat(33))).unwrap(), "more than 32 directories deep"),
        (
            "manifest",
            |m| fs::write(m.join("omni.toml"), "#".repeat(65537)).unwrap(),
            "`omni.toml` has more than 65536 bytes",
        ),
    ];
    for (what, make, expected) in table {
        let folder = folder();
        make(&folder.model());
        let error = folder.copy("m", None).expect_err(what);
        assert!(error.to_string().contains(expected), "{what}: {error}");
        assert_eq!(folder.stored(), BTreeSet::from([".boot".to_owned()]), "{what}: nothing is left");
    }
}

#[test]
fn a_hard_link_to_a_file_of_another_owner_is_refused() {
    let folder = folder();
    let model = folder.model();
    let secret = folder.dir.path().join("secret");
    fs::write(&secret, "of root").unwrap();
    fs::hard_link(&secret, model.join("sub/data")).unwrap();
    // Root's own directory: root can copy what root can read. A file of the author's own may have several names, too.
    folder.copy("m", None).unwrap();
    for path in [model.clone(), model.join("sub"), model.join("model.py")] {
        chown(&path, Some(54_321), Some(54_321)).unwrap();
    }
    fs::hard_link(model.join("model.py"), model.join("sub/again.py")).unwrap();
    let error = folder.copy("m", None).unwrap_err();
    assert!(error.to_string().contains("`sub/data` is a hard link to a file of another owner"), "{error}");
    fs::remove_file(&secret).unwrap();
    folder.copy("m", None).expect("everybody may read it, so its copy gives nothing away");
}

/// A name needs no right to its file to be moved, only to both directories.
#[test]
fn a_private_file_of_another_owner_is_refused_wherever_an_author_may_have_moved_it() {
    const AUTHOR: u32 = 54_321;
    let folder = folder();
    let model = folder.model();
    let data = model.join("sub/data");
    fs::write(&data, "secret").unwrap();
    let set = |path: &Path, owner: u32, mode: u32| {
        chown(path, Some(owner), Some(owner)).unwrap();
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    };
    // Owners of the model's directory, of the one below with its mode, and of the file with its mode; what is refused.
    let table = [
        ((0, 0, 0o700, 0, 0o600), None, "all is root's: a deploy by root"),
        ((0, 0, 0o755, AUTHOR, 0o600), None, "root's directories: root can read it"),
        ((AUTHOR, AUTHOR, 0o700, AUTHOR, 0o600), None, "an author's own, with umask 077"),
        ((0, AUTHOR, 0o700, AUTHOR, 0o400), None, "an author's own below a directory of root"),
        ((AUTHOR, AUTHOR, 0o700, 0, 0o644), None, "everybody may read it"),
        ((AUTHOR, 0, 0o755, 0, 0o644), None, "everybody may read it"),
        ((AUTHOR, AUTHOR, 0o755, 0, 0o600), Some("sub/data"), "moved there"),
        ((AUTHOR, AUTHOR, 0o755, 0, 0o640), Some("sub/data"), "moved there; an author need not be in its group"),
        ((AUTHOR, AUTHOR, 0o755, AUTHOR + 1, 0o600), Some("sub/data"), "of another user"),
        ((0, AUTHOR, 0o755, 0, 0o600), Some("sub/data"), "moved below a directory of root"),
        ((AUTHOR, 0, 0o755, 0, 0o600), Some("sub/data"), "a directory of root that was renamed in an author's"),
        ((AUTHOR, 0, 0o700, 0, 0o644), Some("sub"), "a private directory of root, renamed in an author's"),
    ];
    for ((of_model, of_sub, sub_mode, of_file, mode), refused, what) in table {
        set(&model, of_model, 0o755);
        set(&model.join("sub"), of_sub, sub_mode);
        set(&data, of_file, mode);
        match (folder.copy("m", None), refused) {
            (Ok(_), None) => {}
            (Err(SnapshotError::PrivateFile { path }), Some(refused)) => assert_eq!(path, Path::new(refused), "{what}"),
            (taken, _) => panic!("{what}: {taken:?}"),
        }
    }
}

#[test]
fn a_directory_exchanged_during_a_copy_leaks_nothing() {
    // The link to the secret is only ever in a directory with a dot, which no listing shows; the same size, so that the
    // size tells nothing; and what a listing shows never changes, for a directory's own times do not count.
    let folder = folder();
    let (sub, hidden) = (folder.model().join("sub"), folder.model().join(".hidden"));
    let secret = folder.dir.path().join("secret");
    fs::create_dir(&hidden).unwrap();
    fs::write(&secret, "secret").unwrap();
    fs::write(sub.join("data"), "public").unwrap();
    fs::hard_link(&secret, hidden.join("data")).unwrap();
    for path in [folder.model(), sub.clone(), hidden.clone(), sub.join("data"), folder.model().join("model.py")] {
        chown(&path, Some(54_321), Some(54_321)).unwrap();
    }
    let exchange = || renameat2(AT_FDCWD, &sub, AT_FDCWD, &hidden, RenameFlags::RENAME_EXCHANGE).unwrap();
    let stop = std::sync::atomic::AtomicBool::new(false);
    let seen = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                exchange();
            }
        });
        let (mut seen, mut naive, mut tries) = (BTreeSet::new(), BTreeSet::new(), 0);
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
        // At least until a reader that goes by names alone was given both.
        while (naive.len() < 2 || tries < 1000) && std::time::Instant::now() < deadline {
            naive.insert(fs::read_to_string(sub.join("data")).unwrap());
            if let Ok(taken) = folder.copy("m", None) {
                let copy = folder.store.find(&taken.digest).unwrap();
                seen.insert(fs::read_to_string(copy.join("sub/data")).unwrap());
            }
            tries += 1;
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(naive.len(), 2, "who goes by names alone is given the secret: {naive:?}");
        seen
    });
    assert!(!seen.contains("secret"), "{seen:?}");
}

#[test]
fn a_sparse_file_within_the_bound_is_taken_by_its_apparent_size() {
    let folder = folder();
    File::create(folder.model().join("w")).unwrap().set_len(1 << 20).unwrap();
    let taken = folder.copy("m", None).unwrap();
    assert_eq!(folder.store.find(&taken.digest).unwrap().join("w").metadata().unwrap().len(), 1 << 20);
}

#[test]
fn a_model_that_is_itself_a_link_is_refused() {
    let folder = folder();
    symlink("m", folder.dir.path().join("models/link")).unwrap();
    for name in ["link", "absent", "../models/m", "m/model.py"] {
        let error = folder.copy(name, None).unwrap_err();
        assert!(matches!(error, SnapshotError::Open(_)), "{name}: {error:?}");
    }
}

#[test]
fn private_directories_are_copied_readable_for_the_models_user() {
    let folder = folder();
    let model = folder.model();
    fs::write(model.join("sub/run.sh"), "#!/bin/sh\n").unwrap();
    for (path, mode) in [("sub/run.sh", 0o700), ("model.py", 0o600), ("sub", 0o700), (".", 0o700)] {
        fs::set_permissions(model.join(path), Permissions::from_mode(mode)).unwrap();
    }
    let copy = folder.store.find(&folder.copy("m", None).unwrap().digest).unwrap();
    for (path, mode) in [("sub/run.sh", 0o755), ("model.py", 0o644), ("sub", 0o755), (".", 0o755)] {
        let found = copy.join(path).metadata().unwrap();
        assert_eq!((found.mode() & 0o7777, found.uid()), (mode, 0), "{path}");
    }
}

#[test]
fn hidden_files_and_bytecode_do_not_count() {
    let folder = folder();
    let before = folder.copy("m", None).unwrap();
    fs::create_dir_all(folder.model().join("__pycache__")).unwrap();
    mkfifo(&folder.model().join(".fifo"), Mode::S_IRUSR).unwrap();
    fs::write(folder.model().join("sub/a.pyc"), "x").unwrap();
    assert_eq!(folder.copy("m", None).unwrap().digest, before.digest);
    let copy = folder.store.find(&before.digest).unwrap();
    assert_eq!(fs::read_dir(copy.join("sub")).unwrap().count(), 0);
}

#[test]
fn the_manifest_comes_with_the_snapshot() {
    let folder = folder();
    assert_eq!(folder.copy("m", None).unwrap().manifest, None);
    fs::write(folder.model().join("omni.toml"), "schema = 1\n").unwrap();
    assert_eq!(folder.copy("m", None).unwrap().manifest.as_deref(), Some("schema = 1\n"));
    fs::write(folder.model().join("omni.toml"), b"\xff").unwrap();
    assert!(matches!(folder.copy("m", None), Err(SnapshotError::ManifestNotText)));
    fs::remove_file(folder.model().join("omni.toml")).unwrap();
    symlink("model.py", folder.model().join("omni.toml")).unwrap();
    assert!(matches!(folder.copy("m", None), Err(SnapshotError::ManifestNotText)));
}

#[test]
fn an_unchanged_directory_is_not_read_again_and_a_changed_one_is() {
    let folder = folder();
    let mut known = folder.copy("m", None).unwrap();
    // A fingerprint counts only from a tick of the file system's clock after the last change.
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(5);
    loop {
        let again = folder.copy("m", Some(&known)).unwrap();
        let settled = again.fingerprint != known.fingerprint;
        known = again;
        if settled || std::time::Instant::now() > deadline {
            break;
        }
    }
    // A copy that is not made again stays as it is, even altered.
    let copied = folder.store.find(&known.digest).unwrap().join("model.py");
    fs::write(&copied, "altered").unwrap();
    assert_eq!(folder.copy("m", Some(&known)).unwrap(), known);
    assert_eq!(fs::read(&copied).unwrap(), b"altered");
    fs::write(folder.model().join("model.py"), "x = 2\n").unwrap();
    let changed = folder.copy("m", Some(&known)).unwrap();
    assert_ne!(changed.digest, known.digest);
    assert_eq!(fs::read(folder.store.find(&changed.digest).unwrap().join("model.py")).unwrap(), b"x = 2\n");
}

#[test]
fn a_file_that_changes_all_the_time_is_noticed() {
    let folder = folder();
    let path = folder.model().join("log");
    fs::write(&path, vec![b'x'; 8 << 20]).unwrap();
    let stop = std::sync::atomic::AtomicBool::new(false);
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    let noticed = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut file = fs::OpenOptions::new().append(true).open(&path).unwrap();
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                std::io::Write::write_all(&mut file, b"y").unwrap();
            }
        });
        // On a loaded machine a whole copy may fall between two writes: that copy is right, and another one is tried.
        let noticed = loop {
            let before = folder.stored();
            match folder.copy("m", None) {
                Err(error) => break error.is_changing() && folder.stored() == before,
                Ok(_) if std::time::Instant::now() > deadline => break false,
                Ok(_) => {}
            }
        };
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        noticed
    });
    assert!(noticed, "a change is noticed, and leaves nothing of its copy");
}

#[test]
fn unkept_snapshots_are_removed_and_leftovers_go_at_start() {
    let folder = folder();
    let old = folder.copy("m", None).unwrap().digest;
    fs::write(folder.model().join("model.py"), "x = 2\n").unwrap();
    let new = folder.copy("m", None).unwrap().digest;
    folder.store.release(&old);
    assert_eq!(folder.store.retain(&BTreeSet::from([new.clone()])).unwrap(), vec![old.clone()]);
    assert_eq!((folder.store.find(&old), folder.store.find(&new).is_some()), (None, true));

    let none = BTreeSet::new();
    folder.copy("m", None).unwrap();
    folder.store.release(&new);
    assert_eq!(folder.store.retain(&none).unwrap(), vec![], "taken twice, released once: still held");

    let dir = folder.dir.path().join("snapshots");
    fs::create_dir(dir.join(".tmp-7")).unwrap();
    Store::open(&dir, LIMITS).unwrap();
    let content = "4205c4809ab1b080fd32b6bf9640e5feaa6d1b69bf9fa684954ab710157ec141-f".to_owned();
    assert_eq!(folder.stored(), BTreeSet::from([".boot".to_owned(), new.to_string(), content]));
    fs::write(dir.join(".boot"), "another boot").unwrap();
    Store::open(&dir, LIMITS).unwrap();
    assert_eq!(folder.stored(), BTreeSet::from([".boot".to_owned()]), "copies of an earlier boot may be cut");
}

#[test]
fn a_flushed_snapshot_outlasts_a_reboot() {
    let folder = folder();
    let dir = folder.dir.path().join("snapshots");
    let reboot = || {
        fs::write(dir.join(".boot"), "another boot").unwrap();
        Store::open(&dir, LIMITS).unwrap()
    };
    fs::create_dir(folder.model().join("deep")).unwrap();
    symlink("../model.py", folder.model().join("deep/link")).unwrap();
    let lasting = folder.copy("m", None).unwrap().digest;
    fs::write(folder.model().join("model.py"), "x = 2\n").unwrap();
    let other = folder.copy("m", None).unwrap().digest;
    assert!(!folder.store.is_lasting(&lasting));
    folder.store.make_lasting(&lasting).unwrap();
    folder.store.make_lasting(&lasting).unwrap();
    let store = reboot();
    assert!(store.is_lasting(&lasting) && store.find(&lasting).is_some());
    assert_eq!((store.find(&other), store.is_lasting(&other)), (None, false));

    assert_eq!(store.retain(&BTreeSet::new()).unwrap(), vec![lasting.clone()]);
    assert!(!store.is_lasting(&lasting), "the next copy of it was not flushed");
    fs::create_dir(dir.join(lasting.as_str())).unwrap();
    assert_eq!(reboot().find(&lasting), None);
    assert!(store.make_lasting(&lasting).is_err(), "it is not there");

    fs::write(dir.join(".lasting"), "not a digest\n../../etc\n").unwrap();
    assert!(!reboot().is_lasting(&lasting));
}
