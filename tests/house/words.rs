//! Rules about words: a comment begins with a noun or a verb of the field, and stands without the code below it.

use crate::rust::comments;

/// First words of sentences that cannot be understood alone, or whose subject is a person.
const OPENERS: &str = "Anybody Everybody He His It Its Nobody Of One Ones She So Somebody Someone That Their Theirs These They \
                       This Those What Whatever Whether Who Whoever Whom Whose";

/// Phrases of comments, each with its replacement.
const PHRASES: &[(&str, &str)] = &[("What always holds", "Invariants")];

/// Comments that begin otherwise.
pub(crate) fn openers(path: &str, source: &str) -> Vec<String> {
    let blocks = if path.ends_with(".rs") { comments(source) } else { script_comments(source) };
    let opener = |text: &str| {
        let word = text.split(|c: char| !c.is_alphabetic()).next().unwrap_or("");
        OPENERS.split_whitespace().any(|opener| opener == word).then(|| format!("begins with \"{word}\""))
    };
    let phrase = |text: &str| {
        let (found, better) = PHRASES.iter().find(|(phrase, _)| text.contains(phrase))?;
        Some(format!("says \"{found}\" for \"{better}\""))
    };
    let wrong = |text: &str| opener(text).or_else(|| phrase(text));
    blocks.into_iter().filter_map(|(line, text)| Some(format!("{path}:{line}: a comment {}", wrong(&text)?))).collect()
}

/// Comments and documentation strings of Python, and comments of shell and TOML: line of the first, and text.
fn script_comments(source: &str) -> Vec<(usize, String)> {
    let mut blocks: Vec<(usize, String)> = Vec::new();
    // A comment may go on; inside a text of several lines; that text is a documentation string.
    let (mut open, mut inside, mut documents) = (false, false, false);
    for (at, line) in source.lines().enumerate() {
        let line = line.trim_start();
        if inside && documents {
            append(&mut blocks, line);
        } else if inside {
        } else if let Some(text) = line.trim_start_matches('r').strip_prefix("\"\"\"") {
            blocks.push((at + 1, text.to_owned()));
            documents = true;
        } else if let Some(text) = line.strip_prefix('#').filter(|text| !text.starts_with('!')) {
            if open {
                append(&mut blocks, text);
            } else {
                blocks.push((at + 1, text.trim_start().to_owned()));
            }
            open = true;
            continue;
        } else {
            documents = false;
        }
        open = false;
        inside ^= line.matches("\"\"\"").count() % 2 == 1;
    }
    blocks
}

fn append(blocks: &mut [(usize, String)], line: &str) {
    if let Some((_, text)) = blocks.last_mut() {
        text.push('\n');
        text.push_str(line.trim_start());
    }
}

#[test]
fn bad_openers_are_found() {
    for bad in [
        "/// What it is.\nfn f() {}",
        "//! Who comes later.\n",
        "fn f() {\n    // So that it ends.\n}",
        "// Reads a file.\n//\n// What always holds: nothing.\n",
        "/// Whether\n/// it is.\nfn f() {}",
    ] {
        assert_eq!(openers("a.rs", bad).len(), 1, "{bad}");
    }
    for bad in
        ["# That one.\nx = 1\n", "\"\"\"It reads.\"\"\"\n", "def f():\n    \"\"\"Of all:\n\n    none.\n    \"\"\"\n"]
    {
        assert_eq!(openers("a.py", bad).len(), 1, "{bad}");
    }
}

#[test]
fn good_comments_pass() {
    let good = [
        ("a.rs", "//! Reads files. What they hold is checked.\n\n/// Onerous work.\nlet a = \"// What\";\n"),
        ("a.py", "#!/usr/bin/python3\n\"\"\"Reads files.\n\nWhat they hold is checked.\n\"\"\"\nx = 1  # Those\n"),
        ("a.py", "x = 1\nCODE = \"\"\"\n# What\n\"\"\"\n# Reads\n"),
        ("a.sh", "# Builds\n# This line goes on.\n"),
    ];
    for (path, source) in good {
        assert_eq!(openers(path, source), Vec::<String>::new(), "{path}");
    }
}
