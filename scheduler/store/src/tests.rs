//! Tests of the store: what was put is found again, whatever happened in between.

use super::*;
use std::fs;
use std::os::unix::fs::PermissionsExt;

fn name(text: &str) -> ModelName {
    text.parse().unwrap()
}

fn digest(number: u64) -> SnapshotDigest {
    SnapshotDigest::parse(&format!("{number:064x}")).unwrap()
}

fn version(number: u64) -> Version {
    Version { snapshot: digest(number), manifest: Some(format!("# {number}\n")), first_ready_unix_ms: number }
}

fn full() -> PersistedState {
    let mut state = PersistedState { held: true, deaths: 7, ..PersistedState::default() };
    state.record_ready(version(1));
    state.record_ready(version(2));
    let unprepared = Some(Unprepared::new(digest(3), "no such file"));
    PersistedState { pinned: Some(Pin { to: digest(1), from: digest(2) }), unprepared, ..state }
}

fn numbers(state: &PersistedState) -> Vec<u64> {
    state.history.iter().map(|version| version.first_ready_unix_ms).collect()
}

#[test]
fn a_history_is_bounded_and_never_loses_the_pinned_version() {
    let mut state = PersistedState::default();
    for number in 0..5 {
        state.record_ready(version(number));
    }
    state.record_ready(Version { first_ready_unix_ms: 99, ..version(1) });
    assert_eq!(numbers(&state), [1, 4, 3, 2, 0], "served again: the newest, and first ready when it was");
    state.pinned = Some(Pin { to: digest(0), from: digest(4) });
    for number in 10..30 {
        state.record_ready(version(number));
        assert!(state.history.len() <= HISTORY && state.was_ready(&digest(0)));
    }
    assert_eq!(numbers(&state), [29, 28, 27, 26, 25, 24, 23, 22, 21, 0]);
    assert_eq!(state.snapshots().len(), HISTORY);
}

#[tokio::test]
async fn the_last_put_of_each_model_is_found_again() {
    let dir = tempfile::tempdir().unwrap();
    let (store, found) = StateStore::open(dir.path()).unwrap();
    assert_eq!(found, BTreeMap::new());
    store.put(&name("@cf/meta/x"), Some(full()));
    store.put(&name("gone"), Some(full()));
    for deaths in 0..100 {
        store.put(&name("busy"), Some(PersistedState { deaths, ..PersistedState::default() }));
    }
    store.flush().await;
    store.put(&name("gone"), None);
    drop(store);
    let (_store, found) = StateStore::open(dir.path()).unwrap();
    let busy = PersistedState { deaths: 99, ..PersistedState::default() };
    assert_eq!(found, BTreeMap::from([(name("@cf/meta/x"), full()), (name("busy"), busy)]));
    assert!(dir.path().join("@cf%2Fmeta%2Fx.json").exists(), "one file for each model");
}

#[test]
fn an_unreadable_file_affects_its_own_model_only() {
    let dir = tempfile::tempdir().unwrap();
    let at = |file: &str| dir.path().join(file);
    let whole = r#"{"schema":1,"model":"good","held":true,"deaths":0,"history":[],"added later":[1]}"#;
    let spoiled = [
        ("empty.json", String::new()),
        ("half.json", whole.chars().take(40).collect()),
        ("zeros.json", "\0".repeat(100)),
        ("newer.json", whole.replace("\"schema\":1", "\"schema\":2").replace("good", "newer")),
        ("other.json", whole.to_owned()),
        ("..json", whole.replace("good", ".")),
        ("long.json", " ".repeat(9 << 20)),
        ("digest.json", r#"{"schema":1,"model":"digest","pinned":{"to":"../../etc","from":"x"}}"#.to_owned()),
    ];
    fs::write(at("good.json"), whole).unwrap();
    fs::write(at("good.json.new"), "half writ").unwrap();
    fs::create_dir(at("folder.json")).unwrap();
    nix::unistd::mkfifo(&at("fifo.json"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    for (file, text) in &spoiled {
        fs::write(at(file), text).unwrap();
    }
    let (store, found) = StateStore::open(dir.path()).unwrap();
    assert_eq!(found, BTreeMap::from([(name("good"), PersistedState { held: true, ..PersistedState::default() })]));
    assert!(!at("good.json.new").exists());
    for file in spoiled.iter().map(|(file, _)| *file).chain(["folder.json", "fifo.json"]) {
        assert!(!at(file).exists() && at(&format!("{file}.spoiled")).exists(), "{file} is set aside");
    }
    store.put(&name("half"), Some(full()));
    drop(store);
    let (_store, found) = StateStore::open(dir.path()).unwrap();
    assert_eq!(found.get(&name("half")), Some(&full()), "its model begins anew");
}

#[tokio::test]
async fn failed_writes_keep_the_old_files_and_are_retried() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = StateStore::open(dir.path()).unwrap();
    let (old, new) = (PersistedState { deaths: 1, ..full() }, PersistedState { deaths: 2, ..full() });
    store.put(&name("a"), Some(old.clone()));
    store.flush().await;
    // Nothing can be opened for writing at the place where a directory is.
    let blocked = dir.path().join("a.json.new");
    fs::create_dir(&blocked).unwrap();
    store.put(&name("a"), Some(new.clone()));
    store.put(&name("b"), Some(new.clone()));
    store.flush().await;
    let of = |found: &BTreeMap<ModelName, PersistedState>, model| found.get(&name(model)).cloned();
    let found = file::read_all(dir.path()).unwrap();
    assert_eq!((of(&found, "a"), of(&found, "b")), (Some(old), Some(new.clone())), "the others are written");
    let why = store.persisted(&name("a")).await.unwrap_err();
    assert!(why.contains("irectory"), "{why}");
    assert_eq!(store.persisted(&name("b")).await, Ok(()), "the reason is of one model");
    assert!(store.has_failed_writes());
    fs::remove_dir(&blocked).unwrap();
    assert_eq!(store.persisted(&name("a")).await, Ok(()));
    assert!(!store.has_failed_writes());
    let found = file::read_all(dir.path()).unwrap();
    assert_eq!((of(&found, "a"), of(&found, "b")), (Some(new.clone()), Some(new.clone())), "with the next flush");

    fs::create_dir(&blocked).unwrap();
    store.put(&name("a"), Some(full()));
    store.flush().await;
    fs::remove_dir(&blocked).unwrap();
    store.put(&name("b"), None);
    drop(store);
    let found = file::read_all(dir.path()).unwrap();
    assert_eq!((of(&found, "a"), of(&found, "b")), (Some(full()), None), "or with the next change");
}

#[test]
fn an_unusable_folder_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    let error = StateStore::open(&file.join("state")).unwrap_err();
    assert!(error.to_string().contains("file/state"), "{error}");
}
