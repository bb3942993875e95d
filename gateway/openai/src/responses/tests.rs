//! Tests of responses: requests as a table, answers of all shapes as golden files.

use super::*;
use crate::head::AnswerHead;
use crate::scenarios::{self, Scenario};
use omni_generation::{Chat, GenerationRequest, Prompt, ResponseFormat};

const TOOL: &str = r#"{"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": true}"#;

fn with(parameters: &str) -> String {
    format!(r#"{{"model": "m", "input": "hi", {parameters}}}"#)
}

fn items(items: &str) -> String {
    format!(r#"{{"model": "m", "input": [{items}]}}"#)
}

fn read(body: &str) -> GenerationRequest {
    responses_request(body.as_bytes()).unwrap_or_else(|error| panic!("{body}: {error}")).0
}

fn chat(request: &GenerationRequest) -> &Chat {
    match request.prompts.as_slice() {
        [Prompt::Chat(chat)] => chat,
        other => panic!("{other:?}"),
    }
}

fn encoder(_: &Scenario) -> ResponsesEncoder {
    let body = with(&format!(
        r#""instructions": "be short", "max_output_tokens": 9, "temperature": 0.5, "metadata": {{"b": "1", "a": "2"}},
        "tools": [{TOOL}], "tool_choice": "auto", "text": {{"format": {{"type": "text"}}}}"#
    ));
    let (_, echo) = responses_request(body.as_bytes()).unwrap();
    ResponsesEncoder::new(AnswerHead { id: "1a2b".into(), created: 1_700_000_000, model: "m".into() }, echo)
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
fn events_are_numbered_without_gaps() {
    for scenario in scenarios::all() {
        let stream = scenario.stream(&mut encoder(&scenario));
        let numbers = stream.lines().filter_map(|line| {
            let data: serde_json::Value = serde_json::from_str(line.strip_prefix("data: ")?).unwrap();
            Some(data["sequence_number"].as_u64().unwrap())
        });
        let numbers: Vec<u64> = numbers.collect();
        assert_eq!(numbers, (0..numbers.len() as u64).collect::<Vec<_>>(), "{}", scenario.name);
    }
}

#[test]
fn parameters_that_are_honoured() {
    let request = read(&with(&format!(
        r#""instructions": "be short", "max_output_tokens": 9, "temperature": 0.5, "top_p": 0.9, "top_logprobs": 2,
        "include": ["message.output_text.logprobs", "reasoning.encrypted_content"], "tools": [{TOOL}],
        "tool_choice": {{"type": "function", "name": "weather"}}, "parallel_tool_calls": false,
        "text": {{"format": {{"type": "json_schema", "name": "r", "schema": {{"b": 1, "a": 2}}, "strict": true}}, "verbosity": "medium"}},
        "reasoning": {{"effort": "low", "summary": "auto"}}, "stream": true, "prompt_cache_key": "k", "user": "u",
        "store": false, "background": false, "truncation": "disabled", "service_tier": "auto", "previous_response_id": null"#
    )));
    assert!(
        matches!(&request.format, ResponseFormat::JsonSchema { schema, .. } if schema.get() == r#"{"b": 1, "a": 2}"#)
    );
    insta::assert_debug_snapshot!(request);
}

#[test]
fn items_become_messages() {
    let request = read(&items(
        r#"{"role": "developer", "content": "be short"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "what?"},
            {"type": "input_image", "image_url": "https://x.example/a.png", "detail": "auto"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}], "encrypted_content": null},
        {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
            "content": [{"type": "output_text", "text": "I look", "annotations": [], "logprobs": []}]},
        {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "weather", "arguments": "{\"b\": 1}", "status": "completed"},
        {"type": "function_call", "call_id": "c2", "name": "weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "sun"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "rain"}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "so"}]},
        {"type": "function_call", "call_id": "c3", "name": "weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c3", "output": ""},
        {"role": "user", "content": "and?"}"#,
    ));
    insta::assert_debug_snapshot!(chat(&request).messages);
}

#[test]
fn an_idle_choice_needs_no_tools() {
    for parameters in [r#""tool_choice": "auto""#, r#""tool_choice": "none", "tools": []"#] {
        read(&with(parameters));
    }
}

#[test]
fn refused_requests() {
    let bodies = [
        r#"{"model": "m"}"#.to_owned(),
        items(""),
        with(r#""store": true"#),
        with(r#""background": true"#),
        with(r#""previous_response_id": "resp_1""#),
        with(r#""conversation": {"id": "c"}"#),
        with(r#""prompt": {"id": "p"}"#),
        with(r#""max_tool_calls": 3"#),
        with(r#""truncation": "auto""#),
        with(r#""max_output_tokens": 0"#),
        with(r#""max_tokens": 1"#),
        with(r#""messages": []"#),
        with(r#""response_format": {}"#),
        with(r#""temperature": 3"#),
        with(r#""top_logprobs": 1"#),
        with(r#""include": ["file_search_call.results"]"#),
        with(r#""stream_options": {}"#),
        with(r#""text": {"verbosity": "low"}"#),
        with(r#""text": {"format": {"type": "json_schema"}}"#),
        with(r#""text": {"format": {"type": "grammar"}}"#),
        with(r#""text": {"fromat": {"type": "text"}}"#),
        with(r#""reasoning": {"effort": "enormous"}"#),
        with(r#""tools": [{"type": "web_search"}]"#),
        with(r#""tools": [{"type": "function", "function": {"name": "f"}}]"#),
        with(&format!(r#""tools": [{TOOL}, {TOOL}]"#)),
        with(r#""tool_choice": "required""#),
        with(&format!(r#""tools": [{TOOL}], "tool_choice": {{"type": "function", "name": "x"}}"#)),
        items(r#"{"type": "item_reference", "id": "msg_1"}"#),
        items(r#"{"type": "mcp_call", "id": "msg_1"}"#),
        items(r#"{"role": "user"}"#),
        items(r#"{"role": "tool", "content": "x"}"#),
        items(r#"{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}"#),
        items(r#"{"role": "user", "content": [{"type": "input_file"}]}"#),
        items(r#"{"role": "user", "content": [{"type": "input_image", "image_url": "ftp://x"}]}"#),
        items(r#"{"role": "system", "content": [{"type": "input_image", "image_url": "https://x/y"}]}"#),
        items(r#"{"type": "function_call", "name": "f", "arguments": "{}"}"#),
        items(r#"{"type": "function_call", "call_id": "1", "name": "f", "arguments": {}}"#),
        items(r#"{"type": "function_call_output", "call_id": "1"}"#),
        items(r#"{"type": "reasoning", "summary": [{"type": "input_image"}]}"#),
    ];
    let mut table = String::new();
    for body in bodies {
        let error = responses_request(body.as_bytes()).err().unwrap_or_else(|| panic!("accepted: {body}"));
        let parameter = error.parameter.as_deref().unwrap_or("-");
        table += &format!("{body}\n    {} {parameter}: {}\n", error.code.name(), error.message);
    }
    insta::assert_snapshot!(table);
}
