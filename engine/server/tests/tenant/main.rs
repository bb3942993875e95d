//! The engine under a worker and a scheduler, which the tests play, with a small model on the processor.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed step of a test is a failed test")]

mod peer;
#[path = "../shared/tiny.rs"]
mod tiny;

use omni_engine_protocol::control::{FromEngine, HandlerMode, PERMANENT_FAILURE};
use omni_engine_protocol::frame::{CONTEXT_LENGTH, ErrorBody, Kind, RequestKind, flags};
use omni_engine_protocol::generation::{FinishReason, GenerationEvent};
use omni_engine_protocol::task::TokenCount;
use peer::{Answer, Engine};
use serde_json::json;

fn text(answer: &Answer) -> String {
    let bytes: Vec<u8> = answer
        .chunks
        .iter()
        .filter(|(content, _)| *content == flags::TEXT)
        .flat_map(|(_, bytes)| bytes.clone())
        .collect();
    String::from_utf8(bytes).unwrap()
}

fn events(answer: &Answer) -> Vec<GenerationEvent> {
    let events = answer.chunks.iter().filter(|(content, _)| *content == flags::EVENT);
    events.map(|(_, bytes)| GenerationEvent::parse(bytes).unwrap()).collect()
}

fn error(answer: &Answer) -> (u16, ErrorBody) {
    assert_eq!(answer.last.header.kind, Kind::Error);
    (answer.last.header.code, serde_json::from_slice(&answer.last.payload).unwrap())
}

#[test]
fn a_prompt_is_answered_with_text_and_its_end() {
    let engine = Engine::start();
    let mut connection = engine.attach();
    let body = json!({"prompt": "hello", "sampling": {"max_tokens": 12, "temperature": 0.0, "ignore_eos": true}});
    let (first, second) =
        (connection.ask(RequestKind::TextGeneration, &body), connection.ask(RequestKind::TextGeneration, &body));
    assert_eq!(first.last.header.kind, Kind::End);
    assert_eq!(text(&first), text(&second), "greedy answers are the same, from the cache or not");
    let [GenerationEvent::Finish(finish)] = events(&first)[..] else { panic!("one event, the end: {first:?}") };
    let usage = finish.usage.unwrap();
    assert_eq!(finish.reason, Some(FinishReason::Length));
    assert_eq!((usage.prompt_tokens, usage.completion_tokens), (6, 12), "the begin, then a token for each byte");
    assert_eq!(engine.stop(connection), 0);
}

#[test]
fn log_probabilities_come_with_tokens_of_real_bytes() {
    let engine = Engine::start();
    let mut connection = engine.attach();
    let sampling = json!({"max_tokens": 8, "temperature": 0.0, "ignore_eos": true});
    let plain = connection.ask(RequestKind::TextGeneration, &json!({"prompt": "a", "sampling": sampling}));
    let answer =
        connection.ask(RequestKind::TextGeneration, &json!({"prompt": "a", "sampling": sampling, "logprobs": 3}));
    let mut bytes = Vec::new();
    for event in events(&answer) {
        let GenerationEvent::Token(token) = event else { continue };
        assert_eq!(token.top.len(), 3);
        assert!(token.logprob.unwrap() <= 0.0 && token.top[0].logprob >= token.logprob.unwrap());
        bytes.extend(token.bytes.unwrap_or_else(|| token.text.into_bytes()));
    }
    assert_eq!(String::from_utf8_lossy(&bytes), text(&plain));
    assert_eq!(engine.stop(connection), 0);
}

#[test]
fn a_prompt_is_repeated_before_its_answer() {
    let engine = Engine::start();
    let mut connection = engine.attach();
    let sampling = json!({"max_tokens": 2, "temperature": 0.0, "ignore_eos": true});
    // The second answer finds the prompt in the cache, and has its log probabilities all the same.
    for _ in 0..2 {
        let body = json!({"prompt": "hello", "sampling": sampling, "logprobs": 3, "echo": true});
        let events = events(&connection.ask(RequestKind::TextGeneration, &body));
        let prompt: Vec<_> = events
            .iter()
            .map_while(|event| match event {
                GenerationEvent::Prompt(token) => Some(token),
                _ => None,
            })
            .collect();
        let texts: Vec<&str> = prompt.iter().map(|token| token.text.as_str()).collect();
        assert_eq!(texts, ["<s>", "h", "e", "l", "l", "o"], "{events:?}");
        assert_eq!((prompt[0].logprob, prompt[0].top.len()), (None, 0));
        assert!(
            prompt[1..].iter().all(|token| token.logprob.is_some_and(|logprob| logprob < 0.0) && token.top.len() == 3)
        );
        assert!(
            matches!(events[6..], [GenerationEvent::Token(_), GenerationEvent::Token(_), GenerationEvent::Finish(_)]),
            "{events:?}"
        );
        let GenerationEvent::Finish(finish) = events[8] else { panic!("{events:?}") };
        let usage = finish.usage.unwrap();
        assert_eq!((usage.prompt_tokens, usage.completion_tokens), (6, 2));
    }
    let body = json!({"prompt_tokens": [1, 75, 2, 199], "sampling": sampling, "echo": true});
    let answer = connection.ask(RequestKind::TextGeneration, &body);
    let [.., GenerationEvent::Finish(_)] = events(&answer)[..] else { panic!("{answer:?}") };
    let prompt: Vec<_> = events(&answer)
        .into_iter()
        .filter_map(|event| match event {
            GenerationEvent::Prompt(token) => Some((token.text, token.bytes, token.id.unwrap(), token.logprob)),
            _ => None,
        })
        .collect();
    let expected = [("<s>", None, 1), ("H", None, 75), ("</s>", None, 2), ("\u{fffd}", Some(vec![0xc4]), 199)];
    assert_eq!(prompt, expected.map(|(text, bytes, id)| (text.to_owned(), bytes, id, None)));
    let plain = json!({"prompt_tokens": [1, 75, 2, 199], "sampling": sampling});
    assert_eq!(text(&answer), text(&connection.ask(RequestKind::TextGeneration, &plain)));
    let long = json!({"prompt": "x".repeat(2 * tiny::CONTEXT), "echo": true});
    let refused = connection.ask(RequestKind::TextGeneration, &long);
    assert_eq!((error(&refused).0, refused.chunks.len()), (400, 0), "nothing of it was sent");
    assert_eq!(engine.stop(connection), 0);
}

#[test]
fn control_tokens_have_names_and_no_text() {
    let engine = Engine::start();
    let mut connection = engine.attach();
    let sampling = json!({"max_tokens": 2, "temperature": 0.0, "ignore_eos": true, "logit_bias": [[1, 100.0]]});
    let body = json!({"prompt": "a", "sampling": sampling, "logprobs": 1});
    for event in &events(&connection.ask(RequestKind::TextGeneration, &body))[..2] {
        let GenerationEvent::Token(token) = event else { panic!("{event:?}") };
        assert_eq!((token.text.as_str(), token.bytes.as_deref(), token.id), ("<s>", Some(&[][..]), Some(1)));
    }
    assert_eq!(engine.stop(connection), 0);
}

#[test]
fn a_seed_gives_the_same_tokens_whatever_else_runs() {
    let engine = Engine::start();
    let mut connection = engine.attach();
    let body = |seed: i64, prompt: &str| json!({"prompt": prompt, "sampling": {"max_tokens": 20, "seed": seed, "ignore_eos": true}});
    let alone = text(&connection.ask(RequestKind::TextGeneration, &body(5, "once")));
    let ids: Vec<u64> = (0..6)
        .map(|number| {
            connection
                .send(RequestKind::TextGeneration, &if number == 3 { body(5, "once") } else { body(number, "other") })
        })
        .collect();
    let mut answers = connection.collect(&ids);
    assert_eq!(text(&answers.remove(&ids[3]).unwrap()), alone);
    assert_ne!(text(&answers[&ids[0]]), text(&answers[&ids[1]]));
    assert_eq!(engine.stop(connection), 0);
}

#[test]
fn requests_that_cannot_be_answered_are_refused_by_name() {
    let engine = Engine::start();
    let mut connection = engine.attach();
    let long = "x".repeat(2 * tiny::CONTEXT);
    let table = [
        (json!({"prompt": long}), 400, None, "tokens"),
        (json!({"prompt_tokens": [4, 5000]}), 400, Some("prompt"), "5000"),
        (json!({"prompt": "a", "sampling": {"logit_bias": [[9999, 1.0]]}}), 400, Some("logit_bias"), "9999"),
        (json!({"prompt": "a", "sampling": {"temperature": -1.0}}), 400, Some("temperature"), "-1"),
        (json!({"prompt": "a", "literals": [[0, 9]]}), 400, Some("prompt"), "9"),
        (
            json!({"prompt": "a", "response_format": {"type": "json_schema", "schema": {"type": 5}}}),
            400,
            Some("response_format"),
            "",
        ),
        (json!({"messages": []}), 400, None, "prompt"),
        (json!("no object"), 400, None, ""),
    ];
    for (body, status, parameter, words) in table {
        let (code, failure) = error(&connection.ask(RequestKind::TextGeneration, &body));
        assert_eq!((code, failure.parameter.as_deref()), (status, parameter), "{failure:?}");
        assert!(failure.message.contains(words), "{failure:?}");
    }
    let (_, failure) = error(&connection.ask(RequestKind::TextGeneration, &json!({"prompt": long})));
    assert_eq!(failure.code.as_deref(), Some(CONTEXT_LENGTH));
    assert!(failure.message.contains(&tiny::CONTEXT.to_string()), "{failure:?}");
    let (code, _) = error(&connection.ask(RequestKind::Rerank, &json!({})));
    assert_eq!(code, 400);
    let (code, _) = error(&connection.ask(RequestKind::Embeddings, &json!({"texts": ["a"]})));
    assert_eq!(code, 400, "it generates text");
    assert_eq!(engine.stop(connection), 0);
}

#[test]
fn an_answer_keeps_to_a_schema() {
    let engine = Engine::start();
    let mut connection = engine.attach();
    let schema = json!({"type": "object", "properties": {"on": {"type": "boolean"}}, "required": ["on"], "additionalProperties": false});
    for seed in 0..5 {
        let format = json!({"type": "json_schema", "schema": schema});
        let body = json!({"prompt": "a", "sampling": {"max_tokens": 60, "seed": seed}, "response_format": format});
        let answer = connection.ask(RequestKind::TextGeneration, &body);
        let value: serde_json::Value = serde_json::from_str(&text(&answer)).unwrap();
        assert!(value["on"].is_boolean(), "{value}");
    }
    assert_eq!(engine.stop(connection), 0);
}

#[test]
fn a_demanded_call_is_one_of_the_functions() {
    let engine = Engine::start();
    let mut connection = engine.attach();
    let schema = json!({"type": "object", "properties": {"on": {"type": "boolean"}}, "required": ["on"], "additionalProperties": false});
    let tool = |name: &str, parameters: &serde_json::Value| json!({"type": "function", "function": {"name": name, "parameters": parameters}});
    let tools = [tool("f", &schema), tool("g", &schema)];
    let mut called = |choice: serde_json::Value, seed: u64| {
        let sampling = json!({"max_tokens": 200, "seed": seed});
        let body = json!({"prompt": "a", "sampling": sampling, "tools": tools, "tool_choice": choice});
        let text = text(&connection.ask(RequestKind::TextGeneration, &body));
        let call = text.strip_prefix("<tool_call>\n").and_then(|rest| rest.strip_suffix("\n</tool_call>"));
        let call: serde_json::Value = serde_json::from_str(call.unwrap_or_else(|| panic!("{text}"))).unwrap();
        assert!(call["arguments"]["on"].is_boolean(), "{call}");
        call["name"].as_str().unwrap().to_owned()
    };
    for seed in 0..4 {
        assert!(["f", "g"].contains(&called(json!("required"), seed).as_str()));
        assert_eq!(called(json!({"type": "function", "function": {"name": "g"}}), seed), "g");
    }
    let odd = [tool("odd", &json!({"type": 5}))];
    let body = json!({"prompt": "a", "sampling": {"max_tokens": 60}, "tools": odd, "tool_choice": "required"});
    let text = text(&connection.ask(RequestKind::TextGeneration, &body));
    assert!(text.starts_with("<tool_call>\n{\"name\": \"odd\", \"arguments\": {"), "{text}");
    assert_eq!(engine.stop(connection), 0);
}

#[test]
fn behaviour_18_a_form_holds_after_the_reasoning_that_a_prompt_opens() {
    let engine = Engine::start();
    let mut connection = engine.attach();
    let format = json!({"type": "json_schema", "schema": {"const": "x"}});
    let sampling = json!({"max_tokens": 20, "temperature": 0.0, "ignore_eos": true});
    let mut ask = |prompt: &str, more: serde_json::Value| {
        let mut body = json!({"prompt": prompt, "sampling": sampling});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        text(&connection.ask(RequestKind::TextGeneration, &body))
    };
    let open = "assistant\n<think>\n";
    assert_eq!(ask(open, json!({"response_format": format})), ask(open, json!({})), "it reasons as it likes");
    assert_eq!(ask("assistant\n", json!({"response_format": format})), "\"x\"");
    let literal = json!({"response_format": format, "literals": [[10, open.len()]]});
    assert_eq!(ask(open, literal), "\"x\"", "a client's text opens nothing");
    assert_eq!(engine.stop(connection), 0);
}

#[test]
fn a_cancelled_request_ends_at_once_and_gives_its_blocks_back() {
    let engine = Engine::start();
    let mut connection = engine.attach();
    let body = json!({"prompt": "a", "sampling": {"max_tokens": 400, "ignore_eos": true}});
    let id = connection.send(RequestKind::TextGeneration, &body);
    connection.await_chunk(id);
    connection.cancel(id);
    let answer = connection.collect(&[id]).remove(&id).unwrap();
    assert_eq!(error(&answer).0, 499);
    connection.await_metric("running_sequences", 0.0);
    connection.await_metric("kv_blocks_used", 0.0);
    assert_eq!(engine.stop(connection), 0);
}

#[test]
fn a_stream_waits_for_credit() {
    let engine = Engine::start();
    let mut connection = engine.attach();
    // Each token is a chunk of its own, of almost 1 KiB with its alternatives.
    let body = json!({"prompt": "a", "sampling": {"max_tokens": 500, "ignore_eos": true}, "logprobs": 20});
    connection.gives_credit = false;
    let id = connection.send(RequestKind::TextGeneration, &body);
    connection.await_metric("answer_tokens", 500.0);
    let (sent, credit) = (connection.received(id), omni_engine_protocol::frame::INITIAL_CREDIT);
    assert!((credit / 2..=credit).contains(&sent), "{sent}");
    connection.cancel(id);
    let answer = connection.collect(&[id]).remove(&id).unwrap();
    assert_eq!(error(&answer).0, 499);
    assert_eq!(engine.stop(connection), 0);
}

#[test]
fn tokens_are_counted_without_generating() {
    let engine = Engine::start();
    let mut connection = engine.attach();
    let answer = connection.ask(RequestKind::CountTokens, &json!({"prompt": "four"}));
    assert_eq!(answer.last.header.kind, Kind::Response);
    assert_eq!(serde_json::from_slice::<TokenCount>(&answer.last.payload).unwrap().tokens, 5);
    assert_eq!(engine.stop(connection), 0);
}

#[test]
fn a_second_scheduler_is_served_beside_the_first() {
    let engine = Engine::start();
    let (mut first, mut second) = (engine.attach(), engine.attach());
    let body = json!({"prompt": "a", "sampling": {"max_tokens": 5, "temperature": 0.0, "ignore_eos": true}});
    let id = first.send(RequestKind::TextGeneration, &body);
    let other = second.ask(RequestKind::TextGeneration, &body);
    assert_eq!(text(&first.collect(&[id])[&id]), text(&other));
    drop(first);
    assert_eq!(text(&second.ask(RequestKind::TextGeneration, &body)), text(&other));
    assert_eq!(engine.stop(second), 0);
}

#[test]
fn a_check_is_answered() {
    let engine = Engine::start();
    let mut connection = engine.attach();
    assert_eq!(connection.check(), "");
    assert_eq!(engine.stop(connection), 0);
}

#[test]
fn behaviour_33_a_check_fails_while_a_step_hangs() {
    let (gate, waits) = std::sync::mpsc::sync_channel(1);
    let engine = Engine::hanging(waits);
    let mut connection = engine.attach();
    assert_eq!(connection.check(), "", "without requests no step is due");
    let body = json!({"prompt": "a", "sampling": {"max_tokens": 3, "ignore_eos": true}});
    let id = connection.send(RequestKind::TextGeneration, &body);
    let said = loop {
        let said = connection.check();
        if !said.is_empty() {
            break said;
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    };
    assert!(said.contains("a step has not ended for"), "{said}");
    drop(gate);
    assert_eq!(connection.collect(&[id])[&id].last.header.kind, Kind::End, "the step has ended");
    assert_eq!(connection.check(), "");
    assert_eq!(engine.stop(connection), 0);
}

#[test]
fn a_draft_model_in_the_folder_changes_no_answer() {
    let (plain, drafted) = (Engine::start(), Engine::with_draft());
    let (mut first, mut second) = (plain.attach(), drafted.attach());
    for seed in 0..3 {
        let sampling = json!({"max_tokens": 100, "seed": seed, "ignore_eos": true});
        let body = json!({"prompt": "once", "sampling": sampling});
        let expected = text(&first.ask(RequestKind::TextGeneration, &body));
        assert_eq!(text(&second.ask(RequestKind::TextGeneration, &body)), expected);
    }
    second.await_metric("kv_blocks_used_by_drafts", 0.0);
    assert_eq!((plain.stop(first), drafted.stop(second)), (0, 0));
}

#[test]
fn a_model_that_cannot_be_read_fails_for_good() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("broken.gguf"), b"GGUF no more").unwrap();
    let (told, code) = Engine::fail(folder.path(), false);
    let FromEngine::Failed { phase, message } = told else { panic!("{told:?}") };
    assert_eq!((phase.as_str(), code), ("setup", PERMANENT_FAILURE));
    assert!(message.contains("broken.gguf"), "{message}");
    let folder = tempfile::tempdir().unwrap();
    peer::write_model(folder.path());
    let (told, code) = Engine::fail(folder.path(), true);
    assert!(matches!(told, FromEngine::Failed { message, .. } if message.contains("batching")));
    assert_eq!(code, PERMANENT_FAILURE);
    assert_eq!(Engine::start().mode, HandlerMode::Concurrent);
}
