//! `requirements.txt`: what has no hash is found, named in one line, and nothing else is; what is read depends on what stands
//! before it only by its line.

use omni_config::requirements::{Unhashed, names_packages_alone, objection, requires, statements, without_hash};

/// A line with a hash, and one without.
const HASHED: &str = "a==1 --hash=sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08\n";
const BARE: &str = "b==2\n";

/// Reads a `requirements.txt`.
///
/// # Panics
///
/// A requirement is missed, made up, or named in more than one line; an empty text asks for something, or a text that
/// uv cannot read names packages alone.
pub fn holds(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let found = without_hash(&text);
    let lines = text.split(['\n', '\r']).count();
    assert!(found.is_sorted_by(|one, next| one.line <= next.line), "out of order: {found:?}");
    for Unhashed { line, requirement } in &found {
        assert!((1..=lines).contains(line));
        assert!(!requirement.contains(|character: char| character.is_control()), "{requirement:?}");
        assert!(requirement.chars().count() <= 1000, "{requirement:?}");
    }
    let is_readable = statements(&text).all(|statement| statement.is_ok());
    if !is_readable {
        assert!(requires(&text) && !names_packages_alone(&text) && objection(&text, &|_| true).is_some(), "{text:?}");
        return;
    }
    assert_eq!(requires(&text), statements(&text).count() > 0);
    beside_others(&text, &found);
}

/// Text before or behind another one changes nothing of what is found in it.
fn beside_others(text: &str, found: &[Unhashed]) {
    if !text.starts_with('\u{feff}') {
        let before = without_hash(&format!("{HASHED}{BARE}{text}"));
        let moved = found.iter().map(|Unhashed { line, requirement }| (line + 2, requirement.as_str()));
        let expected = std::iter::once((2, "b==2")).chain(moved);
        assert!(expected.eq(before.iter().map(|found| (found.line, found.requirement.as_str()))), "{text:?}");
    }
    // A backslash at the end goes on.
    if !text.ends_with('\\') {
        let behind = without_hash(&format!("{text}\n\n{HASHED}{BARE}"));
        assert_eq!(behind.len(), found.len() + 1, "{text:?}");
        assert_eq!(behind.last().map(|last| last.requirement.as_str()), Some("b==2"), "{text:?}");
    }
}
