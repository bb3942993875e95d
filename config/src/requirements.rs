//! `requirements.txt` as far as a node must understand it by itself: which lines name something to install without saying
//! which file that is.
//!
//! Called by the launcher before a build that requires hashes, and by `omnictl check`. The format is pip's; what packages
//! there are and whether a hash fits is uv's to find out. What always holds: a line that is not returned is empty, an
//! option, or has at least one hash and none that could be forged.

/// Longest part of a line that is repeated, in characters.
const SHOWN: usize = 80;
/// Hashes that nobody can make another file for, as pip has them.
const STRONG: [&str; 3] = ["sha256:", "sha384:", "sha512:"];

/// A requirement without a hash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unhashed {
    /// The line it begins on, counted from 1.
    pub line: usize,
    /// What it asks for: in one line, without control characters.
    pub requirement: String,
}

/// All requirements of the text without a hash that counts. Options are not looked at: uv refuses those that cannot be
/// had with hashes, and looks into the files that others name.
#[must_use]
pub fn without_hash(text: &str) -> Vec<Unhashed> {
    let mut found = Vec::new();
    let mut begun = None;
    let text = text.replace("\r\n", "\n");
    // As pip and uv have it, a carriage return alone ends a line.
    for (at, line) in text.split(['\n', '\r']).enumerate() {
        let (first, before) = begun.take().unwrap_or((at + 1, String::new()));
        // A comment ends a line that goes on, and does not go on itself.
        match line.trim_end().strip_suffix('\\').filter(|_| !line.trim_start().starts_with('#')) {
            Some(part) => begun = Some((first, before + part + " ")),
            None => found.extend(unhashed(first, &(before + line))),
        }
    }
    found.extend(begun.and_then(|(first, line)| unhashed(first, &line)));
    found
}

fn unhashed(line: usize, text: &str) -> Option<Unhashed> {
    let words: Vec<&str> = text.split_whitespace().take_while(|word| !word.starts_with('#')).collect();
    let first = words.first()?;
    if first.starts_with('-') {
        return None;
    }
    let mut hashes = words.iter().filter_map(|word| word.strip_prefix("--hash=")).peekable();
    let is_strong = |hash: &str| {
        let digits = STRONG.iter().find_map(|name| hash.strip_prefix(name)).unwrap_or_default();
        !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_hexdigit())
    };
    if hashes.peek().is_some() && hashes.all(is_strong) {
        return None;
    }
    let asked = words.iter().take_while(|word| !word.starts_with("--hash")).copied().collect::<Vec<_>>().join(" ");
    let asked = asked.split(';').next().unwrap_or_default().trim();
    let shown: String = asked.chars().take(SHOWN).collect();
    Some(Unhashed { line, requirement: shown.replace(char::is_control, "\u{fffd}") })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<(usize, String)> {
        without_hash(text).into_iter().map(|Unhashed { line, requirement }| (line, requirement)).collect()
    }

    #[test]
    fn what_has_its_hash_and_what_is_no_requirement() {
        for text in [
            "",
            "# a comment\n\n  # another \\\n",
            "a==1 --hash=sha256:00",
            "a==1 \\\n    --hash=sha256:00 \\\n    --hash=sha512:11\n    # via b\nb==2 --hash=sha384:22",
            "a==1 ; python_version > '3' \\\n\t--hash=sha256:00",
            "./vendored.whl --hash=sha256:00",
            "-r more.txt\n--index-url https://index/simple\n",
        ] {
            assert_eq!(found(text), [], "{text:?}");
        }
    }

    #[test]
    fn what_has_none_is_named_with_its_line() {
        let of = |line, requirement: &str| (line, requirement.to_owned());
        for (text, expected) in [
            ("a==1", vec![of(1, "a==1")]),
            (
                "\na >= 1 , < 2  # why\n\n  b[x]==2 ; python_version > '3'\n",
                vec![of(2, "a >= 1 , < 2"), of(4, "b[x]==2")],
            ),
            ("a==1 \\\n  ; x == 'y' \\\n# --hash=sha256:00\nb", vec![of(1, "a==1"), of(4, "b")]),
            ("a==1 \\", vec![of(1, "a==1")]),
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
        assert_eq!(found(&"é".repeat(100)), [(1, "é".repeat(SHOWN))]);
    }
}
