//! Tokens that a response says it used, in the forms of the APIs. Pure.

use omni_jobs::Usage;
use serde::Deserialize;

#[derive(Debug, Default, Deserialize)]
struct Body {
    usage: Option<Said>,
    result: Option<NativeResult>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(untagged)]
enum NativeResult {
    Object {
        usage: Said,
    },
    #[default]
    Other,
}

#[derive(Debug, Default, Deserialize)]
struct Said {
    #[serde(alias = "prompt_tokens")]
    input_tokens: Option<u64>,
    #[serde(alias = "completion_tokens")]
    output_tokens: Option<u64>,
    #[serde(alias = "prompt_tokens_details")]
    input_tokens_details: Option<Details>,
    #[serde(alias = "completion_tokens_details")]
    output_tokens_details: Option<Details>,
}

#[derive(Debug, Default, Deserialize)]
struct Details {
    cached_tokens: Option<u64>,
    reasoning_tokens: Option<u64>,
}

/// Tokens that the body of a response says; none for a body of another form.
pub(crate) fn usage(body: &[u8]) -> Usage {
    let Body { usage, result } = serde_json::from_slice(body).unwrap_or_default();
    let native = || match result {
        Some(NativeResult::Object { usage }) => Some(usage),
        Some(NativeResult::Other) | None => None,
    };
    let said = usage.or_else(native).unwrap_or_default();
    Usage {
        input: said.input_tokens.unwrap_or_default(),
        cached: said.input_tokens_details.and_then(|details| details.cached_tokens).unwrap_or_default(),
        output: said.output_tokens.unwrap_or_default(),
        reasoning: said.output_tokens_details.and_then(|details| details.reasoning_tokens).unwrap_or_default(),
    }
}

#[test]
fn tokens_in_the_forms_of_the_apis() {
    let of = |body: &str| usage(body.as_bytes());
    let chat = r#"{"usage":{"prompt_tokens":5,"completion_tokens":3,"total_tokens":8,
        "prompt_tokens_details":{"cached_tokens":2},"completion_tokens_details":{"reasoning_tokens":1}}}"#;
    let expected = Usage { input: 5, cached: 2, output: 3, reasoning: 1 };
    assert_eq!(of(chat), expected);
    let responses = r#"{"usage":{"input_tokens":5,"output_tokens":3,
        "input_tokens_details":{"cached_tokens":2},"output_tokens_details":{"reasoning_tokens":1}}}"#;
    assert_eq!(of(responses), expected);
    let native = r#"{"result":{"response":"hi","usage":{"prompt_tokens":5,"completion_tokens":3}},"success":true}"#;
    assert_eq!(of(native), Usage { input: 5, output: 3, ..Usage::default() });
    for other in ["", "[]", "{}", r#"{"result":"text"}"#, r#"{"usage":null}"#, r#"{"usage":7}"#] {
        assert_eq!(of(other), Usage::default(), "{other}");
    }
}
