//! Batches as clients see them.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};

/// A batch.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct BatchObject {
    /// Identifier.
    pub id: String,
    /// `batch`.
    pub object: &'static str,
    /// Route of its requests.
    pub endpoint: String,
    /// Model that all its requests name.
    pub model: Option<String>,
    /// Faults for which it was refused.
    pub errors: Option<BatchErrors>,
    /// File with its requests.
    pub input_file_id: String,
    /// `24h`.
    pub completion_window: &'static str,
    /// State.
    pub status: &'static str,
    /// File with the responses of success, if there are any.
    pub output_file_id: Option<String>,
    /// File with the other requests, if there are any.
    pub error_file_id: Option<String>,
    /// Time of its creation, in seconds since 1970.
    pub created_at: u64,
    /// Time at which its first request could run.
    pub in_progress_at: Option<u64>,
    /// Time at which it expires.
    pub expires_at: u64,
    /// Time since which its results are collected.
    pub finalizing_at: Option<u64>,
    /// Time of its completion.
    pub completed_at: Option<u64>,
    /// Time at which it was refused.
    pub failed_at: Option<u64>,
    /// Time at which it expired.
    pub expired_at: Option<u64>,
    /// Time at which its cancellation began.
    pub cancelling_at: Option<u64>,
    /// Time at which it was cancelled.
    pub cancelled_at: Option<u64>,
    /// Numbers of requests.
    pub request_counts: RequestCounts,
    /// Tokens of all results.
    pub usage: BatchUsage,
    /// As the client gave it.
    pub metadata: Option<Map<String, Value>>,
}

/// Faults of a batch's file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct BatchErrors {
    /// `list`.
    pub object: &'static str,
    /// Faults.
    pub data: Vec<LineFault>,
}

/// Fault of a line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct LineFault {
    /// Kind of the fault.
    pub code: String,
    /// Line, from 1; `null` if it is the whole file's.
    pub line: Option<u32>,
    /// Fault, in words.
    pub message: String,
    /// Member of the line.
    pub param: Option<String>,
}

/// Numbers of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
pub struct RequestCounts {
    /// All.
    pub total: u64,
    /// With a response of success.
    pub completed: u64,
    /// With another response, or with none for good.
    pub failed: u64,
}

/// Tokens of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
pub struct BatchUsage {
    /// Tokens of prompts.
    pub input_tokens: u64,
    /// Tokens of prompts, in part.
    pub input_tokens_details: InputDetails,
    /// Tokens of answers.
    pub output_tokens: u64,
    /// Tokens of answers, in part.
    pub output_tokens_details: OutputDetails,
    /// Sum.
    pub total_tokens: u64,
}

/// Tokens of prompts, in part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "BatchInputDetails")]
pub struct InputDetails {
    /// Tokens that a cache held.
    pub cached_tokens: u64,
}

/// Tokens of answers, in part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "BatchOutputDetails")]
pub struct OutputDetails {
    /// Tokens of reasoning.
    pub reasoning_tokens: u64,
}

/// List of batches, the newest first.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct BatchList {
    /// `list`.
    pub object: &'static str,
    /// Batches.
    pub data: Vec<BatchObject>,
    /// Identifier of the first.
    pub first_id: Option<String>,
    /// Identifier of the last, for `after`.
    pub last_id: Option<String>,
    /// There are further ones.
    pub has_more: bool,
}

impl BatchList {
    /// A list of these batches.
    #[must_use]
    pub fn new(data: Vec<BatchObject>, has_more: bool) -> Self {
        let id = |batch: Option<&BatchObject>| batch.map(|batch| batch.id.clone());
        let (first_id, last_id) = (id(data.first()), id(data.last()));
        Self { object: "list", data, first_id, last_id, has_more }
    }
}

impl BatchErrors {
    /// List of these faults; `None` without any.
    #[must_use]
    pub fn new(data: Vec<LineFault>) -> Option<Self> {
        (!data.is_empty()).then_some(Self { object: "list", data })
    }
}
