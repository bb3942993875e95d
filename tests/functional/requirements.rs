//! `requirements.txt` read by the node and by uv: both find the same statements in it, refuse the same texts, and miss the
//! same hashes. Texts are made of the pieces that have been read differently.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed step of a test is a failed test")]

use omni_config::requirements::{Statement, names_packages_alone, objection, requires, statements, without_hash};
use omni_tests::index::{Behaviour, Index};
use omni_tests::{chance, program, rounds};
use std::collections::BTreeSet;
use std::fs;
use std::process::Command;
use tempfile::TempDir;

/// Words of uv when a text is no sequence of statements.
const UNDIVIDED: [&str; 4] =
    ["Unexpected '", "Expected '=' or whitespace", "Expected `--hash`", "must be followed by an argument"];

/// A folder with a `requirements.txt`, and an index with three packages.
struct Reader {
    folder: TempDir,
    index: Index,
}

/// The outcome of uv on a text.
#[derive(Debug)]
struct Verdict {
    is_read: bool,
    installed: BTreeSet<String>,
    said: String,
}

impl Reader {
    fn read(&self, text: &str, more: &[&str]) -> Verdict {
        fs::write(self.folder.path().join("requirements.txt"), text).unwrap();
        let mut uv = Command::new(program("uv"));
        uv.args(["pip", "install", "--dry-run", "--no-config", "--no-progress", "--color", "never", "--reinstall"]);
        uv.args(["--python", "/usr/bin/python3", "--target", "target", "--index-url", &self.index.url()]).args(more);
        uv.args(["-r", "requirements.txt"]).env("UV_CACHE_DIR", "cache").current_dir(self.folder.path());
        let output = uv.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let installed = said.lines().filter_map(|line| line.trim().strip_prefix("+ ")?.split("==").next());
        // A wrong hash is a matter of the file, not of the text.
        let is_read = output.status.success() || said.contains("Hash mismatch");
        Verdict { is_read, installed: installed.map(str::to_owned).collect(), said }
    }
}

/// Pieces that texts are made of, beside hashes.
const PIECES: &[&str] = &[
    "a",
    "a==1.0",
    "b",
    " ",
    " ",
    " ",
    "\t",
    "\n",
    "\n",
    "\r",
    "\r\n",
    "\\\n",
    " \\\r\n",
    "\\\r",
    "#",
    " # c",
    " #",
    "--hash=md5:0",
    "-r more.txt",
    "-r\nmore.txt",
    "-r none.txt",
    "-c more.txt",
    "--pre",
    "--require-hashes",
    "--no-cache-dir",
    "--hash",
    "\u{c}",
    "\u{feff}",
    "\u{a0}",
    "[x]",
    ">=1",
    ",",
    "==",
    "\\",
    "--no-binary=b",
    "--only-binary a",
    "-e",
    "--trusted-host h",
];

#[test]
fn requirements_are_read_as_uv_reads_them() {
    let reader = Reader { folder: tempfile::tempdir().unwrap(), index: Index::start(Behaviour::Serves) };
    let digest = reader.index.add("a", "", &[]);
    reader.index.add("b", "", &[]);
    reader.index.add("c", "", &[]);
    fs::write(reader.folder.path().join("more.txt"), "c\n").unwrap();
    let hash = format!("--hash=sha256:{digest}");
    let spaced = format!("--hash sha256:{digest}");
    let hashes = [&*hash, &hash, &spaced];
    let pieces: Vec<&str> = PIECES.iter().copied().chain(hashes).collect();
    let fixed = [
        "# c\ra".to_owned(),
        format!("a==1.0 {hash} -r more.txt"),
        format!("a==1.0 {hash} b==1.0"),
        format!("a==1.0 \\\r\n {spaced} # c\nb"),
        "-r\n\nmore.txt\na".to_owned(),
        "a\\\n==1.0".to_owned(),
        "\u{feff}a".to_owned(),
        "b\n\u{feff}a".to_owned(),
        "a #x\rb".to_owned(),
    ];
    let mut rng = chance();
    let generated = (0..rounds(2000)).map(|_| {
        let count = rng.usize(1..10);
        (0..count).map(|_| pieces[rng.usize(..pieces.len())]).collect::<String>()
    });
    for text in fixed.into_iter().chain(generated.collect::<Vec<_>>()) {
        check(&reader, &text);
    }
}

/// Asserts that the node and uv agree about a text.
fn check(reader: &Reader, text: &str) {
    let uvs = reader.read(text, &[]);
    let exists = |path: &str| reader.folder.path().join(path).exists();
    let objection = objection(text, &exists);
    assert!(objection.is_none() || !uvs.is_read, "{text:?}: {objection:?}\n{}", uvs.said);
    let is_divided = statements(text).all(|statement| statement.is_ok());
    let is_undivided = UNDIVIDED.iter().any(|words| uvs.said.contains(words));
    // Behind a name that is none uv reads no further.
    assert!(is_divided != is_undivided || objection.is_some(), "{text:?}: {objection:?}\n{}", uvs.said);
    if !uvs.is_read {
        return;
    }
    let asked: BTreeSet<String> = statements(text)
        .filter_map(|statement| match statement.unwrap() {
            Statement::Requirement(requirement) => Some(requirement.text[..1].to_owned()),
            Statement::Option { name: "-r", .. } => Some("c".to_owned()),
            Statement::Option { .. } => None,
        })
        .collect();
    if uvs.said.contains("Would install") || asked.is_empty() {
        assert_eq!(asked, uvs.installed, "{text:?}\n{}", uvs.said);
    }
    if !requires(text) {
        assert!(uvs.said.contains("does not contain any dependencies"), "{text:?}\n{}", uvs.said);
    }
    let alone = names_packages_alone(text);
    assert!(!alone || !asked.contains("c"), "{text:?}");
    if without_hash(text).is_empty() {
        let strict = reader.read(text, &["--require-hashes"]);
        let lacks = strict.said.contains("have a hash") && !asked.contains("c");
        assert!(!lacks, "{text:?}\n{}", strict.said);
    }
}
