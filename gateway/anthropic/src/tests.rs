//! Tests of messages: requests as a table, answers of all shapes as golden files.

#[path = "../../codec/tests/scenarios/mod.rs"]
mod scenarios;

use super::*;
use omni_generation::{Chat, Content, GenerationRequest, Part, Prompt, Role, ToolChoice};
use scenarios::Scenario;

const MINIMAL: &str = r#"{"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}"#;
const TOOL: &str = r#"{"name": "weather", "description": "of a city", "input_schema": {"type": "object", "a": 1}}"#;

fn with(parameters: &str) -> String {
    format!("{}, {parameters}}}", MINIMAL.strip_suffix('}').unwrap())
}

fn messages(messages: &str) -> String {
    format!(r#"{{"model": "m", "max_tokens": 2000, "messages": [{messages}]}}"#)
}

fn read(body: &str) -> GenerationRequest {
    message_request(body.as_bytes()).unwrap_or_else(|error| panic!("{body}: {error}"))
}

fn chat(request: &GenerationRequest) -> &Chat {
    match request.prompts.as_slice() {
        [Prompt::Chat(chat)] => chat,
        other => panic!("{other:?}"),
    }
}

fn encoder(_: &Scenario) -> AnthropicEncoder {
    AnthropicEncoder::new(AnswerHead { id: "1a2b".into(), model: "@cf/x/\"y".into() }, 12)
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
fn arguments_that_are_no_object_become_a_member_of_one() {
    use omni_generation::{Choice, Completion, ResponseEncoder, ToolCall};
    for (arguments, expected) in [
        (r#"{"b": 1, "a": 2}"#, r#""input":{"b": 1, "a": 2}"#),
        ("", r#""input":{}"#),
        (r#"{"a": "#, r#""input":{"INVALID_JSON":"{\"a\": "}"#),
        ("[1]", r#""input":{"INVALID_JSON":"[1]"}"#),
    ] {
        let call = ToolCall { id: Some("c".into()), name: "f".into(), arguments: arguments.into() };
        let choice = Choice { calls: vec![call], ..Choice::default() };
        let completion = Completion { choices: vec![choice], ..Completion::default() };
        let mut out = bytes::BytesMut::new();
        AnthropicEncoder::new(AnswerHead { id: "1".into(), model: "m".into() }, 0).whole(&completion, &mut out);
        let text = String::from_utf8(out.to_vec()).unwrap();
        assert!(text.contains(expected), "{text}");
    }
}

#[test]
fn parameters_that_are_honoured() {
    let request = read(&format!(
        r#"{{"model": "m", "max_tokens": 4096, "temperature": 1, "top_p": 0.5, "top_k": 3, "stop_sequences": ["END"],
        "stream": true, "metadata": {{"user_id": "u"}}, "thinking": {{"type": "enabled", "budget_tokens": 1024}},
        "output_config": {{"effort": "low", "format": {{"type": "json_schema", "schema": {{"b": 1, "a": 2}}}}}},
        "system": [{{"type": "text", "text": "be", "cache_control": {{"type": "ephemeral"}}}}, {{"type": "text", "text": "short"}}],
        "tools": [{TOOL}], "tool_choice": {{"type": "any", "disable_parallel_tool_use": true}},
        "service_tier": "auto", "context_management": {{"edits": []}}, "cache_control": null,
        "messages": [{{"role": "user", "content": "hi"}}]}}"#
    ));
    insta::assert_debug_snapshot!(request);
}

#[test]
fn messages_of_all_blocks() {
    let request = read(&messages(
        r#"{"role": "user", "content": [{"type": "text", "text": "what?", "cache_control": {"type": "ephemeral"}},
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
            {"type": "image", "source": {"type": "url", "url": "https://x.example/a.png"}},
            {"type": "document", "title": "T", "source": {"type": "text", "media_type": "text/plain", "data": "D"}}]},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "s"},
            {"type": "text", "text": "I look", "citations": null},
            {"type": "tool_use", "id": "t1", "name": "weather", "input": {"b": 1, "a": 2}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "sun"},
            {"type": "tool_result", "tool_use_id": "t2", "content": [{"type": "text", "text": "rain"}], "is_error": true},
            {"type": "tool_result", "tool_use_id": "t3"},
            {"type": "text", "text": "and?"}]},
        {"role": "assistant", "content": "It"}"#,
    ));
    assert!(chat(&request).template.continue_final_message, "an answer continues the assistant's last message");
    insta::assert_debug_snapshot!(chat(&request).messages);
}

#[test]
fn messages_of_one_role_are_one_turn() {
    let request = read(&messages(
        r#"{"role": "user", "content": "one"}, {"role": "user", "content": [{"type": "text", "text": "two"}]},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "text", "text": "a"}]},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "!", "signature": "s"},
            {"type": "tool_use", "id": "t1", "name": "weather", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "sun"}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t2", "content": "rain"}]},
        {"role": "user", "content": "and?"}"#,
    ));
    let turns = &chat(&request).messages;
    let text = |text: &str| Part::Text(text.to_owned());
    let [user, assistant, sun, rain, last] = turns.as_slice() else { panic!("{turns:#?}") };
    assert_eq!(user.content, Content::Parts(vec![text("one"), text("two")]));
    assert_eq!((&assistant.content, assistant.tool_calls.len()), (&Content::Text("a".to_owned()), 1));
    assert_eq!(assistant.reasoning.as_deref(), Some("hm!"));
    assert_eq!([sun.role, rain.role, last.role], [Role::Tool, Role::Tool, Role::User], "results are not one");
}

#[test]
fn choices_of_tools() {
    for (choice, expected, parallel) in [
        (r#"{"type": "auto"}"#, ToolChoice::Auto, true),
        (r#"{"type": "any", "disable_parallel_tool_use": false}"#, ToolChoice::Required, true),
        (r#"{"type": "none"}"#, ToolChoice::None, true),
        (
            r#"{"type": "tool", "name": "weather", "disable_parallel_tool_use": true}"#,
            ToolChoice::Named("weather".into()),
            false,
        ),
    ] {
        let request = read(&with(&format!(r#""tools": [{TOOL}], "tool_choice": {choice}"#)));
        assert_eq!((&chat(&request).tool_choice, chat(&request).parallel_tool_calls), (&expected, parallel));
    }
}

#[test]
fn disabled_reasoning_is_an_effort_of_none() {
    for (thinking, expected) in [("disabled", Some("none")), ("adaptive", None)] {
        let request = read(&with(&format!(r#""thinking": {{"type": "{thinking}"}}"#)));
        assert_eq!(chat(&request).template.reasoning_effort.as_deref(), expected);
        assert!(chat(&request).template.variables.is_empty());
    }
}

#[test]
fn tools_have_the_form_that_templates_print() {
    let request = read(&with(&format!(r#""tools": [{TOOL}]"#)));
    let [tool] = chat(&request).tools.as_slice() else { panic!("{request:?}") };
    let function = r#"{"name": "weather", "description": "of a city", "parameters": {"type": "object", "a": 1}}"#;
    assert_eq!(tool.definition.get(), format!(r#"{{"type": "function", "function": {function}}}"#));
}

#[test]
fn the_count_of_tokens_needs_no_limit() {
    let body = r#"{"model": "m", "messages": [{"role": "user", "content": "hi"}]}"#;
    assert_eq!(message_request(body.as_bytes()).unwrap_err().message, "`max_tokens` is missing");
    assert_eq!(count_request(body.as_bytes()).unwrap().sampling.max_tokens, None);
    assert_eq!(token_count_answer(7), r#"{"input_tokens":7}"#);
}

#[test]
fn refused_requests() {
    let bodies = [
        "{".to_owned(),
        r#"{"model": "m", "max_tokens": 1}"#.to_owned(),
        messages(""),
        with(r#""temperature": 1.5"#),
        with(r#""top_k": -2"#),
        with(r#""stop_sequences": "END""#),
        with(r#""stop": ["END"]"#),
        with(r#""mcp_servers": []"#),
        with(r#""container": "c""#),
        with(r#""service_tier": "batch""#),
        with(r#""context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}"#),
        with(r#""metadata": {"team": "x"}"#),
        with(r#""system": [{"type": "image", "text": ""}]"#),
        with(r#""thinking": {"type": "enabled"}"#),
        with(r#""thinking": {"type": "enabled", "budget_tokens": 2000}"#),
        with(r#""thinking": {"type": "enabled", "budget_tokens": 1}"#),
        with(r#""thinking": {"type": "deep"}"#),
        with(r#""thinking": {"type": "adaptive", "display": "omitted"}"#),
        with(r#""output_config": {"effort": "enormous"}"#),
        with(r#""output_config": {"format": {"type": "xml", "schema": {}}}"#),
        with(r#""tools": [{"type": "web_search_20250305", "name": "web_search"}]"#),
        with(r#""tools": [{"type": "bash_20250124", "name": "bash"}]"#),
        with(r#""tools": [{"name": "a b", "input_schema": {}}]"#),
        with(r#""tools": [{"name": "a"}]"#),
        with(r#""tools": [{"name": "a", "input_schema": {}, "defer_loading": true}]"#),
        with(&format!(r#""tools": [{TOOL}, {TOOL}]"#)),
        with(r#""tool_choice": {"type": "any"}"#),
        with(&format!(r#""tools": [{TOOL}], "tool_choice": {{"type": "tool", "name": "x"}}"#)),
        with(&format!(r#""tools": [{TOOL}], "tool_choice": {{"type": "tool"}}"#)),
        with(&format!(r#""tools": [{TOOL}], "tool_choice": {{"type": "some"}}"#)),
        messages(r#"{"role": "system", "content": "hi"}"#),
        messages(r#"{"role": "user", "content": null}"#),
        messages(r#"{"role": "user", "content": []}"#),
        messages(r#"{"role": "user", "content": [{"type": "text"}]}"#),
        messages(r#"{"role": "user", "content": [{"type": "redacted_thinking", "data": "x"}]}"#),
        messages(r#"{"role": "user", "content": [{"type": "search_result"}]}"#),
        messages(r#"{"role": "user", "content": [{"type": "image", "source": {"type": "file", "url": ""}}]}"#),
        messages(r#"{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "file:///x"}}]}"#),
        messages(
            r#"{"role": "user", "content": [{"type": "image", "source": {"type": "base64", "media_type": "image/bmp", "data": ""}}]}"#,
        ),
        messages(r#"{"role": "user", "content": [{"type": "document", "source": {"type": "base64", "data": ""}}]}"#),
        messages(r#"{"role": "user", "content": [{"type": "tool_use", "id": "1", "name": "f", "input": {}}]}"#),
        messages(r#"{"role": "assistant", "content": [{"type": "tool_result", "tool_use_id": "1"}]}"#),
        messages(r#"{"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "f", "input": "{}"}]}"#),
        messages(r#"{"role": "user", "content": [{"type": "tool_result", "content": "x"}]}"#),
    ];
    let mut table = String::new();
    for body in bodies {
        let error = message_request(body.as_bytes()).err().unwrap_or_else(|| panic!("accepted: {body}"));
        let body = body.replace(MINIMAL.strip_suffix('}').unwrap(), "{…");
        let parameter = error.parameter.as_deref().unwrap_or("-");
        table += &format!("{body}\n    {} {parameter}: {}\n", error.code.name(), error.message);
    }
    insta::assert_snapshot!(table);
}
