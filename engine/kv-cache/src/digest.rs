//! Names of prefixes. A block's name is a hash of everything its keys and values depend on: root, then all tokens up to
//! its end. SHA-256, so that nobody can make two prompts of the same name.

use sha2::{Digest as _, Sha256};

/// Name of a prefix, or of the empty prefix of a root.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest([u8; 32]);

/// Parts that keys and values depend on, beside tokens. Fields are tagged, so that no value of one equals that of another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Root<'a> {
    /// Identity of the weights' content.
    pub weights: &'a str,
    /// Identity of an adapter's content; its name would hit after a reload of other content.
    pub adapter: Option<&'a str>,
    /// Salt of a tenant, whose prompts others cannot find out by timing.
    pub salt: Option<&'a str>,
    /// Format of keys and values: type, level of instructions, compression.
    pub format: &'a str,
}

impl Root<'_> {
    /// Computes the name of the empty prefix.
    #[must_use]
    pub fn digest(&self) -> Digest {
        let mut hash = Sha256::new();
        hash.update(b"omni prefix root");
        let fields = [(1_u8, Some(self.weights)), (2, self.adapter), (3, self.salt), (4, Some(self.format))];
        for (tag, field) in fields {
            if let Some(field) = field {
                hash.update([tag]);
                hash.update((field.len() as u64).to_le_bytes());
                hash.update(field.as_bytes());
            }
        }
        Digest(hash.finalize().into())
    }
}

impl Digest {
    /// Computes the name of this prefix with `tokens` after it.
    #[must_use]
    pub fn extended(&self, tokens: &[u32]) -> Self {
        let mut hash = Sha256::new();
        hash.update(self.0);
        for token in tokens {
            hash.update(token.to_le_bytes());
        }
        Self(hash.finalize().into())
    }

    /// Bytes of the name.
    #[must_use]
    pub fn bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl std::fmt::Debug for Digest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0[..8].iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root() -> Root<'static> {
        Root { weights: "w", adapter: None, salt: None, format: "bf16" }
    }

    #[test]
    fn b04_every_field_of_the_prefix_key_counts_and_none_stands_for_another() {
        let roots = [
            root(),
            Root { weights: "v", ..root() },
            Root { adapter: Some("x"), ..root() },
            Root { adapter: Some("y"), ..root() },
            Root { salt: Some("x"), ..root() },
            Root { adapter: Some(""), ..root() },
            Root { salt: Some(""), ..root() },
            Root { adapter: Some("x"), salt: Some("x"), ..root() },
            Root { format: "f32", ..root() },
            Root { weights: "wbf16", format: "", ..root() },
        ];
        for (i, a) in roots.iter().enumerate() {
            for b in &roots[..i] {
                assert_ne!(a.digest(), b.digest(), "{a:?} {b:?}");
            }
        }
        assert_eq!(root().digest(), root().digest());
    }

    #[test]
    fn b06_a_name_depends_on_all_tokens_and_their_order() {
        let root = root().digest();
        let name = root.extended(&[1, 2]).extended(&[3, 4]);
        assert_eq!(name, root.extended(&[1, 2]).extended(&[3, 4]));
        assert_ne!(name, root.extended(&[3, 4]).extended(&[1, 2]));
        assert_ne!(name, root.extended(&[2, 1]).extended(&[3, 4]));
        assert_ne!(root.extended(&[3, 4]), name);
        assert_eq!(format!("{root:?}").len(), 16);
    }
}
