//! Verdict on a failed `uv` run: whether another attempt can help, and whether packages must be built. Pure.
//!
//! The error itself is uv's own and is handed on as it is; only these two questions are answered from it. Transient
//! errors are recognised by their text and everything else is final: there are few ways to be out of reach, and no end
//! of ways to be wrong. A transient error with a new text costs one author one change of the directory; a final one
//! that is taken for transient would be tried for ever.

use crate::command::TAIL;

/// Consequence of a failed run.
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

/// Words of uv, its HTTP library, git and the system when something else than the requirements is at fault. Everything
/// else that uv ends with is final: what it was given leads to the same again.
const TRANSIENT: [&str; 28] = [
    "broken pipe",
    "cannot allocate memory",
    "invalid peer certificate",
    "connection closed before",
    "connection refused",
    "connection reset",
    "could not connect",
    "couldn't connect",
    "could not resolve host",
    "deadline has elapsed",
    "dns error",
    "error decoding response body",
    "error sending request",
    "error trying to connect",
    "input/output error",
    "network connectivity is disabled",
    "network is unreachable",
    "network unreachable",
    "no space left on device",
    "no route to host",
    "quota exceeded",
    "request failed after",
    "resource temporarily unavailable",
    "server error",
    "temporary failure",
    "timed out",
    "too many open files",
    "too many requests",
];

/// Words of uv when a file is not the one that its hash says, or has none. The first stands behind a failed download.
const HASHES: [&str; 3] = ["hash mismatch for", "`--require-hashes` mode", "hash-checking is required"];

/// Exit codes with which uv gives its verdict: on the packages, and on what it was given. Another one (a panic has 101) is
/// none.
const VERDICTS: [i32; 2] = [1, 2];

/// Judges a run by its exit code and output. One without uv's own error, or without its exit code, says nothing about the
/// requirements, and passes.
pub(super) fn judge(code: Option<i32>, output: &str, wheels_only: bool) -> Verdict {
    // Before the error stands progress, with warnings of tries that went wrong.
    let text = unwrapped(complaint(output));
    let says = |words: &[&str]| words.iter().any(|word| text.contains(word));
    let is_uvs = text.starts_with("error:") || output.len() >= TAIL;
    if !is_uvs || code.is_none_or(|code| !VERDICTS.contains(&code)) {
        Verdict::Passing
    } else if says(&HASHES) {
        Verdict::Permanent
    } else if says(&TRANSIENT) {
        Verdict::Passing
    } else if wheels_only && says(&SOURCE) {
        Verdict::NeedsSource
    } else {
        Verdict::Permanent
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
    fn messages_of_uv() {
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
            assert_eq!(judge(Some(1), output, wheels_only), verdict, "{output}");
        }
    }

    /// Said by uv 0.13.8 with exit codes 1 and 2.
    #[test]
    fn unsatisfiable_requirements_are_final() {
        for output in [
            "error: Distribution not found at: file:///croot/absl-py_1686852429912/work",
            "error: Unexpected '-', expected '-c', '-e', '-r' or the start of a requirement: requirements.txt:1:1",
            "error: The wheel filename `bad.whl` is invalid: Must have a version",
            "error: Failed to read `lfs @ file:///model/lfs-1-py3-none-any.whl`\n  cause: Failed to read metadata",
            "error: Requested package name `foo` does not match `lfs` in the distribution filename: ./lfs-1-py3-none-any.whl",
            "error: Invalid URL in `requirements.txt` at position 0: name\n  cause: relative URL without a base",
            "error: Invalid hash digest length (expected 32 hexadecimal characters, found 3)",
            "error: Expected `--hash`, found `\"--foo\"`: requirements.txt:1:6",
            "error: Failed to download `x==1`\n  cause: Failed to read from zip file",
            "error: something that no release has said yet",
        ] {
            for (code, wheels_only) in [(1, true), (2, false)] {
                assert_eq!(judge(Some(code), output, wheels_only), Verdict::Permanent, "{output}");
            }
        }
    }

    #[test]
    fn failures_that_are_not_the_requirements_fault_are_transient() {
        for output in [
            "error: Request failed after 3 retries in 10.7s\n  cause: Failed to fetch: http://127.0.0.1:9/simple/numpy/",
            "error: Failed to download and build `foo @ git+https://127.0.0.1:9/x`\n  cause: Git operation failed\n  fatal: \
             unable to access: Failed to connect to 127.0.0.1 port 9 after 0 ms: Couldn't connect to server",
            "error: Failed to write\n  cause: No space left on device (os error 28)",
            "error: failed to spawn a thread\n  cause: Resource temporarily unavailable (os error 11)",
            "error: Failed to fetch: http://index/x\n  cause: HTTP status server error (503 Service Unavailable)",
        ] {
            assert_eq!(judge(Some(2), output, true), Verdict::Passing, "{output}");
        }
        let wrong = "error: Distribution not found at: file:///nowhere";
        // Killed, a panic, and a sandbox that could not be made.
        for code in [None, Some(101), Some(70)] {
            assert_eq!(judge(code, wrong, true), Verdict::Passing, "{code:?}");
        }
        let retried = format!("warning: connection reset, trying again\n{wrong}");
        assert_eq!(judge(Some(1), &retried, true), Verdict::Permanent, "only the error counts");
        let cut = format!("{}{NO_PACKAGE}", "x".repeat(TAIL)).replace("error:", "");
        assert_eq!(judge(Some(1), &cut[cut.len() - TAIL..], true), Verdict::Permanent, "its beginning may be cut off");
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
        assert_eq!(
            judge(Some(1), "error: Wheels are required because building\n    from source is\n    disabled", true),
            Verdict::NeedsSource
        );
    }
}
