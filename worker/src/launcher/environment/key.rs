//! The key of an environment: equal inputs, equal key, one environment. Pure.

use omni_ipc::id::{BadId, EnvironmentKey, SnapshotDigest};
use sha2::{Digest, Sha256};
use std::fmt::Write;

/// Counts up when this code lays environments out in another way.
const LAYOUT: &str = "omni-environment 1";

/// All that an environment is made from.
#[derive(Debug, Clone, Copy)]
pub(super) struct Inputs<'a> {
    /// Whose interpreter it is.
    pub(super) interpreter: &'a [String],
    /// The text of `requirements.txt`; `None` when nothing is required, or when the environment exists already.
    pub(super) requirements: Option<&'a str>,
    /// The text of `overrides.txt`.
    pub(super) overrides: Option<&'a str>,
    /// The model's whole directory, when the requirements refer to files in it.
    pub(super) directory: Option<&'a SnapshotDigest>,
    /// Where packages come from.
    pub(super) index: &'a [String],
    /// Nothing is installed that `requirements.txt` has no hash of.
    pub(super) require_hashes: bool,
}

impl Inputs<'_> {
    /// The key: SHA-256 over the parts, each with its place and its length.
    pub(super) fn key(&self) -> Result<EnvironmentKey, BadId> {
        let mut hasher = Sha256::new();
        let mut part = |name: &str, text: &str| {
            for bytes in [name.as_bytes(), text.as_bytes()] {
                hasher.update((bytes.len() as u64).to_le_bytes());
                hasher.update(bytes);
            }
        };
        part("layout", LAYOUT);
        self.interpreter.iter().for_each(|text| part("interpreter", text));
        if let Some(requirements) = self.requirements {
            part("requirements", requirements);
            self.index.iter().for_each(|text| part("index", text));
            if let Some(overrides) = self.overrides {
                part("overrides", overrides);
            }
            if let Some(directory) = self.directory {
                part("directory", directory.as_str());
            }
            if self.require_hashes {
                part("hashes", "required");
            }
        }
        let text = hasher.finalize().iter().fold(String::new(), |mut text, byte| {
            let _ = write!(text, "{byte:02x}"); // writing to a String cannot fail
            text
        });
        EnvironmentKey::parse(&text)
    }
}

/// Whether a requirements file requires anything.
pub(super) fn requires(text: &str) -> bool {
    text.lines().any(|line| !matches!(line.trim_start().chars().next(), None | Some('#')))
}

/// Whether lines may refer to other files of the model (`-r more.txt`, `./wheel.whl`, `-e .`, `x @ file:...`), or run a
/// build from there. Careful: only lines that plainly name a package, with version, extras, marker and hashes, do not.
pub(super) fn refers_to_files(text: &str) -> bool {
    text.lines().any(|line| {
        let line = line.trim();
        let code = if line.starts_with('#') { "" } else { line.split(" #").next().unwrap_or_default().trim() };
        let code = code.trim_end_matches('\\').trim();
        let plain = code.is_empty() || code.split(';').next().is_some_and(is_package) || code.starts_with("--hash=");
        !plain
    })
}

/// `name[extra,extra]==1.0,<2 --hash=...`
fn is_package(code: &str) -> bool {
    let code = code.split(" --hash=").next().unwrap_or_default();
    let begins = code.starts_with(|first: char| first.is_ascii_alphanumeric());
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._-[],<>=!~*+ ()".contains(c);
    let archive =
        [".whl", ".gz", ".zip", ".bz2", ".xz", ".tgz", ".tar"].iter().any(|end| code.trim_end().ends_with(end));
    begins && code.chars().all(allowed) && !archive
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_input_counts_and_nothing_else() {
        let python = ["/usr/bin/python3.11".to_owned(), "3.11.2".to_owned()];
        let other = ["/usr/bin/python3.11".to_owned(), "3.11.7".to_owned()];
        let index = ["https://mirror/simple".to_owned()];
        let digest = SnapshotDigest::parse(&"a".repeat(64)).unwrap();
        let bare = Inputs {
            interpreter: &python,
            requirements: None,
            overrides: None,
            directory: None,
            index: &[],
            require_hashes: false,
        };
        let full = Inputs { requirements: Some("cowsay==6.1\n"), ..bare };
        let all = [
            bare,
            Inputs { interpreter: &other, ..bare },
            Inputs { interpreter: &python[..1], ..bare },
            full,
            Inputs { requirements: Some("cowsay==6.0\n"), ..full },
            Inputs { overrides: Some("x"), ..full },
            Inputs { overrides: Some(""), ..full },
            Inputs { directory: Some(&digest), ..full },
            Inputs { index: &index, ..full },
            Inputs { require_hashes: true, ..full },
        ];
        let keys: BTreeSet<_> = all.iter().map(|inputs| inputs.key().unwrap()).collect();
        assert_eq!(keys.len(), all.len());
        assert_eq!(full.key().unwrap(), Inputs { ..full }.key().unwrap());
        let unread =
            Inputs { index: &index, directory: Some(&digest), overrides: Some("x"), require_hashes: true, ..bare };
        assert_eq!(unread.key().unwrap(), bare.key().unwrap(), "who needs no package is served by one environment");
    }

    #[test]
    fn what_requires_nothing() {
        for text in ["", "\n\n", "# numpy\n", "  # numpy\n\t\n"] {
            assert!(!requires(text), "{text:?}");
        }
        for text in ["numpy", "\n numpy # for arrays\n", "-r more.txt"] {
            assert!(requires(text), "{text:?}");
        }
    }

    #[test]
    fn who_refers_to_files_shares_with_nobody() {
        let shared = [
            "cowsay==6.1\n# a comment with ./path\n\nnumpy>=1,<3  # and ./another\n",
            "sentence-transformers ; sys_platform == 'never'",
            "uvicorn[standard,extra] ~= 0.30",
            "a==1.0 \\\n    --hash=sha256:abc \\\n    --hash=sha256:def\n",
            "a==1.0 --hash=sha256:abc",
            "torch==2.1.0+cpu",
        ];
        for text in shared {
            assert!(!refers_to_files(text), "{text:?}");
        }
        let own = [
            "-r more.txt",
            "-c constraints.txt",
            "-e .",
            ".",
            "./vendored.whl",
            "vendored-1.0-py3-none-any.whl",
            "thing @ file:///model/thing",
            "thing @ ./thing",
            "git+https://host/x",
            "--find-links wheels",
            "sub/dir",
            "numpy\n-e ./x",
            "thing.tar.gz",
        ];
        for text in own {
            assert!(refers_to_files(text), "{text:?}");
        }
    }
}
