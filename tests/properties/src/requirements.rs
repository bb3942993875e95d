//! `requirements.txt`: what has no hash is found, named in one line, and nothing else is.

use omni_config::requirements::{Unhashed, without_hash};

/// A line with a hash, and one without.
const HASHED: &str = "a==1 --hash=sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08\n";
const BARE: &str = "b==2\n";

/// Looks for requirements without a hash.
///
/// # Panics
/// One is missed, made up, or named in words that are not one line.
pub fn holds(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let found = without_hash(&text);
    let lines = text.split(['\n', '\r']).count();
    assert!(found.is_sorted_by(|one, next| one.line < next.line), "a line twice: {found:?}");
    for Unhashed { line, requirement } in &found {
        assert!((1..=lines).contains(line));
        assert!(!requirement.contains(|character: char| character.is_control()), "{requirement:?}");
        assert!(requirement.chars().count() <= 1000, "{requirement:?}");
    }
    beside_others(&text, &found);
    if !text.contains('\\') {
        assert_eq!(found.iter().map(|found| found.line).collect::<Vec<_>>(), plainly(&text), "{text:?}");
    }
}

/// What stands before a text, or behind its last line, changes nothing of what is found in it.
fn beside_others(text: &str, found: &[Unhashed]) {
    let before = without_hash(&format!("{HASHED}{BARE}{text}"));
    let moved = found.iter().map(|Unhashed { line, requirement }| (line + 2, requirement.as_str()));
    let expected = std::iter::once((2, "b==2")).chain(moved);
    assert!(expected.eq(before.iter().map(|found| (found.line, found.requirement.as_str()))), "{text:?}");
    let behind = without_hash(&format!("{text}\n\n{HASHED}{BARE}"));
    assert_eq!(behind.len(), found.len() + 1, "{text:?}");
    assert_eq!(behind.last().map(|last| last.requirement.as_str()), Some("b==2"), "{text:?}");
}

/// The same for a text whose lines do not go on, in the words of pip's page: a comment begins at a `#` that is first or
/// behind a space, an option at a dash, and a hash is `--hash=`, its kind, and hexadecimal digits.
fn plainly(text: &str) -> Vec<usize> {
    let text = text.replace("\r\n", "\n");
    let is_strong = |hash: &str| {
        let digits = ["sha256:", "sha384:", "sha512:"].iter().find_map(|kind| hash.strip_prefix(kind));
        digits.is_some_and(|digits| !digits.is_empty() && digits.chars().all(|digit| digit.is_ascii_hexdigit()))
    };
    let is_bare = |line: &&str| {
        let spaced = format!(" {}", line.replace(char::is_whitespace, " "));
        let asked = spaced.split(" #").next().unwrap_or("").trim().to_owned();
        let hashes: Vec<&str> = asked.split(' ').filter_map(|word| word.strip_prefix("--hash=")).collect();
        let is_hashed = !hashes.is_empty() && hashes.iter().all(|hash| is_strong(hash));
        !asked.is_empty() && !asked.starts_with('-') && !is_hashed
    };
    let numbered = text.split(['\n', '\r']).enumerate();
    numbered.filter(|(_, line)| is_bare(line)).map(|(at, _)| at + 1).collect()
}
