//! The key of an environment: equal inputs, equal key, one environment. Pure.

use omni_node_protocol::id::{BadId, EnvironmentKey, SnapshotDigest};
use sha2::{Digest, Sha256};
use std::fmt::Write;

/// Counts up when this code lays environments out in another way.
const LAYOUT: &str = "omni-environment 1";

/// All that an environment is made from.
#[derive(Debug, Clone, Copy)]
pub(super) struct Inputs<'a> {
    /// Identity of the interpreter.
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
}
