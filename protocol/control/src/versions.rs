//! The versions that a model had: what a rollback can go back to.

use crate::Role;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The versions of a model that were ready once and can be served again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct History {
    /// The model's name.
    pub name: String,
    /// The newest first.
    pub versions: Vec<Version>,
}

/// A version that was ready once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Version {
    /// Digest of its content, 64 hexadecimal digits.
    pub version: String,
    /// When it was first ready, in milliseconds since the Unix epoch.
    pub first_ready_unix_ms: u64,
    /// Role of the version now; `None` when it has no instance.
    pub role: Option<Role>,
}
