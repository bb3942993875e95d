//! Failures of a configuration.

/// Characters of a value in a message.
const VALUE: usize = 80;
/// Characters of a reason that quotes a file.
const REASON: usize = 200;

/// Failure of a configuration; every message names the field, the tensor or the file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// A file is not JSON of the form that it should have.
    #[error("{file} is not understood: {reason}")]
    File {
        /// Name of the file.
        file: &'static str,
        /// Cause.
        reason: String,
    },
    /// The architecture is not one of the supported ones.
    #[error("architecture {name} is not supported; supported are: {supported}")]
    Architecture {
        /// Name in the configuration.
        name: String,
        /// Names of the supported ones.
        supported: String,
    },
    /// A field that is needed is absent.
    #[error("the configuration has no {field}")]
    Missing {
        /// Name of the field.
        field: String,
    },
    /// A field has a value that is not supported.
    #[error("{field} is {value}, {reason}")]
    Field {
        /// Name of the field.
        field: String,
        /// Value, shortened.
        value: String,
        /// Cause.
        reason: String,
    },
    /// A tensor that is part of the configuration cannot be read.
    #[error("tensor {tensor}: {reason}")]
    Tensor {
        /// Name of the tensor.
        tensor: String,
        /// Cause.
        reason: String,
    },
    /// Widths of a description do not fit together.
    #[error("{place}: {reason}")]
    Widths {
        /// Part of the model.
        place: String,
        /// Cause.
        reason: String,
    },
}

impl ConfigError {
    pub(crate) fn file(file: &'static str, reason: &serde_json::Error) -> Self {
        Self::File { file, reason: excerpt(&reason.to_string(), REASON) }
    }

    pub(crate) fn field(field: impl Into<String>, value: impl std::fmt::Display, reason: impl Into<String>) -> Self {
        Self::Field { field: field.into(), value: shorten(&value.to_string()), reason: reason.into() }
    }

    /// The same failure of a field in an object of this name.
    pub(crate) fn within(self, place: &str) -> Self {
        match self {
            Self::Missing { field } => Self::Missing { field: format!("{place}.{field}") },
            Self::Field { field, value, reason } => Self::Field { field: format!("{place}.{field}"), value, reason },
            other => other,
        }
    }
}

/// First part of a value, for a message.
pub(crate) fn shorten(value: &str) -> String {
    excerpt(value, VALUE)
}

/// First characters of a foreign text, on one line.
fn excerpt(text: &str, length: usize) -> String {
    let shown = |character: char| if character.is_control() { char::REPLACEMENT_CHARACTER } else { character };
    let rest = text.chars().nth(length).map(|_| '…');
    text.chars().take(length).map(shown).chain(rest).collect()
}
