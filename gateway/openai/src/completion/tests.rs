//! Tests of completions: requests as a table, answers of all shapes as golden files.

use super::*;
use crate::head::AnswerHead;
use crate::scenarios::{self, Scenario};
use omni_generation::GenerationRequest;
use serde_json::Value;

fn read(body: &str) -> GenerationRequest {
    completion_request(body.as_bytes()).unwrap_or_else(|error| panic!("{body}: {error}"))
}

fn head() -> AnswerHead {
    AnswerHead { id: "1a2b".into(), created: 1_700_000_000, model: "m".into() }
}

fn encoder(scenario: &Scenario) -> CompletionEncoder {
    let mut request = read(r#"{"model": "m", "prompt": "p"}"#);
    request.choices = scenario.choices;
    request.stream_usage = scenario.usage;
    request.logprobs = scenario.logprobs.then_some(1);
    CompletionEncoder::new(head(), &request)
}

#[test]
fn streams_of_all_shapes() {
    insta::assert_snapshot!(scenarios::streams(encoder));
}

#[test]
fn whole_answers_of_all_shapes() {
    insta::assert_snapshot!(scenarios::answers(encoder));
}

#[test]
fn a_streams_texts_are_those_of_the_whole_answer() {
    for shape in scenarios::all().into_iter().filter(|shape| !shape.fails()) {
        let stream = shape.stream(&mut encoder(&shape));
        let whole: Value = serde_json::from_str(&shape.whole(&mut encoder(&shape))).unwrap();
        let choices = whole["choices"].as_array().unwrap();
        let mut texts = vec![String::new(); choices.len()];
        for event in stream.lines().filter_map(|line| serde_json::from_str::<Value>(line.strip_prefix("data: ")?).ok())
        {
            for choice in event["choices"].as_array().into_iter().flatten() {
                texts[choice["index"].as_u64().unwrap() as usize] += choice["text"].as_str().unwrap();
            }
        }
        assert!(choices.iter().zip(&texts).all(|(choice, text)| choice["text"] == **text), "{}: {stream}", shape.name);
    }
}

#[test]
fn an_echo_is_before_each_answer_to_its_prompt() {
    let request = read(r#"{"model": "m", "prompt": ["a", "b"], "n": 2, "echo": true}"#);
    let mut out = bytes::BytesMut::new();
    let mut encoder = CompletionEncoder::new(head(), &request);
    omni_generation::ResponseEncoder::start(&mut encoder, &mut out);
    let stream = String::from_utf8(out.to_vec()).unwrap();
    for (choice, text) in [(0, "a"), (1, "a"), (2, "b"), (3, "b")] {
        assert!(stream.contains(&format!("\"index\":{choice},\"text\":\"{text}\"")), "{stream}");
    }
    let shape = scenarios::all().into_iter().find(|scenario| scenario.name == "two choices").unwrap();
    let one = read(r#"{"model": "m", "prompt": "p:", "n": 2, "echo": true}"#);
    let whole = shape.whole(&mut CompletionEncoder::new(head(), &one));
    assert!(whole.contains("\"text\":\"p:a\"") && whole.contains("\"text\":\"p:b\""), "{whole}");
}

#[test]
fn tokens_that_the_engine_repeats_are_parts_of_its_answers() {
    for (parameters, is_text) in [
        (r#""prompt": "p""#, true),
        (r#""prompt": "p", "logprobs": 0"#, false),
        (r#""prompt": [1]"#, false),
        (r#""prompt": [1], "logprobs": 0"#, false),
    ] {
        let request = read(&format!(r#"{{"model": "m", "echo": true, {parameters}}}"#));
        assert_eq!(request.repeats_tokens(&request.prompts[0]), !is_text, "{parameters}");
        let mut out = bytes::BytesMut::new();
        omni_generation::ResponseEncoder::start(&mut CompletionEncoder::new(head(), &request), &mut out);
        assert_eq!(!out.is_empty(), is_text, "{parameters}");
    }
    let request = read(r#"{"model": "m", "prompt": "p", "logprobs": 1}"#);
    assert!(!request.repeats_tokens(&request.prompts[0]), "nothing is to be repeated");
}

#[test]
fn prompts_are_texts_or_tokens() {
    for (prompt, expected) in [
        (r#""a""#, r#"[Text("a")]"#),
        (r#"["a", ""]"#, r#"[Text("a"), Text("")]"#),
        ("[1, 2]", "[Tokens([1, 2])]"),
        ("[[1], [2]]", "[Tokens([1]), Tokens([2])]"),
    ] {
        let request = read(&format!(r#"{{"model": "m", "prompt": {prompt}}}"#));
        assert_eq!(format!("{:?}", request.prompts), expected);
    }
}

#[test]
fn answers_are_short_unless_asked() {
    assert_eq!(read(r#"{"model": "m", "prompt": "p"}"#).sampling.max_tokens, Some(16));
    assert_eq!(read(r#"{"model": "m", "prompt": "p", "max_tokens": 99}"#).sampling.max_tokens, Some(99));
}

#[test]
fn refused_requests() {
    let mut table = String::new();
    for parameters in [
        r#""messages": []"#,
        r#""suffix": "x""#,
        r#""best_of": 3"#,
        r#""logprobs": 21"#,
        r#""logprobs": true"#,
        r#""prompt_logprobs": 1"#,
        r#""max_tokens": 0"#,
        r#""top_logprobs": 1"#,
        r#""n": 99"#,
        r#""maxtokens": 1"#,
        r#""stream_options": {}"#,
        r#""service_tier": "flex""#,
    ] {
        let body = format!(r#"{{"model": "m", "prompt": "p", {parameters}}}"#);
        table += &refusal(parameters, &body);
    }
    for prompt in ["[]", "null", "[[]]", "[1, \"a\"]"] {
        table += &refusal(prompt, &format!(r#"{{"model": "m", "prompt": {prompt}}}"#));
    }
    let many = format!(r#"{{"model": "m", "prompt": [{}], "n": 16}}"#, vec!["\"a\""; 17].join(","));
    table += &refusal("17 prompts, 16 answers each", &many);
    insta::assert_snapshot!(table);
}

fn refusal(name: &str, body: &str) -> String {
    let error = completion_request(body.as_bytes()).err().unwrap_or_else(|| panic!("accepted: {body}"));
    format!("{name}\n    {} {}: {}\n", error.code.name(), error.parameter.as_deref().unwrap_or("-"), error.message)
}
