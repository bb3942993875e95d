//! Advice for builds that require hashes, where a package has none or another one. Pure.
//!
//! Lines without a hash are found before uv runs; hashes of dependencies, and whether the files fit, are uv's to check.
//! Its message is handed on with advice behind it.

use super::verdict::unwrapped;
use omni_config::requirements::{Unhashed, without_hash};

/// Requirements that are named; more are counted.
const NAMED: usize = 5;
/// How to come to hashes.
const HOW: &str = "`uv pip compile --generate-hashes requirements.in -o requirements.txt` writes them, also for the packages that \
    others ask for";

/// Why a text cannot be installed from where hashes are required; `None` when each requirement has one.
pub(super) fn lacking(requirements: &str) -> Option<String> {
    let unhashed = without_hash(requirements);
    let named: Vec<_> = unhashed
        .iter()
        .take(NAMED)
        .map(|Unhashed { line, requirement }| format!("`{requirement}` (line {line})"))
        .collect();
    let more = match unhashed.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    (!named.is_empty()).then(|| {
        format!(
            "requirements.txt has no hash (sha256, sha384, sha512) for {}{more}, and `require-hashes` in [python] of omni.toml \
             or of the node's configuration wants one for each package: {HOW}",
            named.join(", ")
        )
    })
}

/// Advice for a failed run of uv, where it has to do with hashes.
pub(super) fn advice(output: &str) -> Option<String> {
    let text = unwrapped(output);
    let says = |words: &str| text.contains(words);
    if says("hash mismatch for") {
        let what = "the index serves another file than the one that requirements.txt has the hash of: find out why before you \
            write down the new one";
        Some(what.to_owned())
    } else if says("--require-hashes") || says("hash-checking is required") {
        Some(format!("`require-hashes` in [python] is in force: {HOW}"))
    } else if says("building from source is disabled") || says("--no-build") || says("no usable wheels") {
        let what = "`require-hashes` in [python] is in force, and nothing is built from source then, because a build fetches \
            packages that no hash names: ask for a version with a wheel, or put a wheel of your own into the index";
        Some(what.to_owned())
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_requirement_without_a_hash_is_named_with_its_line() {
        assert_eq!(lacking("# nothing\na==1 --hash=sha256:00\n"), None);
        let one = lacking("a==1 --hash=sha256:00\nb==2\n").unwrap();
        assert!(
            one.starts_with("requirements.txt has no hash (sha256, sha384, sha512) for `b==2` (line 2), and"),
            "{one}"
        );
        let many = lacking(&"x\n".repeat(NAMED + 2)).unwrap();
        assert!(many.contains("`x` (line 5) and 2 more, and") && many.contains("--generate-hashes"), "{many}");
    }

    /// Beginnings of what uv 0.13.8 says.
    #[test]
    fn advice_fits_uvs_words() {
        for (output, expected) in [
            ("error: Failed to download `a==1`\n  cause: Hash mismatch for `a==1`\n", Some("another file")),
            (
                "error: In `--require-hashes`\nmode, all requirements must have their versions pinned",
                Some("--generate-hashes"),
            ),
            ("error: Hash-checking is required, but no trusted hash was provided for: `b`", Some("--generate-hashes")),
            ("cause: Because docopt==0.6.2 has no usable wheels and you require", Some("a wheel of your own")),
            ("error: Failed to fetch: http://127.0.0.1:9/simple/numpy/", None),
        ] {
            let advice = advice(output);
            assert_eq!(advice.is_some(), expected.is_some(), "{output}");
            assert!(advice.unwrap_or_default().contains(expected.unwrap_or_default()), "{output}");
        }
    }
}
