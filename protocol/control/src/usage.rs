//! Usage of models: sums over the records that the node keeps.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Usage since a time, as far as the node has kept its records.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct UsageSummary {
    /// Attempts that ended then or later count, in milliseconds since the Unix epoch.
    pub since_unix_ms: u64,
    /// Rows, one for each model and token, sorted by both.
    pub rows: Vec<UsageRow>,
}

/// A row of [`UsageSummary`].
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct UsageRow {
    /// The model's name.
    pub model: String,
    /// Name of the clients' token; `None` for requests without one.
    pub token: Option<String>,
    /// Attempts at requests.
    pub attempts: u64,
    /// Attempts that were answered to the end.
    pub complete: u64,
    /// Tokens of prompts, those from a cache included.
    pub input_tokens: u64,
    /// Tokens of answers, reasoning included.
    pub output_tokens: u64,
    /// Tokens of prompts that came from a cache.
    pub cached_tokens: u64,
    /// Tokens of reasoning.
    pub reasoning_tokens: u64,
    /// Images that were made.
    pub images: u64,
    /// Seconds of recordings that were transcribed.
    pub audio_seconds: f64,
    /// Seconds in instances.
    pub run_seconds: f64,
    /// Seconds in instances that hold a card.
    pub gpu_seconds: f64,
    /// Bytes of requests.
    pub bytes_in: u64,
    /// Bytes of answers.
    pub bytes_out: u64,
    /// Units that handlers reported.
    pub reported: BTreeMap<String, u64>,
}
