//! Memory of generated text: answers without an end that the scheduler would have to hold, requests of many values, and calls
//! that a client has not asked for.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed step of a test is a failed test")]

use omni_tests::process::peak_resident;
use omni_tests::{Node, PATIENCE, wait_for};
use serde_json::{Value, json};

/// Generates without an end what its last message names.
const CODE: &str = r#"
from omni import TextGeneration, Token, ToolCall

ENDED = []

def handle_request(request: TextGeneration, context):
    said = request.prompt or request.messages[-1]["content"]
    if said == "ended":
        return str(len(ENDED))
    if said == "two calls":
        return iter([ToolCall("f", {}), ToolCall("g", {})])
    return endless(said)

def endless(said):
    top = [("y" * 1000, -1.0)] * 20
    try:
        while True:
            if said == "text":
                yield "x" * 65536
            elif said == "calls":
                yield ToolCall("f", "x" * 100000)
            elif said == "small calls":
                yield ToolCall("f", "")
            else:
                yield Token("" if said == "empty tokens" else "x", 1, -1.0, top)
    except BaseException:
        ENDED.append(said)
        raise
"#;
const MANIFEST: &str = "[model]\nkind = \"text-generation\"\n[chat]\nrender = \"model\"\n[scaling]\nconcurrency = 4\n\
                        [generation]\nhonours = [\"logprobs\", \"max-tokens\"]\n";
/// The node's memory for bodies and answers, of which one model gets a half.
const MEMORY: &str = "[server]\nbuffered-bytes = \"64MiB\"\n";

fn node() -> Node {
    Node::builder().config(MEMORY).model("text", &[("model.py", CODE), ("omni.toml", MANIFEST)]).start()
}

/// Most memory that the scheduler has had, in MiB.
fn peak(node: &Node) -> u64 {
    peak_resident(node.pid()).unwrap() >> 20
}

#[test]
fn an_answer_that_has_to_be_held_and_does_not_end_is_cut() {
    let node = node();
    let headers = [("content-type", "application/json")];
    let schema = json!({ "type": "json_schema", "json_schema": { "name": "s", "schema": { "type": "object" } } });
    let chat = |said: &str| json!([{ "role": "user", "content": said }]);
    let include = ["message.output_text.logprobs"];
    let tokens =
        json!({ "model": "text", "input": "empty tokens", "stream": true, "top_logprobs": 5, "include": include });
    let table = [
        ("/v1/responses", json!({ "model": "text", "input": "text", "stream": true })),
        ("/v1/responses", json!({ "model": "text", "input": "calls", "stream": true })),
        ("/v1/responses", tokens),
        (
            "/v1/chat/completions",
            json!({ "model": "text", "messages": chat("text"), "stream": true, "response_format": schema }),
        ),
        ("/ai/run/text", json!({ "messages": chat("calls"), "stream": true })),
        ("/v1/chat/completions", json!({ "model": "text", "messages": chat("tokens"), "logprobs": true })),
        ("/v1/chat/completions", json!({ "model": "text", "messages": chat("small calls") })),
    ];
    for (path, body) in &table {
        let answer = node.http().open("POST", path, &headers, body.to_string().as_bytes()).whole();
        let told = answer.text();
        let end = &told[told.len().saturating_sub(2000)..];
        assert!(
            end.contains("longer than") || end.contains("no memory") || answer.status >= 500,
            "{path} {body}: {end}"
        );
    }
    let ended = || {
        let answer = node.http().post("/v1/completions", &json!({ "model": "text", "prompt": "ended" })).json();
        answer["choices"][0]["text"].as_str()?.parse::<usize>().ok()
    };
    wait_for("all handlers to be cancelled", PATIENCE, || ended().filter(|count| *count == table.len()));
    let peak = peak(&node);
    assert!(peak < 400, "the scheduler had {peak} MiB");
}

#[test]
fn a_request_of_too_many_values_is_refused_before_they_are_parsed() {
    let node = node();
    let values = Value::Array(vec![json!({ "": 0 }); 300_000]);
    let tool = json!({ "type": "function", "function": { "name": "f", "parameters": { "x": values } } });
    let messages = json!([{ "role": "user", "content": "ended" }]);
    let body = json!({ "model": "text", "messages": messages, "tools": [tool] });
    let answer = node.http().post("/v1/chat/completions", &body);
    assert_eq!((answer.status, &answer.json()["error"]["param"]), (400, &json!("tools[0]")));
    let peak = peak(&node);
    assert!(peak < 200, "the scheduler had {peak} MiB");
}

#[test]
fn calls_of_the_model_keep_to_what_the_client_has_asked_for() {
    let node = node();
    let tool = |name: &str| json!({ "type": "function", "function": { "name": name, "parameters": {} } });
    let ask = |said: &str, more: Value| {
        let messages = json!([{ "role": "user", "content": said }]);
        let mut body = json!({ "model": "text", "messages": messages, "tools": [tool("f"), tool("g")] });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let answer = node.http().post("/v1/chat/completions", &body);
        (answer.status, answer.json()["choices"][0]["message"]["tool_calls"].as_array().map(Vec::len))
    };
    assert_eq!(ask("two calls", json!({})), (200, Some(2)));
    assert_eq!(ask("two calls", json!({ "parallel_tool_calls": false })), (200, Some(1)));
    assert_eq!(ask("two calls", json!({ "tool_choice": "none" })).0, 500);
    assert_eq!(ask("ended", json!({ "tool_choice": "none" })), (200, None));
}

#[test]
fn a_stream_whose_memory_runs_out_fails_once() {
    let code = "from omni import TextGeneration\n\ndef handle_request(request: TextGeneration, context):\n    \
                for _ in range(2000):\n        yield 'y' * 30000\n";
    let config = "[server]\nbuffered-bytes = \"16MiB\"\n";
    let node = Node::builder().config(config).model("text", &[("model.py", code), ("omni.toml", MANIFEST)]).start();
    let chat = json!({
        "model": "text",
        "stream": true,
        "messages": [{ "role": "user", "content": "x" }],
        "response_format": { "type": "json_object" },
    });
    let response = json!({ "model": "text", "stream": true, "input": "x" });
    for (path, body, last) in [("/v1/chat/completions", chat, "error"), ("/v1/responses", response, "response.failed")]
    {
        let headers = [("content-type", "application/json")];
        let answer = node.http().request("POST", path, &headers, body.to_string().as_bytes());
        let text = answer.text();
        let events: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
        assert!(events.last().is_some_and(|event| event.contains(last)), "{path}: {:?}", events.last());
        let errors = events.iter().filter(|event| event.contains("memory")).count();
        assert!((1..=2).contains(&errors), "{path}: {errors} events of an error");
    }
    let [ok, error, refused, cancelled] = node.outcomes("text", "openai");
    assert_eq!((ok, error + refused, cancelled), (0, 2, 0));
}

/// Requests in a queue count with all that the node holds of them.
#[test]
fn what_a_small_body_becomes_counts_while_it_waits() {
    let manifest = MANIFEST.replace("concurrency = 4", "concurrency = 1\nqueue = 4096");
    let manifest = manifest.replace("\"logprobs\"", "\"logprobs\", \"json-schema\"");
    let node = Node::builder().config(MEMORY).model("text", &[("model.py", CODE), ("omni.toml", &manifest)]).start();
    let held = || node.metric("omni_bodies_held_bytes").unwrap();
    let busy = json!({ "model": "text", "prompt": "tokens", "stream": true, "max_tokens": 1_000_000 }).to_string();
    let mut running =
        node.http().open("POST", "/v1/completions", &[("content-type", "application/json")], busy.as_bytes());
    assert!(running.chunk().unwrap().is_some());
    let (before, resident) = (held(), peak(&node));
    let schema = json!({ "type": "object", "description": "d".repeat(200_000) });
    let many = json!({
        "model": "text",
        "prompt": vec!["x"; 128],
        "response_format": { "type": "json_schema", "json_schema": { "name": "s", "schema": schema } },
    });
    let waiting: Vec<_> = (0..8).map(|_| node.http().send_to("/v1/completions", &many)).collect();
    let refused = node.http().post("/v1/completions", &many);
    assert_eq!(refused.status, 503, "{}", refused.text());
    let (counted, grown) = ((held() - before) / 1_048_576.0, peak(&node) - resident);
    assert!(counted > 20.0, "{counted} MiB");
    assert!((grown as f64) < counted * 1.5 + 30.0, "{grown} MiB for {counted}");
    drop((waiting, running));
    wait_for("all to be given back", PATIENCE, || (held() == 0.0).then_some(()));
}
