//! Random directories: the copy equals the source, and digests are equal exactly when directories are.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed set-up fails the test")]

mod common;

use common::Folder;
use omni_snapshot::Limits;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

#[derive(Debug, Clone, PartialEq, Eq)]
enum Node {
    Directory,
    File(Vec<u8>, bool),
    Link(PathBuf),
}

type Tree = BTreeMap<PathBuf, Node>;

/// Few names, so that trees often meet; every directory on the way to a name is part of the tree; links lead to
/// `model.py`, which always is there.
fn tree() -> impl Strategy<Value = Tree> {
    let node = prop_oneof![
        Just(Node::Directory),
        (prop_oneof![Just(vec![]), Just(vec![7]), proptest::collection::vec(any::<u8>(), 0..3000)], any::<bool>())
            .prop_map(|(bytes, executable)| Node::File(bytes, executable)),
        Just(Node::Link(PathBuf::new())),
    ];
    let path = proptest::collection::vec("[ab]|é", 1..4).prop_map(|parts| parts.iter().collect::<PathBuf>());
    proptest::collection::vec((path, node), 0..8).prop_map(|nodes| {
        let mut tree = Tree::from([(PathBuf::from("model.py"), Node::File(b"x".to_vec(), false))]);
        for (path, node) in nodes {
            let above: Vec<_> =
                path.ancestors().skip(1).filter(|dir| !dir.as_os_str().is_empty()).map(Path::to_owned).collect();
            let blocked = above.iter().any(|dir| tree.get(dir).is_some_and(|node| *node != Node::Directory));
            if blocked || tree.contains_key(&path) {
                continue;
            }
            let up: PathBuf = above.iter().map(|_| "..").collect();
            let node = if matches!(node, Node::Link(_)) { Node::Link(up.join("model.py")) } else { node };
            tree.extend(above.into_iter().map(|dir| (dir, Node::Directory)));
            tree.insert(path, node);
        }
        tree
    })
}

fn write(tree: &Tree, dir: &Path) {
    fs::create_dir_all(dir).unwrap();
    for (path, node) in tree {
        let path = dir.join(path);
        match node {
            Node::Directory => fs::create_dir(&path).unwrap(),
            Node::File(bytes, executable) => {
                fs::write(&path, bytes).unwrap();
                fs::set_permissions(&path, Permissions::from_mode(if *executable { 0o711 } else { 0o600 })).unwrap();
            }
            Node::Link(target) => symlink(target, &path).unwrap(),
        }
    }
}

fn read(dir: &Path) -> Tree {
    let mut tree = Tree::new();
    let mut waiting = vec![dir.to_owned()];
    while let Some(at) = waiting.pop() {
        for entry in fs::read_dir(at).unwrap() {
            let path = entry.unwrap().path();
            let found = path.symlink_metadata().unwrap();
            let node = if found.is_symlink() {
                Node::Link(fs::read_link(&path).unwrap())
            } else if found.is_dir() {
                waiting.push(path.clone());
                Node::Directory
            } else {
                Node::File(fs::read(&path).unwrap(), found.permissions().mode() & 0o111 != 0)
            };
            tree.insert(path.strip_prefix(dir).unwrap().to_owned(), node);
        }
    }
    tree
}

proptest! {
    #[test]
    fn digests_are_equal_iff_directories_are(a in tree(), b in tree()) {
        let folder = Folder::new(Limits { files: 1000, bytes: 1 << 20 });
        let store = &folder.store;
        let take = |tree: &Tree, name: &str| {
            write(tree, &folder.dir.path().join("models").join(name));
            folder.copy(name, None).unwrap().digest
        };
        let (of_a, of_a_again, of_b) = (take(&a, "a"), take(&a, "again"), take(&b, "b"));
        prop_assert_eq!(&of_a, &of_a_again);
        prop_assert_eq!(of_a == of_b, a == b);
        prop_assert_eq!(read(&store.find(&of_a).unwrap()), a);
        prop_assert_eq!(read(&store.find(&of_b).unwrap()), b);
    }
}
