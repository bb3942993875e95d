//! Rules about a file as text: its length, its header, nothing left for later.

use crate::tree::Files;

/// Longer files are in [`LONG`], with a reason. (At 400, look again whether a file is still about one thing.)
const MOST_LINES: usize = 600;

const LONG: &[(&str, &str)] = &[("cuda-shim/entries/src/generated.rs", "written by a program")];

/// Marks of work put off. Spelled in parts, or this file would be the first to be found.
const MARKS: &[&str] = &[concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")];
const MACROS: &[&str] = &[concat!("todo", "!"), concat!("unimplemented", "!")];

pub(crate) fn length(path: &str, source: &str) -> Vec<String> {
    let lines = source.lines().count();
    if lines <= MOST_LINES || LONG.iter().any(|(file, _)| *file == path) {
        Vec::new()
    } else {
        vec![format!("{path}: {lines} lines, more than {MOST_LINES} and not in the list with a reason")]
    }
}

/// Names in the list that need no exception any more.
pub(crate) fn stale_lengths(files: &Files) -> Vec<String> {
    let long = |path: &str| files.get(path).is_some_and(|source| source.lines().count() > MOST_LINES);
    LONG.iter()
        .filter(|(path, _)| !long(path))
        .map(|(path, _)| format!("{path}: no longer long; take it off the list"))
        .collect()
}

pub(crate) fn header(path: &str, source: &str) -> Vec<String> {
    let body = source.trim_start_matches('\u{feff}');
    let body = if body.starts_with("#!/") { body.split_once('\n').map_or("", |(_, rest)| rest) } else { body };
    let text = if path.ends_with(".rs") {
        body.strip_prefix("//!")
    } else {
        body.strip_prefix("\"\"\"").or_else(|| body.strip_prefix("r\"\"\""))
    };
    let first = text.and_then(|text| text.lines().next()).unwrap_or("").trim();
    if first.len() < 10 {
        return vec![format!("{path}: does not begin with what it is for")];
    }
    if first.starts_with("Placeholder") { vec![format!("{path}: is a placeholder")] } else { Vec::new() }
}

pub(crate) fn unfinished(path: &str, source: &str) -> Vec<String> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let marked = |line: &str| {
        line.split(|c| !is_word(c)).any(|word| MARKS.contains(&word)) || MACROS.iter().any(|name| line.contains(name))
    };
    let found = source.lines().enumerate().filter(|(_, line)| marked(line));
    found.map(|(at, line)| format!("{path}:{}: {}", at + 1, line.trim())).collect()
}

#[test]
fn long_files_are_found() {
    let lines = |count: usize| "x\n".repeat(count);
    assert_eq!(length("a.rs", &lines(MOST_LINES)), Vec::<String>::new());
    assert_eq!(length("a.rs", &lines(MOST_LINES + 1)).len(), 1);
    for (path, _) in LONG {
        assert_eq!(length(path, &lines(MOST_LINES + 1)), Vec::<String>::new());
    }
    assert_eq!(stale_lengths(&Files::new()).len(), LONG.len());
}

#[test]
fn missing_headers_are_found() {
    let bad = [
        ("a.rs", ""),
        ("a.rs", "use std::fs;\n"),
        ("a.rs", "//!\n"),
        ("a.rs", "/// A struct of some kind.\nstruct A;"),
        ("a.py", "import os\n"),
        ("a.py", ""),
        ("a.rs", "//! Placeholder until later."),
    ];
    for (path, source) in bad {
        assert_eq!(header(path, source).len(), 1, "{source:?}");
    }
    for (path, source) in [
        ("a.rs", "//! One thing, well.\n"),
        ("a.py", "\"\"\"One thing, well.\"\"\"\n"),
        ("a.py", "#!/usr/bin/python3\n\"\"\"One thing, well.\"\"\"\n"),
    ] {
        assert_eq!(header(path, source), Vec::<String>::new(), "{source:?}");
    }
}

#[test]
fn marks_are_found() {
    for mark in MARKS {
        assert_eq!(unfinished("a.rs", &format!("ok\n// {mark}: later")), [format!("a.rs:2: // {mark}: later")]);
        assert_eq!(unfinished("a.rs", &format!("{mark}PHONE")), Vec::<String>::new());
    }
    for name in MACROS {
        assert_eq!(unfinished("a.rs", &format!("{name}()")).len(), 1);
    }
}
