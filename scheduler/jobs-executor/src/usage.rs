//! Tokens that a response says it used, in the forms of the APIs. Pure.

use omni_jobs::Usage;
use serde::Deserialize;
use serde_json::value::RawValue;

/// Most tokens that a response can have used. A model may say any number.
const MOST: u64 = 1 << 40;

#[derive(Debug, Default, Deserialize)]
struct Body<'a> {
    usage: Option<Said>,
    /// Text, not unfolded: a model may answer with anything.
    #[serde(borrow)]
    result: Option<&'a RawValue>,
}

/// Result of the run API that is an object.
#[derive(Debug, Deserialize)]
struct NativeResult {
    usage: Option<Said>,
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
    let native = || {
        let object = result.map(RawValue::get).filter(|json| json.starts_with('{'))?;
        serde_json::from_str::<NativeResult>(object).ok()?.usage
    };
    let said = usage.or_else(native).unwrap_or_default();
    let tokens = |said: Option<u64>| said.unwrap_or_default().min(MOST);
    Usage {
        input: tokens(said.input_tokens),
        cached: tokens(said.input_tokens_details.and_then(|details| details.cached_tokens)),
        output: tokens(said.output_tokens),
        reasoning: tokens(said.output_tokens_details.and_then(|details| details.reasoning_tokens)),
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
    let most = r#"{"usage":{"prompt_tokens":18446744073709551615,"completion_tokens":1099511627777}}"#;
    assert_eq!(of(most), Usage { input: MOST, output: MOST, ..Usage::default() });
    for other in [
        "",
        "[]",
        "{}",
        r#"{"result":"text"}"#,
        r#"{"result":[{"prompt_tokens":5}]}"#,
        r#"{"usage":null}"#,
        r#"{"usage":7}"#,
    ] {
        assert_eq!(of(other), Usage::default(), "{other}");
    }
}
