//! What a failed `uv` run means: whether another attempt can help, and whether packages must be built. Pure.
//!
//! The error itself is uv's own and is handed on as it is; only these two questions are answered from it.

/// What to do about a failed run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// A package has no wheel: building it from source may do.
    NeedsSource,
    /// Trying again leads to the same.
    Permanent,
    /// The network, the index, or something else that passes.
    Passing,
}

/// Words of uv when a wheel would have to be built and that was forbidden.
const SOURCE: [&str; 3] = ["building from source is disabled", "--no-build", "no usable wheels"];

/// Words of uv and of its HTTP library when the network, not the request, is at fault.
const NETWORK: [&str; 13] = [
    "error sending request",
    "failed to fetch",
    "failed to download",
    "request failed after",
    "connection refused",
    "connection reset",
    "timed out",
    "dns error",
    "network connectivity is disabled",
    "network unreachable",
    "no space left on device",
    "server error",
    "too many requests",
];

/// Words of uv when the requirements themselves cannot be met.
const REQUIREMENTS: [&str; 9] = [
    "no solution found when resolving dependencies",
    "was not found in the package registry",
    "failed to parse",
    "couldn't parse",
    "failed to build",
    "the build backend returned an error",
    "no such file or directory",
    "file not found",
    "requirements are unsatisfiable",
];

/// Words of uv when a file is not the one that its hash says, or has none. The first stands behind a failed download.
const HASHES: [&str; 3] = ["hash mismatch for", "`--require-hashes` mode", "hash-checking is required"];

/// Judges a failed run by its output. When in doubt, it passes.
pub(super) fn judge(output: &str, wheels_only: bool) -> Verdict {
    let text = unwrapped(output);
    let says = |words: &[&str]| words.iter().any(|word| text.contains(word));
    if says(&HASHES) {
        Verdict::Permanent
    } else if says(&NETWORK) {
        Verdict::Passing
    } else if wheels_only && says(&SOURCE) {
        Verdict::NeedsSource
    } else if says(&REQUIREMENTS) {
        Verdict::Permanent
    } else {
        Verdict::Passing
    }
}

/// An output as its words alone: uv wraps its sentences at the end of the line, and begins some with capitals.
pub(super) fn unwrapped(output: &str) -> String {
    output.split_whitespace().collect::<Vec<_>>().join(" ").to_lowercase()
}

/// The error in the output of a failed run: what comes before is progress, which is in the build's log.
pub(super) fn complaint(output: &str) -> &str {
    let lines = output.match_indices('\n').map(|(at, _)| at + 1);
    let begin = std::iter::once(0).chain(lines).find(|at| output[*at..].starts_with("error:"));
    output[begin.unwrap_or(0)..].trim()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Said by uv 0.13.8.
    const NO_PACKAGE: &str = "error: No solution found when resolving dependencies\n  cause: Because omni-zz was not found in the \
        package registry and you require omni-zz, we can conclude that your requirements are unsatisfiable.";
    const NO_WHEEL: &str = "error: No solution found when resolving dependencies\n  cause: Because all versions of docopt have no \
        usable wheels and you require docopt, we can conclude that your requirements are unsatisfiable.\n\nhint: Wheels are \
        required for `docopt` because building from source is disabled for all packages (i.e., with `--no-build`)";
    const REFUSED: &str = "error: Failed to fetch: http://127.0.0.1:9/simple/numpy/\n  cause: error sending request for url\n  \
        cause: tcp connect error\n  cause: Connection refused (os error 111)";
    const UNREADABLE: &str = "error: Failed to parse: `requests>=3 @@`\n  cause: Trailing `@@` is not allowed";

    const MISMATCH: &str = "error: Failed to download `cowsay==6.1`\n  cause: Hash mismatch for `cowsay==6.1`\n\n         \
        Expected:\n           sha256:00\n\n         Computed:\n           sha256:27";
    const UNPINNED: &str = "error: In `--require-hashes` mode, all requirements must have their versions pinned with `==`, but found: cowsay";
    const NO_HASH: &str =
        "error: Hash-checking is required, but no trusted hash was provided for: `charset-normalizer`";

    #[test]
    fn words_of_uv() {
        let table = [
            (NO_PACKAGE, true, Verdict::Permanent),
            (NO_PACKAGE, false, Verdict::Permanent),
            (&NO_PACKAGE.replace("omni-zz", "async-timeout"), true, Verdict::Permanent),
            (NO_WHEEL, true, Verdict::NeedsSource),
            (NO_WHEEL, false, Verdict::Permanent),
            (REFUSED, true, Verdict::Passing),
            (UNREADABLE, true, Verdict::Permanent),
            ("error: Failed to build `x==1`\n  cause: exit status: 1", false, Verdict::Permanent),
            ("error: Request failed after 3 retries\n  cause: operation timed out", true, Verdict::Passing),
            (MISMATCH, true, Verdict::Permanent),
            (UNPINNED, true, Verdict::Permanent),
            (NO_HASH, true, Verdict::Permanent),
            ("thread 'main' panicked", true, Verdict::Passing),
            ("", true, Verdict::Passing),
        ];
        for (output, wheels_only, verdict) in table {
            assert_eq!(judge(output, wheels_only), verdict, "{output}");
        }
    }

    #[test]
    fn a_complaint_begins_with_its_error() {
        let output = format!("Using Python 3.11.7 environment at: /x\n{NO_PACKAGE}\n");
        assert_eq!(complaint(&output), NO_PACKAGE);
        assert_eq!(complaint(NO_PACKAGE), NO_PACKAGE);
        assert_eq!(complaint("\nkilled: an error: é\n"), "killed: an error: é");
        assert_eq!(complaint(""), "");
    }

    #[test]
    fn wrapped_sentences_are_understood() {
        assert_eq!(judge("error: No solution found\n    when resolving\n    dependencies", true), Verdict::Permanent);
    }
}
