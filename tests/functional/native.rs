//! Models on the native engine, with weights of noise that are made on the spot.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed step of a test is a failed test")]

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use omni_tests::noise::{assert_started_again, builder, chat, weights};
use omni_tests::{Node, PATIENCE, wait_for};
use serde_json::{Value, json};
use std::fs;
use tempfile::TempDir;

const TEMPLATE: &str = "{%- for message in messages %}<|{{ message.role }}|>{{ message.content }}{% endfor %}";

fn manifest(weights: &TempDir, size: &str, more: &str) -> String {
    let source = weights.path().join(size);
    format!(
        "[model]\nkind = \"text-generation\"\n[runtime]\nengine = \"native\"\n[weights]\nsource = \"file://{}\"\n\
         [scaling]\nconcurrency = 8\n{more}",
        source.display()
    )
}

fn node(weights: &TempDir, size: &str, more: &str) -> Node {
    let manifest = manifest(weights, size, more);
    builder(weights).model("noise", &[("chat_template.jinja", TEMPLATE), ("omni.toml", &manifest)]).start()
}

#[test]
fn the_engine_answers_through_the_apis() {
    let weights = weights();
    let node = node(&weights, "small", "");
    let http = node.http();
    let more = json!({ "seed": 7, "top_k": 3, "logprobs": true, "top_logprobs": 2, "ignore_eos": true });
    let answer = http.post("/v1/chat/completions", &chat(&more));
    let said = answer.json();
    assert_eq!(answer.status, 200, "{said}\n{}", node.log_about("noise"));
    assert_eq!((&said["model"], &said["choices"][0]["finish_reason"]), (&json!("noise"), &json!("length")), "{said}");
    // `<|user|>hi`, a token for each byte.
    assert_eq!(
        (&said["usage"]["prompt_tokens"], &said["usage"]["completion_tokens"]),
        (&json!(10), &json!(5)),
        "{said}"
    );
    let tokens = said["choices"][0]["logprobs"]["content"].as_array().unwrap();
    assert!(tokens.len() == 5 && tokens.iter().all(|token| token["top_logprobs"].as_array().map(Vec::len) == Some(2)));
    let again = http.post("/v1/chat/completions", &chat(&more)).json();
    assert_eq!(again["choices"][0], said["choices"][0], "the same seed");
    let schema = json!({ "type": "object", "properties": { "a": { "type": "boolean" } }, "required": ["a"], "additionalProperties": false });
    let format = json!({ "type": "json_schema", "json_schema": { "name": "x", "schema": schema } });
    let said =
        http.post("/v1/chat/completions", &chat(&json!({ "max_tokens": 100, "response_format": format }))).json();
    let text = said["choices"][0]["message"]["content"].as_str().unwrap_or_else(|| panic!("{said}"));
    assert!(serde_json::from_str::<Value>(text).unwrap()["a"].is_boolean(), "{text}");
    let said = http.post("/v1/messages", &chat(&json!({}))).json();
    assert!(said["usage"]["output_tokens"].as_u64().is_some_and(|tokens| (1..=5).contains(&tokens)), "{said}");
    let said = http.run("noise", &json!({ "messages": chat(&json!({}))["messages"], "max_tokens": 3 })).json();
    assert_eq!(said["result"]["usage"]["prompt_tokens"], 10, "{said}");
    let long = chat(&json!({ "messages": [{ "role": "user", "content": "x".repeat(5000) }] }));
    let answer = http.post("/v1/chat/completions", &long);
    assert_eq!((answer.status, &answer.json()["error"]["code"]), (400, &json!("context_length_exceeded")));
    let stream =
        http.open("POST", "/v1/chat/completions", &[], chat(&json!({ "stream": true })).to_string().as_bytes());
    assert_eq!(stream.events().last().map(String::as_str), Some("[DONE]"));
    wait_for("the engine's metrics", PATIENCE, || {
        let metrics = node.admin().get("/metrics").text();
        let tokens = metrics.lines().find(|line| line.starts_with("omni_engine_answer_tokens_total{model=\"noise\""));
        tokens.filter(|line| !line.ends_with(" 0.0")).map(|_| ())
    });
    let logs = node.omnictl(["logs", "noise"]).stdout;
    assert!(logs.contains("a cache of"), "{logs}");
    node.stop();
}

#[test]
fn an_engine_that_dies_in_an_answer_is_started_again() {
    let weights = weights();
    let node = node(&weights, "slow", "");
    assert_started_again(&node, &json!({ "ignore_eos": true }), || {
        kill(node.engine("noise").unwrap(), Signal::SIGKILL).unwrap();
    });
    node.stop();
}

/// The engine keeps to its limit, so the limit comes to it: lowered to what it has, before a prompt that needs more.
#[test]
fn an_engine_out_of_memory_ends_alone() {
    let weights = weights();
    let of = |size: &str| manifest(&weights, size, "");
    let node = builder(&weights)
        .model("noise", &[("chat_template.jinja", TEMPLATE), ("omni.toml", &of("slow"))])
        .model("neighbour", &[("chat_template.jinja", TEMPLATE), ("omni.toml", &of("small"))])
        .start();
    let http = node.http();
    let neighbours = |more: Value| {
        let mut body = chat(&more);
        body["model"] = "neighbour".into();
        body
    };
    for body in [chat(&json!({})), neighbours(json!({}))] {
        assert_eq!(http.post("/v1/chat/completions", &body).status, 200);
    }
    let neighbour = node.engine("neighbour");
    let long = neighbours(json!({ "max_tokens": 3000, "stream": true, "ignore_eos": true })).to_string();
    let mut stream = http.open("POST", "/v1/chat/completions", &[], long.as_bytes());
    assert!(stream.chunk().unwrap().is_some());

    limit_to_what_it_has(node.engine("noise").unwrap());
    let prompt = "a long story ".repeat(100);
    let more = json!({ "messages": [{ "role": "user", "content": prompt }] });
    let answer = http.post("/v1/chat/completions", &chat(&more));
    assert_eq!(answer.status, 502, "{}", answer.text());
    wait_for("the reason", PATIENCE, || {
        (node.model("noise").last_exit.as_deref() == Some("killed for exceeding its memory limit")).then_some(())
    });
    assert_eq!(stream.events().last().map(String::as_str), Some("[DONE]"), "the neighbour's stream goes on");
    assert_eq!((node.engine("neighbour"), node.model("neighbour").restarts), (neighbour, 0));
    assert_eq!(http.post("/v1/chat/completions", &chat(&more)).status, 200, "the next instance has its whole limit");
    node.stop();
}

/// Lowers the memory limit of a process' control group to what the group uses, and a quarter of a MiB.
fn limit_to_what_it_has(process: Pid) {
    let groups = fs::read_to_string(format!("/proc/{process}/cgroup")).unwrap();
    let of = |list: &str| groups.lines().find_map(|line| line.split_once(list)).map(|(_, path)| path.to_owned());
    let (folder, usage, limit) = match of(":memory:") {
        Some(path) => (format!("/sys/fs/cgroup/memory{path}"), "memory.usage_in_bytes", "memory.limit_in_bytes"),
        None => (format!("/sys/fs/cgroup{}", of("0::").unwrap()), "memory.current", "memory.max"),
    };
    let used: u64 = fs::read_to_string(format!("{folder}/{usage}")).unwrap().trim().parse().unwrap();
    fs::write(format!("{folder}/{limit}"), (used + (256 << 10)).to_string()).unwrap();
}

#[test]
fn a_model_that_cannot_be_loaded_says_why() {
    let weights = weights();
    let node = node(&weights, "slow", "[resources]\nmemory = \"16MiB\"\n");
    let answer = node.http().post("/v1/chat/completions", &chat(&json!({})));
    assert!(answer.status >= 500, "{}", answer.text());
    let broken = builder(&weights)
        .model(
            "empty",
            &[
                ("omni.toml", "[model]\nkind = \"text-generation\"\n[runtime]\nengine = \"native\"\n"),
                ("notes.txt", ""),
            ],
        )
        .start();
    let answer = broken.http().post("/v1/completions", &json!({ "model": "empty", "prompt": "a" }));
    assert!(answer.status >= 500, "{}", answer.text());
    let told = broken.model("empty").message.unwrap_or_default();
    assert!(told.contains("safetensors") || told.contains("GGUF"), "{told}");
    broken.stop();
    node.stop();
}
