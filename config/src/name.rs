//! Names of models: the path of a model's directory below the models folder, and the tail of its route.
//!
//! `models/@cf/meta/llama` is `@cf/meta/llama`. Names come from clients and from other people's directories and become
//! paths, labels and file names; hence a type.
//!
//! Invariants: a [`ModelName`] joined to a folder stays below it, and no two names share a file name.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Longest name, in bytes: with escapes still a valid file name.
const NAME_LIMIT: usize = 200;
/// Longest part between slashes, in bytes.
const SEGMENT_LIMIT: usize = 64;
/// Most parts between slashes.
pub const DEPTH_LIMIT: usize = 4;

/// The checked name of a model, such as `cowsay` or `@cf/meta/llama-3.1-8b-instruct`.
///
/// Up to four segments, separated by `/`; a segment has 1 to 64 bytes out of `A-Z a-z 0-9 . _ -`, may have one `@`
/// before them, and does not begin with a dot.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ModelName(String);

/// Why a text is not a model's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// The whole is too long.
    #[error("a model's name has at most {NAME_LIMIT} bytes")]
    TooLong,
    /// Too many slashes.
    #[error("a model's name has at most {DEPTH_LIMIT} parts between slashes")]
    TooDeep,
    /// Nothing between two slashes, or at an end.
    #[error("a part of a model's name is empty: `a/b` has a name before, between and behind its slashes")]
    Empty,
    /// A segment is too long.
    #[error("a part of a model's name has at most {SEGMENT_LIMIT} bytes")]
    SegmentTooLong,
    /// `.`, `..`, and directories that are hidden from the node.
    #[error("no part of a model's name begins with a dot or contains `..`")]
    Dots,
    /// A byte that is not allowed.
    #[error("a model's name has letters, digits, `.`, `_`, `-`, and `@` only as the first of a part")]
    Character,
    /// A path that is not UTF-8.
    #[error("the directory's name is not UTF-8")]
    NotUtf8,
}

impl ModelName {
    /// The name of the model in a directory, given by its path relative to the models folder.
    ///
    /// # Errors
    ///
    /// The path is not a model's name; such directories are not served.
    pub fn from_path(relative: &Path) -> Result<Self, NameError> {
        relative.to_str().ok_or(NameError::NotUtf8)?.parse()
    }

    /// The name as text, which is also the relative path of the model's directory.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name as one component of a path, for logs and caches.
    ///
    /// Each `/` becomes `%2F`. No name contains `%`, so two names never meet in one file.
    #[must_use]
    pub fn as_file_name(&self) -> String {
        self.0.replace('/', "%2F")
    }
}

fn check_segment(segment: &str) -> Result<(), NameError> {
    let plain = segment.strip_prefix('@').unwrap_or(segment);
    if plain.is_empty() {
        return Err(NameError::Empty);
    }
    if segment.len() > SEGMENT_LIMIT {
        return Err(NameError::SegmentTooLong);
    }
    if plain.starts_with('.') || plain.contains("..") {
        return Err(NameError::Dots);
    }
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    if plain.bytes().all(allowed) { Ok(()) } else { Err(NameError::Character) }
}

impl FromStr for ModelName {
    type Err = NameError;

    /// Reads a name, such as the decoded tail of a route.
    fn from_str(text: &str) -> Result<Self, NameError> {
        Self::try_from(text.to_owned())
    }
}

impl TryFrom<String> for ModelName {
    type Error = NameError;

    fn try_from(text: String) -> Result<Self, NameError> {
        if text.len() > NAME_LIMIT {
            return Err(NameError::TooLong);
        }
        if text.split('/').count() > DEPTH_LIMIT {
            return Err(NameError::TooDeep);
        }
        text.split('/').try_for_each(check_segment)?;
        Ok(Self(text))
    }
}

impl From<ModelName> for String {
    fn from(name: ModelName) -> Self {
        name.0
    }
}

/// Lets maps be searched with text that came from outside and need not be a name.
impl std::borrow::Borrow<str> for ModelName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl AsRef<str> for ModelName {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ModelName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    use std::path::Component;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn common_names_are_valid() {
        let long = "x".repeat(SEGMENT_LIMIT);
        for text in ["cowsay", "@cf/meta/llama-3.1-8b-instruct", "a/b/c/d", "A_b.c", "7", &long] {
            assert_eq!(text.parse::<ModelName>().unwrap().as_str(), text);
        }
    }

    #[test]
    fn other_texts_are_refused_with_the_reason() {
        let long_segment = "x".repeat(SEGMENT_LIMIT + 1);
        let long_name = ["x".repeat(60), "x".repeat(60), "x".repeat(60), "x".repeat(60)].join("/");
        for (text, error) in [
            ("", NameError::Empty),
            ("@", NameError::Empty),
            ("/cowsay", NameError::Empty),
            ("cowsay/", NameError::Empty),
            ("a//b", NameError::Empty),
            ("a/b/c/d/e", NameError::TooDeep),
            (&long_segment, NameError::SegmentTooLong),
            (&long_name, NameError::TooLong),
            (".", NameError::Dots),
            ("..", NameError::Dots),
            ("../etc/passwd", NameError::Dots),
            ("a/../b", NameError::Dots),
            (".hidden", NameError::Dots),
            ("@.hidden", NameError::Dots),
            ("a..b", NameError::Dots),
            ("a b", NameError::Character),
            ("a%2Fb", NameError::Character),
            ("a\\b", NameError::Character),
            ("a\0", NameError::Character),
            ("@@cf", NameError::Character),
            ("a@b", NameError::Character),
            ("a@", NameError::Character),
            ("modèle", NameError::Character),
        ] {
            assert_eq!(text.parse::<ModelName>(), Err(error), "{text}");
        }
        let not_utf8 = Path::new(OsStr::from_bytes(b"\xff"));
        assert_eq!(ModelName::from_path(not_utf8), Err(NameError::NotUtf8));
    }

    #[test]
    fn names_travel_as_json_texts_and_are_checked_on_arrival() {
        let name: ModelName = serde_json::from_str("\"@cf/meta/llama\"").unwrap();
        assert_eq!(serde_json::to_string(&name).unwrap(), "\"@cf/meta/llama\"");
        assert!(serde_json::from_str::<ModelName>("\"../x\"").is_err());
    }

    proptest! {
        #[test]
        fn a_name_stays_below_its_folder(text in "[@a./_-]{0,12}|.*") {
            if let Ok(name) = text.parse::<ModelName>() {
                prop_assert!(Path::new(name.as_str()).components().all(|part| matches!(part, Component::Normal(_))));
                prop_assert_eq!(ModelName::from_path(Path::new(name.as_str())), Ok(name));
            }
        }

        #[test]
        fn file_names_are_single_components_and_differ(one in "[@a/-]{1,5}", other in "[@a/-]{1,5}") {
            if let (Ok(one), Ok(other)) = (one.parse::<ModelName>(), other.parse::<ModelName>()) {
                let (file, other_file) = (one.as_file_name(), other.as_file_name());
                prop_assert_eq!(Path::new(&file).components().count(), 1);
                prop_assert_eq!(one == other, file == other_file);
            }
        }
    }
}
