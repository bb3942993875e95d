//! Request for a batch.

use omni_codec::body;
use omni_request_error::InvalidRequest;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};
use std::time::Duration;

/// Routes that the requests of a batch may be for.
pub const ENDPOINTS: [&str; 6] = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/embeddings",
    "/v1/images/generations",
    "/v1/rerank",
];
/// Most pairs of metadata.
const MOST_PAIRS: usize = 16;
/// Longest key of metadata, in characters.
const LONGEST_KEY: usize = 64;
/// Longest value of metadata, in characters.
const LONGEST_VALUE: usize = 512;
/// Shortest and longest time until a file expires, in seconds.
const EXPIRY: std::ops::RangeInclusive<u64> = 3600..=2_592_000;

/// A batch that a client asks for.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BatchBody {
    /// Identifier of the file with the requests, one a line: `custom_id`, `method`, `url`, `body`.
    input_file_id: String,
    /// Route of all requests.
    endpoint: String,
    /// `24h`.
    completion_window: String,
    /// Up to 16 pairs of texts, shown with the batch.
    metadata: Option<Map<String, Value>>,
    /// Time that the files with the results are kept.
    output_expires_after: Option<ExpiresAfter>,
}

/// Time until a file expires.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExpiresAfter {
    /// `created_at`.
    anchor: String,
    /// From 3,600 to 2,592,000.
    seconds: u64,
}

/// A batch that a client asks for, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchRequest {
    /// Identifier of the file with the requests.
    pub input_file_id: String,
    /// Route of all requests.
    pub endpoint: String,
    /// JSON object.
    pub metadata: Option<String>,
    /// Time that the files with the results are kept.
    pub output_expires_after: Option<Duration>,
}

/// Reads a request for a batch.
///
/// # Errors
/// A body of another form, or a value that cannot be honoured.
pub fn batch_request(json: &[u8]) -> Result<BatchRequest, InvalidRequest> {
    let BatchBody { input_file_id, endpoint, completion_window, metadata, output_expires_after } =
        body::parse(json, &[])?;
    if !ENDPOINTS.contains(&endpoint.as_str()) {
        let message = format!("`endpoint` has to be one of {}", ENDPOINTS.join(", "));
        return Err(InvalidRequest::new("endpoint", message));
    }
    if completion_window != "24h" {
        return Err(InvalidRequest::new("completion_window", "`completion_window` has to be `24h`"));
    }
    let metadata = metadata.map(|metadata| checked_metadata(&metadata)).transpose()?;
    let expiry_of = |after: ExpiresAfter| expiry("output_expires_after", &after.anchor, after.seconds);
    let output_expires_after = output_expires_after.map(expiry_of).transpose()?;
    Ok(BatchRequest { input_file_id, endpoint, metadata, output_expires_after })
}

fn checked_metadata(metadata: &Map<String, Value>) -> Result<String, InvalidRequest> {
    if metadata.len() > MOST_PAIRS {
        let message = format!("`metadata` has {} pairs: there may be {MOST_PAIRS}", metadata.len());
        return Err(InvalidRequest::new("metadata", message));
    }
    for (key, value) in metadata {
        let text = value.as_str().unwrap_or_default();
        if key.chars().count() > LONGEST_KEY || text.chars().count() > LONGEST_VALUE || !value.is_string() {
            let message = format!(
                "`metadata` has keys of up to {LONGEST_KEY} characters, and texts of up to {LONGEST_VALUE} as values"
            );
            return Err(InvalidRequest::new("metadata", message));
        }
    }
    Ok(serde_json::to_string(metadata).unwrap_or_default())
}

/// Time until a file expires, within its bounds.
pub(super) fn expiry(parameter: &str, anchor: &str, seconds: u64) -> Result<Duration, InvalidRequest> {
    if anchor != "created_at" {
        let message = format!("the anchor of `{parameter}` has to be `created_at`");
        return Err(InvalidRequest::new(format!("{parameter}.anchor"), message));
    }
    if !EXPIRY.contains(&seconds) {
        let message = format!("`{parameter}` has to be from {} to {} seconds", EXPIRY.start(), EXPIRY.end());
        return Err(InvalidRequest::new(format!("{parameter}.seconds"), message));
    }
    Ok(Duration::from_secs(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn requests_for_batches() {
        let whole = || {
            json!({
                "input_file_id": "file-1", "endpoint": "/v1/embeddings", "completion_window": "24h",
                "metadata": {"a": "b"}, "output_expires_after": {"anchor": "created_at", "seconds": 3600},
            })
        };
        let read = |value: &Value| batch_request(value.to_string().as_bytes());
        let request = read(&whole()).unwrap();
        assert_eq!(request.metadata.as_deref(), Some("{\"a\":\"b\"}"));
        assert_eq!(request.output_expires_after, Some(Duration::from_secs(3600)));
        let many: Map<String, Value> = (0..17).map(|at| (at.to_string(), json!("x"))).collect();
        for (pointer, value, parameter) in [
            ("endpoint", json!("/v1/audio/speech"), "endpoint"),
            ("completion_window", json!("1h"), "completion_window"),
            ("metadata", json!({"a": 1}), "metadata"),
            ("metadata", json!({"a": "x".repeat(513)}), "metadata"),
            ("metadata", Value::Object(many), "metadata"),
            ("output_expires_after", json!({"anchor": "created_at", "seconds": 1}), "output_expires_after.seconds"),
            ("output_expires_after", json!({"anchor": "now", "seconds": 3600}), "output_expires_after.anchor"),
            ("other", json!(1), "other"),
        ] {
            let mut body = whole();
            body[pointer] = value;
            assert_eq!(read(&body).unwrap_err().parameter.as_deref(), Some(parameter), "{body}");
        }
    }
}
