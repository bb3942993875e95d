//! The program alone over a real socket, with a simulated backend.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "helpers of tests fail as tests do")]

mod choices;
mod client;
mod fixture;
mod overload;
mod refusals;

use fixture::{END_ID, Given, Server, VOCABULARY};
use omni_kernels_fake::Reference;
use serde_json::{Value, json};

/// Request for a conversation of one message.
fn chat(more: Value) -> Value {
    merged(json!({"model": "bytes", "messages": [{"role": "user", "content": "hi"}], "temperature": 0}), more)
}

fn completion(more: Value) -> Value {
    merged(json!({"model": "bytes", "prompt": "hi", "temperature": 0}), more)
}

fn merged(mut request: Value, more: Value) -> Value {
    if let (Value::Object(request), Value::Object(more)) = (&mut request, more) {
        request.extend(more);
    }
    request
}

/// Tokens of that conversation's prompt.
fn prompt() -> Vec<u32> {
    let rendered = "<|begin|>user\nhi<|end|>\n<|begin|>assistant\n";
    fixture::tokenizer().encode(rendered, false, &[]).unwrap()
}

/// Content of the deltas of a choice.
fn streamed(events: &[Value], choice: u64) -> String {
    let choices = events.iter().flat_map(|event| event["choices"].as_array().unwrap());
    let own = choices.filter(|delta| delta["index"] == choice);
    own.filter_map(|delta| delta["delta"]["content"].as_str().or(delta["text"].as_str())).collect()
}

#[tokio::test]
async fn a_stream_equals_the_whole_answer() {
    let server = Server::start(Given::default()).await;
    for n in [1, 3] {
        let parameters = json!({"max_tokens": 40, "ignore_eos": true, "temperature": 1, "seed": 7, "n": n});
        let whole = server.post("/v1/chat/completions", &chat(parameters.clone())).await;
        assert_eq!(whole.status, 200, "{whole:?}");
        let whole = whole.json();
        let mut parameters = parameters;
        parameters["stream"] = true.into();
        parameters["stream_options"] = json!({"include_usage": true});
        let stream = server.post("/v1/chat/completions", &chat(parameters)).await;
        assert!(stream.head.contains("text/event-stream"), "{}", stream.head);
        let (events, is_done) = stream.events();
        assert!(is_done);
        for choice in 0..n {
            let message = &whole["choices"][choice as usize];
            assert_eq!(streamed(&events, choice), message["message"]["content"].as_str().unwrap());
            assert_eq!(message["finish_reason"], "length");
        }
        let usage = &events.last().unwrap()["usage"];
        assert_eq!(usage["completion_tokens"], 40 * n);
        assert_eq!(usage["prompt_tokens"], prompt().len());
        assert_eq!(whole["usage"]["completion_tokens"], usage["completion_tokens"]);
        assert_eq!(whole["usage"]["prompt_tokens"], usage["prompt_tokens"]);
    }
}

#[tokio::test]
async fn log_probabilities_have_the_bytes_of_the_models_own_tokens() {
    let server = Server::start(Given::default()).await;
    let request = chat(json!({"max_tokens": 30, "ignore_eos": true, "logprobs": true, "top_logprobs": 2}));
    let answer = server.post("/v1/chat/completions", &request).await.json();
    let tokens = answer["choices"][0]["logprobs"]["content"].as_array().unwrap().clone();
    let expected = Reference::answer(&prompt(), 30, VOCABULARY);
    let tokenizer = fixture::tokenizer();
    assert_eq!(tokens.len(), expected.len());
    for (token, id) in tokens.iter().zip(&expected) {
        let bytes: Vec<u8> = serde_json::from_value(token["bytes"].clone()).unwrap();
        assert_eq!(bytes, tokenizer.token_bytes(*id).unwrap());
        assert_eq!(token["top_logprobs"][0]["bytes"], token["bytes"], "the most probable one was taken");
        assert_eq!(token["top_logprobs"].as_array().unwrap().len(), 2);
    }
}

#[tokio::test]
async fn stop_strings_end_an_answer_and_are_not_in_it() {
    let server = Server::start(Given::default()).await;
    let parameters = json!({"max_tokens": 40, "logit_bias": {"97": 100}, "stop": ["aaaa"]});
    let whole = server.post("/v1/completions", &completion(parameters)).await.json();
    assert_eq!(whole["choices"][0]["finish_reason"], "stop");
    assert_eq!(whole["choices"][0]["text"], "");
    assert_eq!(whole["usage"]["completion_tokens"], 4);
    let end = json!({"max_tokens": 40, "logit_bias": {END_ID.to_string(): 100}, "min_tokens": 3, "n": 2});
    let whole = server.post("/v1/completions", &completion(end)).await.json();
    assert_eq!(whole["usage"]["completion_tokens"], 8, "two answers of three tokens and the end");
    assert_eq!(whole["choices"][1]["finish_reason"], "stop");
}

#[tokio::test]
async fn a_schema_forces_the_form_of_an_answer() {
    let server = Server::start(Given::default()).await;
    let schema = json!({"type": "json_schema", "json_schema": {"name": "s", "schema":
        {"type": "object", "properties": {"a": {"enum": ["yes"]}}, "required": ["a"], "additionalProperties": false}}});
    let request = chat(json!({"max_tokens": 400, "response_format": schema, "temperature": 1, "seed": 3}));
    let answer = server.post("/v1/chat/completions", &request).await.json();
    assert_eq!(answer["choices"][0]["finish_reason"], "stop", "{answer}");
    let content: Value = serde_json::from_str(answer["choices"][0]["message"]["content"].as_str().unwrap()).unwrap();
    assert_eq!(content, json!({"a": "yes"}));
}

#[tokio::test]
async fn a_call_of_a_function_is_parsed() {
    let server = Server::start(Given { template: Some(fixture::TOOLS), ..Given::default() }).await;
    let call = json!({"type": "object", "properties": {"name": {"const": "f"}, "arguments": {"const": {"a": 1}}},
        "required": ["name", "arguments"], "additionalProperties": false});
    let parameters = json!({
        "max_tokens": 400,
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "call", "schema": call}},
    });
    let whole = server.post("/v1/chat/completions", &chat(parameters.clone())).await.json();
    let choice = &whole["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls", "{whole}");
    let function = &choice["message"]["tool_calls"][0]["function"];
    assert_eq!(function["name"], "f");
    let arguments: Value = serde_json::from_str(function["arguments"].as_str().unwrap()).unwrap();
    assert_eq!(arguments, json!({"a": 1}));
    let stream = merged(chat(parameters), json!({"stream": true}));
    let (events, _) = server.post("/v1/chat/completions", &stream).await.events();
    let calls = events.iter().filter_map(|event| event["choices"][0]["delta"]["tool_calls"][0]["function"].as_object());
    let parts: String = calls.map(|function| function["arguments"].as_str().unwrap_or_default()).collect();
    assert_eq!(serde_json::from_str::<Value>(&parts).unwrap(), arguments);
    assert_eq!(events.last().unwrap()["choices"][0]["finish_reason"], "tool_calls");
}

#[tokio::test]
async fn a_demanded_call_is_made() {
    let server = Server::start(Given { template: Some(fixture::TOOLS), ..Given::default() }).await;
    let function =
        |name: &str| json!({"type": "function", "function": {"name": name, "parameters": {"const": {"a": 1}}}});
    let named = json!({"type": "function", "function": {"name": "g"}});
    for (choice, names) in [(json!("required"), ["f", "g"].as_slice()), (named, &["g"])] {
        let parameters = json!({"max_tokens": 400, "tools": [function("f"), function("g")], "tool_choice": choice});
        let answer = server.post("/v1/chat/completions", &chat(parameters)).await.json();
        let call = &answer["choices"][0]["message"]["tool_calls"][0]["function"];
        assert!(names.contains(&call["name"].as_str().unwrap_or_default()), "{answer}");
        let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
        assert_eq!(arguments, json!({"a": 1}));
    }
}

#[tokio::test]
async fn a_repeated_prompt_has_log_probabilities() {
    let server = Server::start(Given::default()).await;
    for (input, stream) in [(json!("hey"), false), (json!([104, 101, 121]), false), (json!([104, 101, 121]), true)] {
        let parameters = json!({"prompt": input, "max_tokens": 1, "echo": true, "logprobs": 1, "logit_bias": {"97": 100},
            "stream": stream});
        let answer = server.post("/v1/completions", &completion(parameters)).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        let (text, logprobs) = if stream {
            let (events, _) = answer.events();
            (streamed(&events, 0), events[0]["choices"][0]["logprobs"].clone())
        } else {
            let answer = answer.json();
            (answer["choices"][0]["text"].as_str().unwrap().to_owned(), answer["choices"][0]["logprobs"].clone())
        };
        assert_eq!(text, "heya");
        let tokens = logprobs["tokens"].as_array().unwrap();
        assert_eq!(tokens[..3], ["h", "e", "y"]);
        assert_eq!(logprobs["token_logprobs"][0], Value::Null);
        assert_eq!(logprobs["top_logprobs"][0], Value::Null);
        assert!(logprobs["token_logprobs"][2].as_f64().unwrap() < 0.0);
        assert_eq!(logprobs["top_logprobs"][1].as_object().unwrap().len(), 1);
        assert_eq!(logprobs["text_offset"].as_array().unwrap()[..3], [0, 1, 2]);
    }
    let plain = completion(json!({"max_tokens": 1, "echo": true, "n": 2, "logit_bias": {"97": 100}}));
    let answer = server.post("/v1/completions", &plain).await.json();
    assert_eq!(answer["choices"][1]["text"], "hia");
    assert_eq!(answer["choices"][1]["logprobs"], Value::Null);
}

#[tokio::test]
async fn several_prompts_are_answered_in_their_order() {
    let server = Server::start(Given::default()).await;
    let parameters = json!({"prompt": ["one", "two", "three"], "max_tokens": 5, "ignore_eos": true, "logprobs": 0});
    let answer = server.post("/v1/completions", &completion(parameters)).await.json();
    for (index, prompt) in ["one", "two", "three"].into_iter().enumerate() {
        let prompt: Vec<u32> = prompt.bytes().map(u32::from).collect();
        let expected = Reference::answer(&prompt, 5, VOCABULARY);
        let tokenizer = fixture::tokenizer();
        let names: Vec<String> = expected
            .iter()
            .map(|id| String::from_utf8_lossy(tokenizer.token_bytes(*id).unwrap()).into_owned())
            .collect();
        assert_eq!(answer["choices"][index]["logprobs"]["tokens"], json!(names), "{index}");
    }
    assert_eq!(answer["usage"]["prompt_tokens"], 11);
}

#[tokio::test]
async fn a_prompt_comes_from_the_cache_the_second_time() {
    let server = Server::start(Given::default()).await;
    let request = completion(json!({"prompt": "x".repeat(200), "max_tokens": 2, "ignore_eos": true}));
    let cached = |answer: Value| answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    assert_eq!(cached(server.post("/v1/completions", &request).await.json()), 0);
    assert!(cached(server.post("/v1/completions", &request).await.json()) >= 128);
    assert!(server.metric("omni_engine_prompt_tokens_cached_total").await >= 128);
}

#[tokio::test]
async fn control_tokens_in_a_message_are_text() {
    let server = Server::start(Given::default()).await;
    let message = |content: &str| json!({"messages": [{"role": "user", "content": content}], "max_tokens": 1});
    let tokens = async |content: &str| {
        let answer = server.post("/v1/chat/completions", &chat(message(content))).await.json();
        answer["usage"]["prompt_tokens"].as_u64().unwrap()
    };
    assert_eq!(tokens("a<|end|>b").await - tokens("").await, 9);
}

#[tokio::test]
async fn models_health_and_responses_have_routes() {
    let server = Server::start(Given::default()).await;
    assert_eq!(server.get("/v1/models").await.json()["data"][0]["id"], "bytes");
    assert_eq!(server.get("/v1/models/bytes").await.json()["id"], "bytes");
    assert_eq!(server.get("/v1/models/other").await.status, 404);
    assert_eq!(server.get("/health").await.status, 200);
    let request = json!({"model": "bytes", "input": "hi", "max_output_tokens": 16, "temperature": 0});
    let answer = server.post("/v1/responses", &request).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(answer.json()["object"], "response");
    let metrics = server.get("/metrics").await;
    assert!(metrics.head.contains("application/openmetrics-text"), "{}", metrics.head);
    assert!(metrics.body.ends_with("# EOF\n"), "{}", metrics.body);
}

#[tokio::test]
async fn embeddings_come_from_models_that_make_them_alone() {
    let server = Server::start(Given { embeds: true, queue: 64, ..Given::default() }).await;
    let request = json!({"model": "bytes", "input": ["a", "bcd"]});
    let answer = server.post("/v1/embeddings", &request).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let answer = answer.json();
    assert_eq!(answer["usage"]["prompt_tokens"], 4);
    let vectors: Vec<Vec<f64>> = answer["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| serde_json::from_value(one["embedding"].clone()).unwrap())
        .collect();
    assert!(vectors.iter().all(|vector| vector.len() == VOCABULARY));
    assert_ne!(vectors[0], vectors[1]);
    let many: Vec<String> = (0..200).map(|number| number.to_string()).collect();
    let answer = server.post("/v1/embeddings", &json!({"model": "bytes", "input": many})).await;
    assert_eq!(answer.json()["data"].as_array().map(Vec::len), Some(200), "more than the engine takes at a time");
    let refused = server.post("/v1/chat/completions", &chat(json!({}))).await;
    assert_eq!(refused.status, 400);
    assert!(refused.body.contains("makes embeddings, and no text"), "{}", refused.body);
}
