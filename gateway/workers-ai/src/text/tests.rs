//! Tests of text generation in the native form: requests as a table, answers of all shapes as golden files.

use super::*;
use crate::scenarios::{self, Scenario};
use bytes::BytesMut;
use omni_generation::{Chat, Choice, Completion, GenerationRequest, Prompt, ResponseEncoder, ToolChoice};

fn read(parameters: &str) -> GenerationRequest {
    text_request("m", format!("{{{parameters}}}").as_bytes()).unwrap_or_else(|error| panic!("{parameters}: {error}"))
}

fn chat(request: &GenerationRequest) -> &Chat {
    match request.prompts.as_slice() {
        [Prompt::Chat(chat)] => chat,
        other => panic!("{other:?}"),
    }
}

fn encoder(_: &Scenario) -> NativeEncoder {
    NativeEncoder::new(&read(r#""prompt": "hi""#))
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
fn an_answer_that_is_json_is_a_value() {
    let request = read(r#""prompt": "hi", "response_format": {"type": "json_object"}"#);
    for (content, expected) in [(r#"{"b": 1, "a": 2}"#, r#""response":{"b": 1, "a": 2}"#), ("{", r#""response":"{""#)] {
        let choice = Choice { content: content.into(), ..Choice::default() };
        let completion = Completion { choices: vec![choice], ..Completion::default() };
        let mut out = BytesMut::new();
        NativeEncoder::new(&request).whole(&completion, &mut out);
        let text = String::from_utf8(out.to_vec()).unwrap();
        assert!(text.contains(expected), "{text}");
    }
}

#[test]
fn a_prompt_is_a_message_unless_it_is_raw() {
    let request = read(r#""prompt": "hi""#);
    assert_eq!(format!("{:?}", chat(&request).messages[0].content), r#"Text("hi")"#);
    assert!(matches!(&read(r#""prompt": "hi", "raw": true"#).prompts[..], [Prompt::Text(text)] if text == "hi"));
}

#[test]
fn parameters_that_are_honoured() {
    let schema = r#"{"type": "object", "properties": {"z": {}, "a": {}}}"#;
    let request = read(&format!(
        r#""messages": [{{"role": "user", "content": "hi"}},
            {{"role": "assistant", "content": "", "reasoning": "hm", "tool_calls": [{{"name": "f", "arguments": {{"b": 1}}}}]}},
            {{"role": "tool", "name": "f", "content": "sun"}}],
        "max_tokens": 9, "temperature": 4, "top_p": 0.9, "top_k": 40, "seed": 7, "repetition_penalty": 1.1,
        "frequency_penalty": 1, "presence_penalty": 1, "stream": true, "user": "u", "reasoning_effort": "low",
        "chat_template_kwargs": {{"z": 1}}, "response_format": {{"type": "json_schema", "json_schema": {schema}}}"#
    ));
    insta::assert_debug_snapshot!(request);
}

#[test]
fn tools_may_have_any_form() {
    let flat = r#"{"name": "f", "description": "d", "parameters": {"b": 1, "a": 2}}"#;
    let wrapped = format!(r#"{{"type": "function", "function": {flat}}}"#);
    for parameters in
        [format!(r#""tools": [{flat}]"#), format!(r#""tools": [{wrapped}]"#), format!(r#""functions": [{flat}]"#)]
    {
        let request = read(&format!(r#""prompt": "hi", {parameters}, "tool_choice": "any""#));
        assert_eq!(chat(&request).tools[0].definition.get(), wrapped, "{parameters}");
        assert_eq!(chat(&request).tool_choice, ToolChoice::Required);
    }
}

#[test]
fn an_effort_of_null_is_no_reasoning() {
    let effort =
        |parameters: &str| chat(&read(&format!(r#""prompt": "hi"{parameters}"#))).template.reasoning_effort.clone();
    assert_eq!(effort(""), None);
    assert_eq!(effort(r#", "reasoning_effort": null"#).as_deref(), Some("none"));
    assert_eq!(effort(r#", "reasoning_effort": "low""#).as_deref(), Some("low"));
}

#[test]
fn refused_requests() {
    let mut table = String::new();
    for parameters in [
        "",
        r#""prompt": "a", "messages": []"#,
        r#""messages": []"#,
        r#""messages": [{"role": "user", "content": "a"}], "raw": true"#,
        r#""prompt": "a", "temperature": 6"#,
        r#""prompt": "a", "max_tokens": 0"#,
        r#""prompt": "a", "n": 2"#,
        r#""prompt": "a", "lora": "x""#,
        r#""prompt": "a", "image": [1, 2]"#,
        r#""prompt": "a", "logprobs": true"#,
        r#""prompt": "a", "max_token": 1"#,
        r#""prompt": "a", "tools": [], "functions": []"#,
        r#""prompt": "a", "tools": [{"description": "x"}]"#,
        r#""prompt": "a", "functions": [{"name": "f"}, {"name": "f"}]"#,
        r#""prompt": "a", "tool_choice": "required""#,
        r#""prompt": "a", "response_format": {"type": "json_schema"}"#,
        r#""prompt": "a", "reasoning_effort": "enormous""#,
        r#""prompt": "a", "chat_template_kwargs": {"messages": []}"#,
    ] {
        let error = text_request("m", format!("{{{parameters}}}").as_bytes()).err();
        let error = error.unwrap_or_else(|| panic!("accepted: {parameters}"));
        let parameter = error.parameter.as_deref().unwrap_or("-");
        table += &format!("{{{parameters}}}\n    {} {parameter}: {}\n", error.code.name(), error.message);
    }
    insta::assert_snapshot!(table);
}
