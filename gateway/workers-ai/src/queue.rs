//! Queued requests: `{"requests": […]}` with `?queueRequest=true`, and `{"request_id": …}` that asks for their answers.

use crate::envelope::enveloped;
use bytes::Bytes;
use omni_codec::{Object, body};
use omni_request_error::{InvalidCode, InvalidRequest};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use std::borrow::Cow;

/// Parameter of the query.
const QUERY: &str = "queueRequest";
/// Characters of a media type that a refusal repeats.
const LONGEST_MEDIA: usize = 100;
/// Longest body that only asks for answers, in bytes.
const LONGEST_POLL: usize = 512;

/// Requests to be queued, or the question for their answers.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct QueueBody {
    /// Inputs of the model; each may have an `external_reference`, which its answer repeats.
    requests: Option<Vec<Object>>,
    /// Identifier that was given for queued requests.
    request_id: Option<String>,
}

/// Content of a body for the queue.
#[derive(Debug)]
pub enum QueueRequest {
    /// Inputs of the model, each a JSON object.
    Inputs(Vec<Vec<u8>>),
    /// Identifier of queued requests.
    Poll(String),
}

/// State of queued requests that have no answers yet.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Queued {
    /// `queued` or `running`.
    pub status: &'static str,
    /// Identifier, to ask for the answers with.
    pub request_id: String,
    /// Name of the model.
    pub model: String,
}

/// Answers of queued requests.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct QueueAnswers<'a> {
    /// Answers, in the order of the requests.
    #[schemars(with = "Vec<QueueAnswer<'static>>")]
    pub responses: &'a RawValue,
    /// Tokens of all of them.
    pub usage: QueueUsage,
}

/// Answer of one queued request.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct QueueAnswer<'a> {
    /// Position of the request, from 0.
    pub id: u32,
    /// Answer; `null` if the request failed.
    #[schemars(with = "Option<Value>")]
    pub result: Option<&'a RawValue>,
    /// The request has an answer of success.
    pub success: bool,
    /// As the request has it.
    #[schemars(with = "Option<Value>")]
    pub external_reference: Option<&'a RawValue>,
    /// Reasons for a failure.
    #[schemars(with = "Vec<Value>")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub errors: Option<Cow<'a, RawValue>>,
}

/// Tokens of queued requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, JsonSchema)]
pub struct QueueUsage {
    /// Tokens of prompts.
    pub prompt_tokens: u64,
    /// Tokens of answers.
    pub completion_tokens: u64,
    /// Sum.
    pub total_tokens: u64,
}

/// Returns true if the query asks for the queue.
///
/// # Errors
/// A value that is no boolean.
pub fn asks_for_queue(query: Option<&str>) -> Result<bool, InvalidRequest> {
    let pairs = query.unwrap_or_default().split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    let mut asks = false;
    for (_, value) in pairs.filter(|(name, _)| *name == QUERY) {
        match value {
            "true" => asks = true,
            "false" => {}
            _ => return Err(InvalidRequest::new(QUERY, format!("`{QUERY}` in the query is `true` or `false`"))),
        }
    }
    Ok(asks)
}

/// The refusal of a queued request by a node without a queue.
#[must_use]
pub fn no_queue() -> InvalidRequest {
    let message = "this node takes no queued requests, since its batch jobs are off (`enabled` in [jobs] of its \
                   configuration): send the request without `queueRequest`";
    InvalidRequest::unsupported(QUERY, message)
}

/// The refusal of a body for the queue that came with another media type.
#[must_use]
pub fn not_json(media: &str) -> InvalidRequest {
    let media: String = media.chars().take(LONGEST_MEDIA).collect();
    let hint = if media.starts_with("application/x-www-form-urlencoded") { ", as `curl -d` sends it" } else { "" };
    let message = format!(
        "queued requests are JSON, and this body came as `{media}`{hint}: send `content-type: application/json`, or none"
    );
    InvalidRequest { message, parameter: None, code: InvalidCode::Value }
}

/// Reads a body for the queue.
///
/// # Errors
/// A body of another form.
pub fn queue_request(json: &[u8]) -> Result<QueueRequest, InvalidRequest> {
    if let Ok(omni_codec::RawMembers(members)) = serde_json::from_slice(json)
        && !members.iter().any(|(name, _)| matches!(&**name, "requests" | "request_id"))
    {
        let message = "`requests` is missing: the body of a queued request is `{\"requests\": [{…}, {…}]}`, each an input of \
                       the model, or `{\"request_id\": \"…\"}` to have the answers";
        return Err(InvalidRequest::new("requests", message).with_code(InvalidCode::Missing));
    }
    let QueueBody { requests, request_id } = body::parse(json, &[])?;
    match (requests, request_id) {
        (Some(requests), None) => {
            Ok(QueueRequest::Inputs(requests.iter().map(|request| request.get().as_bytes().to_vec()).collect()))
        }
        (None, Some(id)) => Ok(QueueRequest::Poll(id)),
        _ => {
            let message = "the queue takes `requests`, or `request_id` alone".to_owned();
            Err(InvalidRequest { message, parameter: None, code: InvalidCode::Value })
        }
    }
}

/// The identifier in a body that has nothing else, as clients without the query ask.
#[must_use]
pub fn polled_id(json: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Poll {
        request_id: String,
    }
    if json.len() > LONGEST_POLL {
        return None;
    }
    let Poll { request_id } = serde_json::from_slice(json).ok()?;
    Some(request_id)
}

/// The input of a queued request without its `external_reference`, which is not the model's.
#[must_use]
pub fn without_reference(input: Vec<u8>) -> Vec<u8> {
    let Ok(omni_codec::RawMembers(mut members)) = serde_json::from_slice(&input) else { return input };
    let given = members.len();
    members.retain(|(name, _)| name != "external_reference");
    if members.len() == given {
        return input;
    }
    let mut rest = vec![b'{'];
    for (at, (name, value)) in members.iter().enumerate() {
        if at > 0 {
            rest.push(b',');
        }
        // Texts can always be written.
        let _ = serde_json::to_writer(&mut rest, name);
        rest.push(b':');
        rest.extend_from_slice(value.get().as_bytes());
    }
    rest.push(b'}');
    rest
}

/// The answer with the state or the answers of queued requests.
#[must_use]
pub fn queue_answer(value: &impl Serialize) -> Bytes {
    enveloped(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_for_the_queue() {
        let Ok(QueueRequest::Inputs(inputs)) = queue_request(br#"{"requests":[{"a":1,"external_reference":"x"}]}"#)
        else {
            panic!("inputs")
        };
        assert_eq!(without_reference(inputs[0].clone()), br#"{"a":1}"#);
        assert_eq!(without_reference(b"{\"b\": 1}".to_vec()), b"{\"b\": 1}");
        assert!(matches!(queue_request(br#"{"request_id":"x"}"#), Ok(QueueRequest::Poll(id)) if id == "x"));
        for bad in
            [&b"{}"[..], b"{\"requests\":[1]}", b"{\"requests\":[],\"request_id\":\"x\"}", b"{\"other\":1}", b"[]"]
        {
            assert!(queue_request(bad).is_err(), "{}", String::from_utf8_lossy(bad));
        }
        assert_eq!(polled_id(br#"{"request_id":"x"}"#).as_deref(), Some("x"));
        assert_eq!(polled_id(br#"{"request_id":"x","prompt":"y"}"#), None);
        let refusal = queue_request(br#"{"prompt":"x"}"#).unwrap_err();
        assert!(refusal.message.starts_with("`requests` is missing"), "{refusal}");
    }

    #[test]
    fn the_query_has_a_boolean() {
        for (query, asks) in [("a=1&queueRequest=true", true), ("queueRequest=false", false), ("", false), ("a", false)]
        {
            assert_eq!(asks_for_queue(Some(query)), Ok(asks), "{query}");
        }
        for bad in ["queueRequest=yes", "queueRequest", "queueRequest=", "queueRequest=true&queueRequest=1"] {
            assert!(asks_for_queue(Some(bad)).is_err(), "{bad}");
        }
        assert!(not_json("application/x-www-form-urlencoded").message.contains("`curl -d`"));
        assert!(not_json(&"é".repeat(500)).message.len() < 500);
    }
}
