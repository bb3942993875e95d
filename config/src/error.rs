//! Problems of a configuration text, and the list that reports all of them at once.
//!
//! Filled by [`crate::reader`], wrapped by the manifest's and the node's own errors.
//!
//! Invariants: a list is not empty, is in the order of the text, and is bounded whatever the text was.

use std::fmt;

/// Problems listed in one report; the rest is counted.
const LISTED: usize = 20;

/// A problem at one place of the text. Lines count from 1.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// The text is longer than any configuration a person writes; it was not parsed.
    #[error("the file has {bytes} bytes: a configuration has at most {limit}")]
    TooLong {
        /// Length of the text.
        bytes: usize,
        /// The bound.
        limit: usize,
    },
    /// The text is not TOML.
    #[error("not valid TOML (line {line}): {message}")]
    Syntax {
        /// Where the parser stopped.
        line: usize,
        /// The parser's message.
        message: String,
    },
    /// A key that has no meaning here.
    #[error("unknown key `{key}` (line {line}): {hint}")]
    UnknownKey {
        /// Full path of the key.
        key: String,
        /// Line of the key.
        line: usize,
        /// The nearest known name, or all of them.
        hint: String,
    },
    /// A value of the wrong type or beyond its bounds.
    #[error("`{key}` (line {line}): expected {expected}, found {found}{}", Hint(.hint.as_deref()))]
    Value {
        /// Full path of the key.
        key: String,
        /// Line of the value.
        line: usize,
        /// Values that the key takes, with an example.
        expected: String,
        /// The value found.
        found: String,
        /// A way to repair it, where one is known.
        hint: Option<String>,
    },
    /// A well-formed value that is refused: it contradicts another key, or this version does not support it.
    #[error("`{key}` (line {line}): {reason}")]
    Refused {
        /// Full path of the key.
        key: String,
        /// Line of the key.
        line: usize,
        /// The reason, and what to write instead.
        reason: String,
    },
}

impl Problem {
    /// The line of the problem, where it has one.
    #[must_use]
    pub fn line(&self) -> Option<usize> {
        match self {
            Self::TooLong { .. } => None,
            Self::Syntax { line, .. }
            | Self::UnknownKey { line, .. }
            | Self::Value { line, .. }
            | Self::Refused { line, .. } => Some(*line),
        }
    }
}

/// `": …"` behind a message that has a hint, nothing behind one that has none.
struct Hint<'a>(Option<&'a str>);

impl fmt::Display for Hint<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(hint) => write!(f, ": {hint}"),
            None => Ok(()),
        }
    }
}

/// All problems of one text, one to a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problems {
    listed: Vec<Problem>,
    more: usize,
}

impl Problems {
    /// Puts the problems in the order of the text and keeps the first [`LISTED`]; `None` if there are none.
    pub(crate) fn collect(mut problems: Vec<Problem>) -> Option<Self> {
        problems.sort_by_key(Problem::line);
        let more = problems.len().saturating_sub(LISTED);
        problems.truncate(LISTED);
        (!problems.is_empty()).then_some(Self { listed: problems, more })
    }

    /// The problems, in the order of the text.
    #[must_use]
    pub fn listed(&self) -> &[Problem] {
        &self.listed
    }
}

impl From<Problem> for Problems {
    fn from(problem: Problem) -> Self {
        Self { listed: vec![problem], more: 0 }
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.listed.iter().enumerate() {
            let separator = if index == 0 { "" } else { "\n" };
            write!(f, "{separator}{problem}")?;
        }
        match self.more {
            0 => Ok(()),
            more => write!(f, "\nand {more} more"),
        }
    }
}
