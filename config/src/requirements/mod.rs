//! `requirements.txt` as far as a node must understand it by itself: whether it asks for anything, whether that depends
//! on files of the model, which requirements lack a hash, and what uv will refuse to read.
//!
//! Called by the launcher before a build, and by `omnictl check`. The format is pip's as uv reads it
//! ([`statements()`]); uv itself resolves packages and verifies hashes.
//!
//! Invariant: a requirement that [`without_hash`] does not return has at least one hash, and only hashes that cannot be
//! forged.

mod pep508;
mod statements;

pub use pep508::objection;
pub use statements::{Requirement, Statement, Unreadable, statements};

/// Longest part of a line that is repeated, in characters.
const SHOWN: usize = 80;
/// Algorithms whose collisions nobody can compute, as pip lists them.
const STRONG: [&str; 3] = ["sha256:", "sha384:", "sha512:"];

/// A requirement without a hash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unhashed {
    /// The line it begins on, counted from 1.
    pub line: usize,
    /// The requirement in one line, without control characters.
    pub requirement: String,
}

/// All requirements of the text without a strong hash, up to the first statement that uv cannot read. Options are
/// skipped: uv refuses those that do not combine with hashes, and follows those that name further files.
#[must_use]
pub fn without_hash(text: &str) -> Vec<Unhashed> {
    let is_strong = |hash: &&str| {
        let digits = STRONG.iter().find_map(|name| hash.strip_prefix(name)).unwrap_or_default();
        !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_hexdigit())
    };
    let unhashed = |requirement: Requirement<'_>| {
        let Requirement { line, text, editable, hashes } = requirement;
        let is_hashed = !hashes.is_empty() && hashes.iter().all(is_strong);
        (!is_hashed).then(|| Unhashed { line, requirement: in_one_line(text, editable) })
    };
    let requirement = |statement| match statement {
        Ok(Statement::Requirement(requirement)) => Some(requirement),
        Ok(Statement::Option { .. }) | Err(_) => None,
    };
    statements(text).filter_map(requirement).filter_map(unhashed).collect()
}

/// A requirement without its marker, in one line.
fn in_one_line(text: &str, editable: bool) -> String {
    let asked = text.split(';').next().unwrap_or_default();
    let words = asked.split_whitespace().filter(|word| *word != "\\").collect::<Vec<_>>().join(" ");
    let shown: String = words.chars().take(SHOWN).collect();
    format!("{}{}", if editable { "-e " } else { "" }, shown.replace(char::is_control, "\u{fffd}"))
}

/// Returns true if the text has anything but comments.
#[must_use]
pub fn requires(text: &str) -> bool {
    statements(text).next().is_some()
}

/// Returns true if the text names packages alone, with extras, versions, markers and hashes: the result then depends on
/// the index only. Conservative: false for an option, a path, an address, or anything that uv refuses.
#[must_use]
pub fn names_packages_alone(text: &str) -> bool {
    let is_plain = |hash: &&str| {
        let allowed = |character: char| character.is_ascii_alphanumeric() || character == ':';
        hash.chars().all(allowed)
    };
    statements(text).all(|statement| match statement {
        Ok(Statement::Requirement(Requirement { text, editable, hashes, .. })) => {
            !editable && is_package(text.split(';').next().unwrap_or_default()) && hashes.iter().all(is_plain)
        }
        Ok(Statement::Option { .. }) | Err(_) => false,
    })
}

/// `name[extra,extra]==1.0,<2`
fn is_package(code: &str) -> bool {
    let begins = code.starts_with(|first: char| first.is_ascii_alphanumeric());
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._-[],<>=!~*+ ()".contains(c);
    let archive =
        [".whl", ".gz", ".zip", ".bz2", ".xz", ".tgz", ".tar"].iter().any(|end| code.trim_end().ends_with(end));
    begins && code.chars().all(allowed) && !archive
}

#[cfg(test)]
mod tests {
    mod files;

    use super::*;

    fn found(text: &str) -> Vec<(usize, String)> {
        without_hash(text).into_iter().map(|Unhashed { line, requirement }| (line, requirement)).collect()
    }

    #[test]
    fn requirements_with_hashes_and_other_statements_pass() {
        for text in [
            "",
            "# a comment\n\n  # another \\\n",
            "a==1 --hash=sha256:00",
            "a==1 \\\n    --hash=sha256:00 \\\n    --hash=sha512:11\n    # via b\nb==2 --hash=sha384:22",
            "a==1 ; python_version > '3' \\\n\t--hash=sha256:00",
            "a==1 --hash=sha256:00 -r more.txt",
            "./vendored.whl --hash=sha256:00",
            "-r more.txt\n--index-url https://index/simple\n",
        ] {
            assert_eq!(found(text), [], "{text:?}");
        }
    }

    #[test]
    fn requirements_without_a_hash_are_named_with_their_line() {
        let of = |line, requirement: &str| (line, requirement.to_owned());
        for (text, expected) in [
            ("a==1", vec![of(1, "a==1")]),
            (
                "\na >= 1 , < 2  # why\n\n  b[x]==2 ; python_version > '3'\n",
                vec![of(2, "a >= 1 , < 2"), of(4, "b[x]==2")],
            ),
            ("a==1 \\\n  ; x == 'y' \\\n# --hash=sha256:00\nb", vec![of(1, "a==1"), of(4, "b")]),
            ("a==1 \\", vec![of(1, "a==1")]),
            ("a==1 --hash=sha256:00 b==2", vec![of(1, "b==2")]),
            ("# c\ra==1", vec![of(2, "a==1")]),
            ("-e ./a", vec![of(1, "-e ./a")]),
            ("a==1 # --hash=sha256:00", vec![of(1, "a==1")]),
            ("a==1 --hash=md5:00", vec![of(1, "a==1")]),
            ("a==1 --hash=sha256:", vec![of(1, "a==1")]),
            ("a==1 --hash=sha256:+0", vec![of(1, "a==1")]),
            ("a==1 --hash=sha256:00\rb\x1b[2J", vec![of(2, "b\u{fffd}[2J")]),
            ("a==1 --hash=sha256:00 --hash=md5:11", vec![of(1, "a==1")]),
            ("a @ git+https://host/a", vec![of(1, "a @ git+https://host/a")]),
            (".", vec![of(1, ".")]),
        ] {
            assert_eq!(found(text), expected, "{text:?}");
        }
        assert_eq!(found(&"e".repeat(100)), [(1, "e".repeat(SHOWN))]);
    }
}
