//! Names of groups below the driver's parent: `<instance>/<part>`. They become paths, so they are checked, never
//! repaired.

use crate::Error;
use std::fmt;

/// Content of a group of an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Part {
    /// The model's processes, under its limits.
    Model,
    /// The instance's `omni-worker`, beside the model and never inside its limits.
    Worker,
}

impl Part {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Model => "model",
            Self::Worker => "worker",
        }
    }
}

/// Group of one instance (or of one build, which has the same two parts).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct GroupName {
    instance: String,
    part: Part,
}

impl GroupName {
    /// Names one part of `instance`, for example an instance id or `build-` and the beginning of an environment's key.
    ///
    /// # Errors
    /// [`Error::BadName`] unless `instance` is 1 to 64 lower-case letters, digits and `-`, not beginning with `-`.
    pub fn new(instance: &str, part: Part) -> Result<Self, Error> {
        check(instance, "the name of an instance's groups (1 to 64 of a-z, 0-9 and -)", 64, |byte| {
            byte.is_ascii_lowercase() || byte.is_ascii_digit()
        })?;
        Ok(Self { instance: instance.to_owned(), part })
    }

    /// Directory that holds all parts of the instance.
    #[must_use]
    pub fn instance(&self) -> &str {
        &self.instance
    }

    pub(crate) const fn part(&self) -> &'static str {
        self.part.as_str()
    }
}

impl fmt::Display for GroupName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.instance, self.part.as_str())
    }
}

/// Checks a parent group, relative to the root of the hierarchy: `omni`, or `machine.slice/omni`.
pub(crate) fn check_parent(parent: &str) -> Result<(), Error> {
    const EXPECTED: &str = "a relative cgroup path such as \"omni\" (each part 1 to 64 of A-Z, a-z, 0-9 and -_.@, not beginning with . or -)";
    parent.split('/').try_for_each(|part| {
        check(part, EXPECTED, 64, |byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'@'))?;
        if part.starts_with('.') { Err(bad(parent, EXPECTED)) } else { Ok(()) }
    })
}

fn check(text: &str, expected: &'static str, most: usize, allowed: fn(u8) -> bool) -> Result<(), Error> {
    let inside = text.bytes().all(|byte| allowed(byte) || byte == b'-');
    if inside && (1..=most).contains(&text.len()) && !text.starts_with('-') { Ok(()) } else { Err(bad(text, expected)) }
}

fn bad(name: &str, expected: &'static str) -> Error {
    Error::BadName { name: name.chars().take(80).collect(), expected }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::path::{Component, Path};

    #[test]
    fn names() {
        for good in ["0123456789ab", "build-0123abcd", "a"] {
            assert_eq!(GroupName::new(good, Part::Model).unwrap().to_string(), format!("{good}/model"));
        }
        for bad in ["", ".", "..", "a/b", "-a", "A", "a b", "a\0", "a.b", "ü", &"a".repeat(65)] {
            assert!(GroupName::new(bad, Part::Worker).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn parents() {
        for good in ["omni", "machine.slice/omni", "omni-test-1", "a@b/c_d"] {
            check_parent(good).unwrap();
        }
        for bad in ["", "/", "/omni", "omni/", "a//b", "..", "a/../b", ".a", "a b", "-a"] {
            assert!(check_parent(bad).is_err(), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn an_accepted_name_stays_below_the_parent(text in "[a-z./\\-]{0,12}") {
            let only_normal = |path: &Path| path.components().all(|part| matches!(part, Component::Normal(_)));
            if let Ok(name) = GroupName::new(&text, Part::Model) {
                let path = name.to_string();
                prop_assert!(only_normal(Path::new(&path)));
                prop_assert_eq!(Path::new(&path).components().count(), 2);
            }
            if check_parent(&text).is_ok() {
                prop_assert!(only_normal(Path::new(&text)));
            }
        }
    }
}
