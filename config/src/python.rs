//! A Python version as manifests and the node name it: `"3.11"`.

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};

/// A feature release of Python 3, within what the `omni` package supports: 3.9 to 3.14.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PythonVersion {
    minor: u8,
}

impl PythonVersion {
    /// The oldest release that models can ask for.
    pub const OLDEST: Self = Self { minor: 9 };
    /// The newest release that models can ask for.
    pub const NEWEST: Self = Self { minor: 14 };
    /// Default of models: the release of Debian 12, which has it installed.
    pub const DEFAULT: Self = Self { minor: 11 };

    /// Every release that models can ask for, the oldest first.
    pub fn all() -> impl Iterator<Item = Self> {
        (Self::OLDEST.minor..=Self::NEWEST.minor).map(|minor| Self { minor })
    }

    /// The number behind the 3.
    #[must_use]
    pub const fn minor(self) -> u8 {
        self.minor
    }
}

/// Why a text is not a Python version that models can ask for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PythonVersionError {
    /// Not two numbers with a point between.
    #[error("write major and minor version only")]
    Form,
    /// Another version than those supported.
    #[error("the versions are {} to {}", PythonVersion::OLDEST, PythonVersion::NEWEST)]
    Unsupported,
}

impl FromStr for PythonVersion {
    type Err = PythonVersionError;

    fn from_str(text: &str) -> Result<Self, PythonVersionError> {
        let (major, minor) = text.split_once('.').ok_or(PythonVersionError::Form)?;
        let number = |part: &str| {
            let plain = part.bytes().all(|byte| byte.is_ascii_digit()) && (part == "0" || !part.starts_with('0'));
            part.parse::<u8>().ok().filter(|_| plain).ok_or(PythonVersionError::Form)
        };
        let (major, version) = (number(major)?, Self { minor: number(minor)? });
        if major == 3 && (Self::OLDEST..=Self::NEWEST).contains(&version) {
            Ok(version)
        } else {
            Err(PythonVersionError::Unsupported)
        }
    }
}

impl fmt::Display for PythonVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "3.{}", self.minor)
    }
}

impl Serialize for PythonVersion {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_major_and_minor_within_what_is_supported() {
        for minor in 9..=14 {
            let version: PythonVersion = format!("3.{minor}").parse().unwrap();
            assert_eq!((version.minor(), version.to_string()), (minor, format!("3.{minor}")));
        }
        for text in ["", "3", "3.", ".11", "3.11.4", "3.011", "3.+11", "python3.11", "3.999", "3.x"] {
            assert_eq!(text.parse::<PythonVersion>(), Err(PythonVersionError::Form), "{text}");
        }
        for text in ["2.7", "3.8", "3.15", "4.0"] {
            assert_eq!(text.parse::<PythonVersion>(), Err(PythonVersionError::Unsupported), "{text}");
        }
    }
}
