//! Batches of the node.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Batches of all owners, the newest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Jobs {
    /// The batches, at most 100.
    pub jobs: Vec<Job>,
    /// Bytes of all files and results.
    pub disk_bytes: u64,
    /// The most bytes that there may be.
    pub disk_bytes_limit: u64,
}

/// A batch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Job {
    /// Identifier.
    pub id: String,
    /// Name of the token that made it; empty where the node has no tokens.
    pub owner: String,
    /// Route of its requests.
    pub endpoint: String,
    /// Model that all its requests name.
    pub model: Option<String>,
    /// State, as the OpenAI API has it.
    pub status: String,
    /// Requests.
    pub total: u64,
    /// Requests with a response of success.
    pub completed: u64,
    /// Requests with another response, or with none for good.
    pub failed: u64,
    /// Tokens of prompts.
    pub input_tokens: u64,
    /// Tokens of answers.
    pub output_tokens: u64,
    /// Time of its creation, in milliseconds since the Unix epoch.
    pub created_unix_ms: u64,
    /// Time at which it expires.
    pub expires_unix_ms: u64,
    /// Time of its end.
    pub ended_unix_ms: Option<u64>,
    /// Faults for which it was refused.
    pub errors: Vec<String>,
    /// Reasons for which requests of it wait, whatever the load: models that take no request now.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waits: Vec<String>,
}
