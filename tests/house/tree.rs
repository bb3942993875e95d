//! The files of the repository, read once for each test. Knows what is not ours: build outputs and hidden folders.

use crate::manifests::Crate;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Files that rules look at, by their path from the root.
pub(crate) type Files = BTreeMap<String, String>;

pub(crate) struct Tree {
    root: PathBuf,
    pub(crate) files: Files,
}

impl Tree {
    pub(crate) fn read() -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the repository").to_owned();
        let mut files = Files::new();
        walk(&root, "", &mut files);
        Self { root, files }
    }

    pub(crate) fn exists(&self, path: &str) -> bool {
        self.root.join(path).exists()
    }

    /// The members of the workspace.
    pub(crate) fn crates(&self) -> impl Iterator<Item = Crate<'_>> {
        let member = |path: &&String| path.ends_with("/Cargo.toml") && !OUTSIDE.contains(&path.as_str());
        let manifests = self.files.iter().filter(move |(path, _)| member(path));
        manifests.map(|(path, manifest)| {
            let dir = path.trim_end_matches("Cargo.toml");
            // A crate may hold others: their sources are not its own.
            let inner: Vec<&str> = self
                .files
                .keys()
                .filter(|other| other.starts_with(dir) && *other != path)
                .filter_map(|other| other.strip_suffix("Cargo.toml"))
                .collect();
            let own = |file: &str| {
                file.starts_with(dir) && file.ends_with(".rs") && !inner.iter().any(|inner| file.starts_with(inner))
            };
            let sources = self.files.iter().filter(|(file, _)| own(file)).map(|(_, text)| text.as_str()).collect();
            Crate { dir, manifest, sources }
        })
    }
}

/// Crates that are built apart from the workspace.
const OUTSIDE: &[&str] = &["fuzz/Cargo.toml", "gateway/tool-parser/tests/differential/Cargo.toml"];

fn walk(dir: &Path, prefix: &str, files: &mut Files) {
    for entry in fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        let path = format!("{prefix}{name}");
        // Not followed: a link could lead anywhere.
        let kind = entry.file_type().unwrap();
        let ours = !name.starts_with('.') && path != "target" && path != "fuzz/target" && name != "__pycache__";
        if kind.is_dir() && ours {
            walk(&entry.path(), &format!("{path}/"), files);
        } else if kind.is_file() && (has_extension(&name, &["rs", "py", "toml", "md", "sh"]) || name == "Makefile") {
            // Others may write while this reads: a file that has just gone is none of the tree.
            if let Ok(text) = fs::read_to_string(entry.path()) {
                files.insert(path, text);
            }
        }
    }
}

pub(crate) fn has_extension(path: &str, extensions: &[&str]) -> bool {
    path.rsplit_once('.').is_some_and(|(_, extension)| extensions.contains(&extension))
}

/// Returns true for a test, an example or a benchmark: outside the product, and free to prepare its own world.
pub(crate) fn is_test(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    path.split('/').any(|part| matches!(part, "tests" | "examples" | "benches"))
        || name == "tests.rs"
        || name.ends_with("_tests.rs")
}

#[test]
fn tests_are_recognised() {
    for path in
        ["meminfo-fs/tests/mounted/main.rs", "meminfo-fs/src/render/tests.rs", "scheduler/policy/src/dispatch_tests.rs"]
    {
        assert!(is_test(path), "{path}");
    }
    assert!(!is_test("worker/sandbox/src/lib.rs"));
}
