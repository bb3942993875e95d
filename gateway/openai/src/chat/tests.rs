//! Tests of chat completions: requests as a table, answers of all shapes as golden files.

use super::*;
use crate::head::AnswerHead;
use crate::scenarios::{self, Scenario};
use omni_generation::{Chat, Content, GenerationRequest, Prompt, ResponseFormat, ToolChoice};

const MINIMAL: &str = r#"{"model": "m", "messages": [{"role": "user", "content": "hi"}]}"#;
const TOOL: &str = r#"{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}"#;

/// The minimal body with further parameters.
fn with(parameters: &str) -> String {
    format!("{}, {parameters}}}", MINIMAL.strip_suffix('}').unwrap())
}

fn messages(messages: &str) -> String {
    format!(r#"{{"model": "m", "messages": [{messages}]}}"#)
}

fn read(body: &str) -> GenerationRequest {
    chat_request(body.as_bytes()).unwrap_or_else(|error| panic!("{body}: {error}"))
}

fn chat(request: &GenerationRequest) -> &Chat {
    match request.prompts.as_slice() {
        [Prompt::Chat(chat)] => chat,
        other => panic!("{other:?}"),
    }
}

fn encoder(scenario: &Scenario) -> ChatEncoder {
    let mut request = read(MINIMAL);
    request.choices = scenario.choices;
    request.stream_usage = scenario.usage;
    request.logprobs = scenario.logprobs.then_some(1);
    ChatEncoder::new(AnswerHead { id: "1a2b".into(), created: 1_700_000_000, model: "@cf/x/\"y".into() }, &request)
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
fn a_call_of_a_named_function_ends_with_stop() {
    let tools =
        format!(r#""tools": [{TOOL}], "tool_choice": {{"type": "function", "function": {{"name": "weather"}}}}"#);
    let head = || AnswerHead { id: "1".into(), created: 1, model: "m".into() };
    let shape = scenarios::all().into_iter().find(|scenario| scenario.name == "one tool").unwrap();
    for (parameters, expected) in [(tools.as_str(), "stop"), (r#""n": 1"#, "tool_calls")] {
        let mut encoder = ChatEncoder::new(head(), &read(&with(parameters)));
        let expected = format!("\"finish_reason\":\"{expected}\"");
        assert!(shape.stream(&mut encoder).contains(&expected), "{parameters}");
        assert!(shape.whole(&mut encoder).contains(&expected), "{parameters}");
    }
}

#[test]
fn parameters_that_are_honoured() {
    let request = read(&with(
        r#""max_completion_tokens": 9, "max_tokens": 9, "min_tokens": 2, "temperature": 0.5, "top_p": 0.9, "top_k": 40,
        "min_p": 0.1, "frequency_penalty": 1, "presence_penalty": -1, "repetition_penalty": 1.5, "seed": -7,
        "logit_bias": {"5": 1.5}, "ignore_eos": true, "stop": "END", "n": 3, "logprobs": true, "top_logprobs": 2,
        "stream": true, "stream_options": {"include_usage": true}, "reasoning_effort": "low",
        "chat_template_kwargs": {"z": 1, "a": {"y": 2, "b": 3}}, "documents": [{"text": "d"}], "prompt_cache_key": "k",
        "user": "u", "response_format": {"type": "json_object"}"#,
    ));
    insta::assert_debug_snapshot!(request);
}

#[test]
fn parameters_without_effect() {
    for parameter in [
        r#""store": false"#,
        r#""metadata": {"a": "b"}"#,
        r#""service_tier": "auto""#,
        r#""service_tier": "default""#,
        r#""safety_identifier": "s""#,
        r#""modalities": ["text"]"#,
        r#""prompt_cache_retention": "in_memory""#,
        r#""verbosity": "medium""#,
        r#""stream": true, "stream_options": {"include_obfuscation": true}"#,
        r#""n": null, "tools": null, "tool_choice": null, "stop": null, "response_format": null, "logit_bias": null"#,
        r#""tools": [], "parallel_tool_calls": false"#,
        r#""add_generation_prompt": true"#,
        r#""top_k": -1"#,
    ] {
        let (with, without) = (read(&with(parameter)), read(MINIMAL));
        assert_eq!(with.sampling, without.sampling, "{parameter}");
        assert_eq!(with.session, None, "{parameter}");
    }
}

fn refused_parameters() -> Vec<String> {
    let named = |name: &str| {
        format!(r#""tools": [{TOOL}], "tool_choice": {{"type": "function", "function": {{"name": "{name}"}}}}"#)
    };
    vec![
        "".to_owned(),
        "[]".to_owned(),
        r#"{"messages": []}"#.to_owned(),
        messages(""),
        with(r#""temprature": 1"#),
        with(r#""foo": 1"#),
        with(r#""temperature": 2.5"#),
        with(r#""temperature": "hot""#),
        with(r#""top_p": 0"#),
        with(r#""n": 0"#),
        with(r#""n": 17"#),
        with(r#""max_tokens": 0"#),
        with(r#""max_tokens": 5, "max_completion_tokens": 6"#),
        with(r#""min_tokens": 6, "max_tokens": 5"#),
        with(r#""logit_bias": {"the": 1}"#),
        with(r#""logit_bias": {"01": 7}"#),
        with(r#""logit_bias": {"1": 5, "1": 9}"#),
        with(r#""logit_bias": {"7": 200}"#),
        with(r#""stop": [""]"#),
        with(r#""stop": [1]"#),
        with(&format!(r#""stop": [{}]"#, vec!["\"a\""; 17].join(","))),
        with(r#""top_logprobs": 2"#),
        with(r#""logprobs": true, "top_logprobs": 21"#),
        with(r#""stream_options": {"include_usage": true}"#),
        with(r#""stream": true, "stream_options": {"continuous_usage_stats": true}"#),
        with(r#""store": true"#),
        with(r#""service_tier": "flex""#),
        with(r#""modalities": ["text", "audio"]"#),
        with(r#""verbosity": "low""#),
        with(r#""audio": {"voice": "alloy", "format": "wav"}"#),
        with(r#""prediction": {}"#),
        with(r#""web_search_options": {}"#),
        with(r#""functions": []"#),
        with(r#""function_call": "auto""#),
        with(r#""chat_template": "{{ x }}""#),
        with(r#""chat_template_kwargs": {"chat_template": "{{ x }}"}"#),
        with(r#""guided_json": {}"#),
        with(r#""reasoning_effort": "enormous""#),
        with(r#""continue_final_message": true"#),
        with(r#""add_generation_prompt": false"#),
        with(r#""response_format": {"type": "xml"}"#),
        with(r#""response_format": {"type": "json_schema"}"#),
        with(r#""response_format": {"type": "json_schema", "json_schema": [1]}"#),
        with(r#""response_format": {"type": "text", "json_schema": {}}"#),
        with(r#""tool_choice": "auto""#),
        with(&named("wether")),
        with(&format!(r#""tools": [{TOOL}], "tool_choice": "always""#)),
        with(&format!(r#""tools": [{TOOL}], "tool_choice": {{"type": "allowed_tools", "allowed_tools": {{}}}}"#)),
        with(&format!(r#""tools": [{TOOL}, {TOOL}]"#)),
        with(r#""tools": [{"type": "custom", "custom": {"name": "x"}}]"#),
        with(r#""tools": [{"type": "function"}]"#),
        with(r#""tools": [{"type": "function", "function": {"name": "a b"}}]"#),
        with(r#""tools": [{"type": "function", "function": {"name": "a", "parameters": "{}"}}]"#),
    ]
}

fn refused_messages() -> Vec<String> {
    let user = r#"{"role": "user", "content": "hi"}"#;
    vec![
        messages(r#"{"content": "hi"}"#),
        messages(r#"{"role": "bot", "content": "hi"}"#),
        messages(r#"{"role": "function", "name": "f", "content": "hi"}"#),
        messages(r#"{"role": "user", "content": null}"#),
        messages(r#"{"role": "user", "content": 7}"#),
        messages(r#"{"role": "user", "content": []}"#),
        messages(r#"{"role": "user", "content": "a", "content": "b"}"#),
        messages(r#"{"role": "user", "content": [{"type": "file", "file": {}}]}"#),
        messages(r#"{"role": "user", "content": [{"type": "text"}]}"#),
        messages(r#"{"role": "user", "content": [{"type": "text", "txt": "a"}]}"#),
        messages(r#"{"role": "user", "content": [{"type": "poem", "text": "a"}]}"#),
        messages(r#"{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}]}"#),
        messages(
            r#"{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://x/y", "detail": "4k"}}]}"#,
        ),
        messages(r#"{"role": "system", "content": [{"type": "image_url", "image_url": {"url": "https://x/y"}}]}"#),
        messages(r#"{"role": "user", "content": "a", "tool_calls": [{"function": {"name": "f"}}]}"#),
        messages(r#"{"role": "assistant", "content": "a", "function_call": {"name": "f"}}"#),
        messages(r#"{"role": "assistant", "audio": {"id": "a"}}"#),
        messages(&format!(r#"{user}, {{"role": "assistant", "tool_calls": [{{"type": "custom", "id": "1"}}]}}"#)),
        messages(&format!(r#"{user}, {{"role": "assistant", "tool_calls": [{{"id": "1"}}]}}"#)),
        messages(&format!(
            r#"{user}, {{"role": "assistant", "tool_calls": [{{"function": {{"name": "f", "arguments": 7}}}}]}}"#
        )),
    ]
}

#[test]
fn refused_requests() {
    let mut table = String::new();
    for body in refused_parameters().into_iter().chain(refused_messages()) {
        let error = chat_request(body.as_bytes()).err().unwrap_or_else(|| panic!("accepted: {body}"));
        let body = body.replace(MINIMAL.strip_suffix('}').unwrap(), "{…").replace(&r#""a","#.repeat(15), "…");
        let parameter = error.parameter.as_deref().unwrap_or("-");
        table += &format!("{body}\n    {} {parameter}: {}\n", error.code.name(), error.message);
    }
    insta::assert_snapshot!(table);
}

#[test]
fn messages_of_all_roles() {
    let request = read(&messages(
        r#"{"role": "developer", "content": [{"type": "text", "text": "be short"}]},
        {"role": "user", "name": "ann", "content": [{"type": "text", "text": "what?", "cache_control": {"type": "ephemeral"}},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA", "detail": "auto"}},
            {"type": "image_url", "image_url": {"url": "https://x.example/a.png"}},
            {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}]},
        {"role": "assistant", "content": null, "refusal": null, "audio": null, "function_call": null, "annotations": [],
            "reasoning_content": "hm", "reasoning": "hm", "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{\"b\": 1, \"a\": 2}"}},
            {"id": "c2", "type": "function", "function": {"name": "g", "arguments": {"b": 1, "a": 2}}},
            {"name": "h"}]},
        {"role": "tool", "tool_call_id": "c1", "name": "f", "content": "sun"},
        {"role": "assistant", "refusal": "no", "weight": 1, "nothing": null}"#,
    ));
    insta::assert_debug_snapshot!(chat(&request).messages);
}

#[test]
fn schemas_keep_the_order_of_their_keys() {
    let schema = r#"{"type": "object", "properties": {"z": {}, "a": {}}, "required": ["z"]}"#;
    let wrapped = format!(r#"{{"name": "reply", "strict": true, "schema": {schema}}}"#);
    for (sent, expected) in [(wrapped.as_str(), "reply"), (schema, "response")] {
        let format = format!(r#""response_format": {{"type": "json_schema", "json_schema": {sent}}}"#);
        match read(&with(&format)).format {
            ResponseFormat::JsonSchema { name, schema: read } => {
                assert_eq!((name.as_str(), read.get()), (expected, schema));
            }
            other => panic!("{other:?}"),
        }
    }
    let tool = format!(r#"{{"function": {{"parameters": {schema}, "name": "f"}}, "type": "function"}}"#);
    let request = read(&with(&format!(r#""tools": [{tool}]"#)));
    let [read] = chat(&request).tools.as_slice() else { panic!("{request:?}") };
    assert_eq!(read.definition.get(), tool);
    assert_eq!(read.parameters.as_ref().unwrap().get(), schema);
}

#[test]
fn functions_alone_are_wrapped_where_they_may_be() {
    let object = |text: &str| serde_json::from_str(text).unwrap();
    let flat = r#"{"type":"function","name":"f","parameters":{"b":1,"a":2}}"#;
    let tools = read_tools(vec![object(flat)], ToolForm::Flat, "tools").unwrap();
    let wrapped = r#"{"type": "function", "function": {"name": "f", "parameters": {"b":1,"a":2}}}"#;
    assert_eq!(tools[0].definition.get(), wrapped);
    assert_eq!(tools[0].parameters.as_ref().unwrap().get(), r#"{"b":1,"a":2}"#);
    let untyped = r#"{"function": {"name": "g"}}"#;
    let tools = read_tools(vec![object(r#"{"name": "f"}"#), object(untyped)], ToolForm::Any, "tools").unwrap();
    assert_eq!(tools[0].definition.get(), r#"{"type": "function", "function": {"name": "f"}}"#);
    assert_eq!(tools[1].definition.get(), r#"{"type": "function", "function": {"name": "g"}}"#);
    let twice = object(r#"{"name": "f", "x": 1, "x": 2}"#);
    let error = read_tools(vec![twice], ToolForm::Any, "tools").unwrap_err();
    assert_eq!(error.message, "`tools[0]`: a member appears twice");
    assert!(read_tools(vec![object(flat)], ToolForm::Wrapped, "tools").is_err());
    assert!(read_tools(vec![object(untyped)], ToolForm::Flat, "tools").is_err());
}

#[test]
fn choices_of_tools() {
    for (choice, expected) in [
        ("null", ToolChoice::Auto),
        (r#""auto""#, ToolChoice::Auto),
        (r#""none""#, ToolChoice::None),
        (r#""required""#, ToolChoice::Required),
        (r#"{"type": "function", "function": {"name": "weather"}}"#, ToolChoice::Named("weather".into())),
        (r#"{"type": "function", "name": "weather"}"#, ToolChoice::Named("weather".into())),
    ] {
        let request = read(&with(&format!(r#""tools": [{TOOL}], "tool_choice": {choice}"#)));
        assert_eq!(chat(&request).tool_choice, expected);
    }
}

#[test]
fn a_continued_message_is_the_assistants() {
    let body = r#"{"model": "m", "continue_final_message": true, "add_generation_prompt": false,
        "messages": [{"role": "user", "content": "1"}, {"role": "assistant", "content": "2"}]}"#;
    let request = read(body);
    assert!(chat(&request).template.continue_final_message);
    assert_eq!(chat(&request).messages[1].content, Content::Text("2".into()));
}
