//! Links, exchanged directories, foreign files and names that lead elsewhere: none of them is reached.

use super::*;
use std::fs;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};

const USER: u32 = 71_121;

/// A directory, and a file outside that must stay as it is.
fn around() -> (tempfile::TempDir, Dir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let at = fs::canonicalize(folder.path()).unwrap();
    let precious = at.join("precious");
    fs::write(&precious, "precious").unwrap();
    fs::create_dir(at.join("dir")).unwrap();
    let dir = Dir::open(&at.join("dir")).unwrap();
    (folder, dir, precious)
}

fn assert_untouched(precious: &Path) {
    let found = fs::metadata(precious).unwrap();
    assert_eq!((fs::read_to_string(precious).unwrap().as_str(), found.uid()), ("precious", 0));
}

#[test]
fn a_link_in_the_place_of_a_file_is_never_followed() {
    let (_folder, dir, precious) = around();
    for name in ["file", "file.new", "socket"] {
        symlink(&precious, dir.path().join(name)).unwrap();
    }
    assert!(dir.create("file", 0o600).is_err() && dir.read("file").is_err() && dir.own_file("file", 0o600).is_err());
    dir.replace("file", b"text", 0o600).unwrap();
    let mut text = String::new();
    dir.read("file").unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(text, "text");
    let _socket = dir.listen("socket", USER, None, Backlog::new(1).unwrap()).unwrap();
    let found = fs::symlink_metadata(dir.path().join("socket")).unwrap();
    assert_eq!((found.uid(), found.permissions().mode() & 0o7777), (USER, 0o600));
    assert_untouched(&precious);
}

#[test]
fn a_file_with_a_second_name_is_not_taken_for_our_own() {
    let (_folder, dir, precious) = around();
    fs::hard_link(&precious, dir.path().join("lock")).unwrap();
    assert_eq!(dir.own_file("lock", 0o600).unwrap_err().kind(), ErrorKind::PermissionDenied);
    dir.remove("lock").unwrap();
    dir.own_file("lock", 0o600).unwrap();
    chown(dir.path().join("lock"), Some(USER), None).unwrap();
    assert_eq!(dir.own_file("lock", 0o600).unwrap_err().kind(), ErrorKind::PermissionDenied);
    assert_untouched(&precious);
}

#[test]
fn an_exchanged_directory_is_not_reached() {
    let (folder, dir, precious) = around();
    let (own, moved) = (dir.path().to_owned(), folder.path().join("moved"));
    fs::rename(&own, &moved).unwrap();
    fs::create_dir(&own).unwrap();
    symlink(&precious, own.join("file")).unwrap();
    dir.replace("file", b"text", 0o600).unwrap();
    let _socket = dir.listen("socket", USER, None, Backlog::new(1).unwrap()).unwrap();
    let mut names = dir.names().unwrap();
    names.sort();
    assert_eq!(names, ["file", "socket"]);
    assert!(moved.join("socket").exists() && !own.join("socket").exists());
    assert_untouched(&precious);
    fs::remove_dir_all(&own).unwrap();
    symlink(&moved, &own).unwrap();
    assert!(Dir::open(&own).is_err() && Dir::open(&own.join("deeper")).is_err());
}

#[test]
fn a_name_that_leads_elsewhere_is_refused() {
    let (_folder, dir, precious) = around();
    for name in ["../precious", "..", ".", "", "a/b", "/etc/passwd"] {
        let kinds = [
            dir.create(name, 0o600).unwrap_err().kind(),
            dir.read(name).unwrap_err().kind(),
            dir.remove(name).unwrap_err().kind(),
            dir.subdirectory(name, 0o700).unwrap_err().kind(),
            dir.listen(name, USER, None, Backlog::new(1).unwrap()).unwrap_err().kind(),
        ];
        assert_eq!(kinds, [ErrorKind::InvalidInput; 5], "{name}");
    }
    assert_untouched(&precious);
}

#[test]
fn a_directory_of_another_is_not_roots() {
    let (_folder, dir, _) = around();
    let path = dir.path().to_owned();
    let dir = dir.of_root().unwrap();
    dir.belong_to(0, None, 0o775).unwrap();
    assert!(dir.of_root().is_err());
    Dir::open(&path).unwrap().belong_to(USER, None, 0o755).unwrap();
    assert!(Dir::open(&path).unwrap().of_root().unwrap_err().to_string().contains(&USER.to_string()));
}
