//! Digest of a model directory. Pure.
//!
//! SHA-256 over, in this order:
//!
//! 1. the bytes `omni-snapshot 1\n`;
//! 2. for each entry, in the order of its path's bytes: one byte of kind (`d` directory, `f` file, `x` executable file,
//!    `l` link), the path relative to the model's directory, and for a file the SHA-256 of its content, for a link its
//!    target. Path and target are each preceded by their length as eight bytes, little-endian.
//!
//! Owner, times, and permission bits other than "executable by some user" are no part of it, nor are names that are
//! left out of a snapshot ([`is_ignored`]).

use omni_node_protocol::id::SnapshotDigest;
use sha2::{Digest, Sha256};
use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};

/// Kind of an entry, with its content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content<'a> {
    /// A directory.
    Directory,
    /// A regular file.
    File {
        /// Executable by some user.
        executable: bool,
        /// SHA-256 of its bytes.
        sha256: [u8; 32],
    },
    /// A symbolic link.
    Link {
        /// Target as it is written.
        target: &'a Path,
    },
}

/// Takes the entries of one directory, in the order of their paths' bytes.
#[derive(Debug, Clone)]
pub struct TreeHasher(Sha256);

impl Default for TreeHasher {
    fn default() -> Self {
        Self(Sha256::new_with_prefix(b"omni-snapshot 1\n"))
    }
}

impl TreeHasher {
    /// The next entry.
    pub fn entry(&mut self, path: &Path, content: Content<'_>) {
        let kind: &[u8] = match content {
            Content::Directory => b"d",
            Content::File { executable: false, .. } => b"f",
            Content::File { executable: true, .. } => b"x",
            Content::Link { .. } => b"l",
        };
        self.0.update(kind);
        self.sized(path);
        match content {
            Content::Directory => {}
            Content::File { sha256, .. } => self.0.update(sha256),
            Content::Link { target } => self.sized(target),
        }
    }

    /// The digest of all entries.
    ///
    /// # Errors
    /// Never in practice: 32 bytes always are 64 hexadecimal digits.
    pub fn finish(self) -> Result<SnapshotDigest, omni_node_protocol::id::BadId> {
        SnapshotDigest::parse(&hex(&self.0.finalize()))
    }

    fn sized(&mut self, path: &Path) {
        let bytes = path.as_os_str().as_bytes();
        self.0.update((bytes.len() as u64).to_le_bytes());
        self.0.update(bytes);
    }
}

/// Tests that a name is left out of snapshots: hidden files, and bytecode, which Python would write beside its source.
#[must_use]
pub fn is_ignored(name: &[u8]) -> bool {
    name.starts_with(b".") || name == b"__pycache__" || name.ends_with(b".pyc")
}

/// Tests that a path, as the target of a link, has such a name in it: the snapshot has nothing there.
#[must_use]
pub fn is_below_ignored(path: &Path) -> bool {
    path.components().any(|part| match part {
        Component::Normal(name) => is_ignored(name.as_bytes()),
        Component::Prefix(_) | Component::RootDir | Component::CurDir | Component::ParentDir => false,
    })
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}"); // writing to a String cannot fail
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(entries: &[(&str, Content<'_>)]) -> String {
        let mut hasher = TreeHasher::default();
        for (path, content) in entries {
            hasher.entry(Path::new(path), *content);
        }
        hasher.finish().unwrap().to_string()
    }

    #[test]
    fn the_format_does_not_drift() {
        let file = Content::File { executable: false, sha256: Sha256::digest(b"hi\n").into() };
        let link = Content::Link { target: Path::new("model.py") };
        insta::assert_snapshot!(digest(&[]));
        insta::assert_snapshot!(digest(&[("dir", Content::Directory), ("link", link), ("model.py", file)]));
    }

    #[test]
    fn every_part_counts() {
        let file = |executable, content: &[u8]| Content::File { executable, sha256: Sha256::digest(content).into() };
        let trees = [
            vec![],
            vec![("a", Content::Directory)],
            vec![("a", file(false, b""))],
            vec![("a", file(true, b""))],
            vec![("a", file(false, b"x"))],
            vec![("a", Content::Link { target: Path::new("b") })],
            vec![("a", Content::Link { target: Path::new("bb") })],
            vec![("aa", Content::Link { target: Path::new("b") })],
        ];
        let digests: std::collections::BTreeSet<_> = trees.iter().map(|tree| digest(tree)).collect();
        assert_eq!(digests.len(), trees.len());
    }

    #[test]
    fn hidden_files_and_bytecode_are_left_out() {
        let table = [
            (".git", true),
            (".", true),
            ("__pycache__", true),
            ("a.pyc", true),
            ("model.py", false),
            ("a.pycx", false),
        ];
        for (name, ignored) in table {
            assert_eq!(is_ignored(name.as_bytes()), ignored, "{name}");
        }
    }
}
