//! Links through names with two leading dots, as Kubernetes mounts a `ConfigMap`: copied as what they lead to, of one moment.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed set-up fails the test")]

mod common;

use common::Folder;
use omni_snapshot::{Limits, Progress, SnapshotError};
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

const LIMITS: Limits = Limits { files: 100, bytes: 1 << 30 };

/// `..data` is of `..1`; each folder's files have its name for their content.
fn config_map() -> Folder {
    let folder = Folder::new(LIMITS);
    for data in ["..1", "..2"] {
        fs::create_dir_all(folder.model().join(data).join("sub/deep")).unwrap();
        for file in ["model.py", "data.txt", "sub/a", "sub/deep/b"] {
            fs::write(folder.model().join(data).join(file), data).unwrap();
        }
    }
    symlink("..1", folder.model().join("..data")).unwrap();
    for name in ["model.py", "data.txt", "sub"] {
        symlink(Path::new("..data").join(name), folder.model().join(name)).unwrap();
    }
    folder
}

fn exchange(folder: &Folder, data: &str) {
    symlink(data, folder.model().join("..data_tmp")).unwrap();
    fs::rename(folder.model().join("..data_tmp"), folder.model().join("..data")).unwrap();
}

fn take(folder: &Folder) -> Result<PathBuf, SnapshotError> {
    let taken = folder.copy("m", None)?;
    Ok(folder.store.find(&taken.digest).unwrap())
}

/// All files of a copy with their contents.
fn files(copy: &Path) -> Vec<(String, String)> {
    let (mut waiting, mut found) = (vec![copy.to_owned()], Vec::new());
    while let Some(dir) = waiting.pop() {
        for entry in fs::read_dir(dir).unwrap().flatten() {
            match entry.file_type().unwrap() {
                kind if kind.is_dir() => waiting.push(entry.path()),
                kind => {
                    assert!(kind.is_file(), "{:?} is a link", entry.path());
                    let path = entry.path().strip_prefix(copy).unwrap().to_string_lossy().into_owned();
                    found.push((path, fs::read_to_string(entry.path()).unwrap()));
                }
            }
        }
    }
    found.sort();
    found
}

fn expected(data: &str) -> Vec<(String, String)> {
    ["data.txt", "model.py", "sub/a", "sub/deep/b"].map(|path| (path.to_owned(), data.to_owned())).into()
}

#[test]
fn files_and_directories_are_copied_as_what_links_lead_to() {
    let folder = config_map();
    let first = take(&folder).unwrap();
    assert_eq!(files(&first), expected("..1"));
    exchange(&folder, "..2");
    assert_eq!(files(&take(&folder).unwrap()), expected("..2"));
    exchange(&folder, "..1");
    assert_eq!(take(&folder).unwrap(), first, "the same content has the same digest");
}

#[test]
fn an_exchange_is_noticed_though_nothing_else_changes() {
    let folder = config_map();
    fs::remove_file(folder.model().join("..2/model.py")).unwrap();
    fs::hard_link(folder.model().join("..1/model.py"), folder.model().join("..2/model.py")).unwrap();
    let mut known = folder.copy("m", None).unwrap();
    // A fingerprint counts only from a tick of the file system's clock after the last change.
    for _ in 0..100_000 {
        let again = folder.copy("m", Some(&known)).unwrap();
        if again == known {
            break;
        }
        known = again;
    }
    exchange(&folder, "..2");
    let after = folder.copy("m", Some(&known)).unwrap();
    assert_ne!(after.digest, known.digest);
}

/// Exchanges `..data` at one step of a copy.
struct At<'a> {
    folder: &'a Folder,
    step: u32,
    seen: AtomicU32,
}

impl Progress for At<'_> {
    fn step(&self) -> Result<(), SnapshotError> {
        if self.seen.fetch_add(1, Ordering::Relaxed) == self.step {
            exchange(self.folder, "..2");
        }
        Ok(())
    }
}

#[test]
fn an_exchange_at_any_step_of_a_copy_never_gives_a_mixture() {
    let mut step = 0;
    let (mut old, mut new) = (0, 0);
    loop {
        let folder = config_map();
        let at = At { folder: &folder, step, seen: AtomicU32::new(0) };
        let fresh = folder.copier.copy(folder.models(), Path::new("m"), None, &at).unwrap().unwrap();
        let files = files(&folder.dir.path().join("snapshots").join(&fresh.name));
        let data = files[0].1.clone();
        assert_eq!(files, expected(&data), "step {step}");
        (old, new) = (old + u32::from(data == "..1"), new + u32::from(data == "..2"));
        if at.seen.load(Ordering::Relaxed) <= step {
            break; // it came after the copy
        }
        step += 1;
    }
    assert!(step > 10 && old > 0 && new > 10, "{step} steps, {old} and {new}");
}

#[test]
fn a_link_that_leads_out_or_nowhere_is_refused_by_name() {
    type Make = fn(&Path);
    let table: [(&str, Make, &str); 6] = [
        ("out", |m| symlink("..data/../../../x", m.join("l")).unwrap(), "`l` links to `..data/../../../x`, outside"),
        ("out by the second link", |m| symlink("..out/x", m.join("l")).unwrap(), "`l` links to `..out/x`, outside"),
        ("absolute", |m| symlink("..abs/x", m.join("l")).unwrap(), "`l` is an absolute link, to `/etc`"),
        (
            "nowhere",
            |m| symlink("..data/absent", m.join("l")).unwrap(),
            "`l` links to `..data/absent`, which is not there",
        ),
        ("a circle", |m| symlink("..loop", m.join("l")).unwrap(), "`l` links to `..loop`, which is not there"),
        ("hidden", |m| symlink(".git/x", m.join("l")).unwrap(), "`l` links to `.git/x`, which is not part of the copy"),
    ];
    for (what, make, words) in table {
        let folder = config_map();
        for (link, target) in [("..out", "../.."), ("..abs", "/etc"), ("..loop", "..loop")] {
            symlink(target, folder.model().join(link)).unwrap();
        }
        make(&folder.model());
        let said = take(&folder).expect_err(what).to_string();
        assert!(said.starts_with(words), "{what}: {said}");
    }
    // A directory that is in itself has no end.
    let folder = config_map();
    symlink("..", folder.model().join("..1/sub/deep/up")).unwrap();
    assert!(matches!(take(&folder), Err(SnapshotError::TooDeep { .. } | SnapshotError::TooMany { .. })));
}

/// As without links: a user can rename a file without the right to read it.
#[test]
fn a_private_file_of_another_user_is_not_copied_by_a_link_either() {
    const AUTHOR: u32 = 71_401;
    let folder = config_map();
    for path in ["", "..1"] {
        chown(folder.model().join(path), Some(AUTHOR), None).unwrap();
    }
    let secret = folder.model().join("..1/data.txt");
    fs::set_permissions(&secret, Permissions::from_mode(0o600)).unwrap();
    let said = take(&folder).unwrap_err().to_string();
    assert!(said.starts_with("`data.txt` belongs to another user"), "{said}");
    chown(&secret, Some(AUTHOR), None).unwrap();
    take(&folder).unwrap();
    let sub = folder.model().join("..1/sub");
    fs::set_permissions(&sub, Permissions::from_mode(0o700)).unwrap();
    let said = take(&folder).unwrap_err().to_string();
    assert!(said.starts_with("`sub` belongs to another user"), "{said}");
}
