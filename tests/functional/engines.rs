//! Models that are servers with the OpenAI API: llama.cpp's own, on a model of noise that is made on the spot.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed step of a test is a failed test")]

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use omni_tests::noise::{assert_started_again, builder, chat, weights};
use omni_tests::{Node, NodeBuilder, PATIENCE, wait_for};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

const SERVE: &str = include_str!("../clients/llama/serve.py");
const REQUIREMENTS: &str = "xllamacpp==2026.10.11549\n";
const CHAT: &str = "[model]\nkind = \"text-generation\"\n[chat]\nrender = \"model\"\n[generation]\nhonours = [\"json-schema\", \"logit-bias\", \"logprobs\", \"max-tokens\", \"seed\", \"top-k\"]\n";

fn manifest(kind: &str, (weights, size): (&Path, &str), role: &str) -> String {
    let source = weights.join(size);
    format!(
        "{kind}[runtime]\nengine = \"openai\"\ncommand = [\"python\", \"serve.py\", \"{{socket}}\", \"{{weights_dir}}/noise.gguf\", {role:?}]\n\
         [weights]\nsource = \"file://{}\"\n[scaling]\nconcurrency = 4\n",
        source.display()
    )
}

trait WithServer {
    /// Adds a model that is llama.cpp's server.
    fn server(self, name: &str, manifest: &str) -> Self;
}

impl WithServer for NodeBuilder {
    fn server(self, name: &str, manifest: &str) -> Self {
        self.model(name, &[("serve.py", SERVE), ("requirements.txt", REQUIREMENTS), ("omni.toml", manifest)])
    }
}

fn events(node: &Node, path: &str, body: &Value) -> Vec<Value> {
    let stream = node.http().open("POST", path, &[], body.to_string().as_bytes());
    assert_eq!(stream.status, 200);
    let events = stream.events();
    assert_eq!(events.last().map(String::as_str), Some("[DONE]"), "{events:?}");
    events.iter().filter_map(|event| serde_json::from_str(event).ok()).collect()
}

/// The server's process: the only child of the engine.
fn server_of(node: &Node, model: &str) -> Pid {
    let engine = node.engine(model).unwrap();
    let children = fs::read_to_string(format!("/proc/{engine}/task/{engine}/children")).unwrap();
    Pid::from_raw(children.trim().parse().unwrap())
}

#[test]
fn a_server_answers_through_all_apis() {
    let weights = weights();
    let node = builder(&weights)
        .server("noise", &manifest(CHAT, (weights.path(), "small"), "chat"))
        .server("vectors", &manifest("[model]\nkind = \"embeddings\"\n", (weights.path(), "small"), "embeddings"))
        .start();
    let http = node.http();
    whole_answers(&node);
    streams(&node);
    let call = tool_call(&node);
    assert_eq!(serde_json::from_str::<Value>(&call).unwrap()["a"].as_bool().map(|_| ()), Some(()), "{call}");
    let long = chat(&json!({ "messages": [{ "role": "user", "content": "x".repeat(3000) }] }));
    for stream in [false, true] {
        let answer =
            http.post("/v1/chat/completions", &chat(&json!({ "messages": long["messages"], "stream": stream })));
        let error = &answer.json()["error"];
        assert_eq!((answer.status, &error["code"]), (400, &json!("context_length_exceeded")), "{error}");
    }
    let answer = http.post("/v1/embeddings", &json!({ "model": "vectors", "input": ["a", "b"] }));
    let vectors = answer.json();
    assert_eq!(vectors["data"][1]["embedding"].as_array().map(Vec::len), Some(64), "{vectors}");
    assert_eq!((&vectors["model"], &vectors["usage"]["prompt_tokens"]), (&json!("vectors"), &json!(2)), "{vectors}");
    let answer = http.post("/v1/chat/completions", &chat(&json!({ "model": "vectors" })));
    assert_eq!(answer.status, 400, "{}", answer.text());
    // The server's metrics come after use, at most every ten seconds.
    let series = wait_for("the server's metrics", PATIENCE, || {
        assert_eq!(http.post("/v1/chat/completions", &chat(&json!({}))).status, 200);
        let metrics = node.admin().get("/metrics").text();
        let line = metrics
            .lines()
            .find(|line| line.starts_with("omni_engine_llamacpp_tokens_predicted_total{model=\"noise\""));
        line.filter(|line| !line.ends_with(" 0.0")).map(str::to_owned)
    });
    let id = node.instance("noise").unwrap().id;
    assert!(series.contains(&format!("instance=\"{id}\"")), "{series}");
    node.stop();
}

fn whole_answers(node: &Node) {
    let http = node.http();
    let answer = http
        .post("/v1/chat/completions", &chat(&json!({ "seed": 7, "top_k": 3, "logprobs": true, "top_logprobs": 2 })));
    let said = answer.json();
    assert_eq!(answer.status, 200, "{said}\n{}", node.log_about("noise"));
    assert_eq!((&said["model"], &said["choices"][0]["finish_reason"]), (&json!("noise"), &json!("length")), "{said}");
    assert_eq!(said["usage"]["completion_tokens"], 5, "{said}");
    assert!(said["usage"]["prompt_tokens"].as_u64().unwrap() > 10, "{said}");
    let tokens = said["choices"][0]["logprobs"]["content"].as_array().unwrap();
    // Noise is seldom whole characters, and the server sends whole ones only.
    assert!(
        !tokens.is_empty() && tokens.iter().all(|token| token["top_logprobs"].as_array().map(Vec::len) == Some(2)),
        "{said}"
    );
    let schema = json!({ "type": "object", "properties": { "a": { "type": "boolean" } }, "required": ["a"], "additionalProperties": false });
    let format = json!({ "type": "json_schema", "json_schema": { "name": "x", "schema": schema } });
    let said =
        http.post("/v1/chat/completions", &chat(&json!({ "max_tokens": 500, "response_format": format }))).json();
    let text = said["choices"][0]["message"]["content"].as_str().unwrap_or_else(|| panic!("{said}"));
    assert!(serde_json::from_str::<Value>(text).unwrap()["a"].is_boolean(), "{text}");
    let said = http.post("/v1/responses", &json!({ "model": "noise", "input": "hi", "max_output_tokens": 5 })).json();
    assert_eq!(said["usage"]["output_tokens"], 5, "{said}");
    let said = http.post("/v1/messages", &chat(&json!({}))).json();
    assert_eq!((&said["stop_reason"], &said["usage"]["output_tokens"]), (&json!("max_tokens"), &json!(5)), "{said}");
    let said =
        http.post("/v1/messages/count_tokens", &json!({ "model": "noise", "messages": chat(&json!({}))["messages"] }));
    assert!(said.json()["input_tokens"].as_u64().unwrap() > 10, "{}", said.text());
    let said = http.post("/v1/completions", &json!({ "model": "noise", "prompt": "hi", "max_tokens": 3 })).json();
    assert_eq!(
        said["usage"],
        json!({ "prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5, "prompt_tokens_details": { "cached_tokens": 0 }, "completion_tokens_details": { "reasoning_tokens": 0 } }),
        "{said}"
    );
    let said = http.run("noise", &json!({ "messages": chat(&json!({}))["messages"], "max_tokens": 3 })).json();
    assert_eq!(said["result"]["usage"]["completion_tokens"], 3, "{said}");
}

fn streams(node: &Node) {
    let path = "/v1/chat/completions";
    let plain = events(node, path, &chat(&json!({ "stream": true })));
    assert!(plain.iter().all(|event| event["usage"].is_null() && event["model"] == "noise"), "{plain:?}");
    let with = events(node, path, &chat(&json!({ "stream": true, "stream_options": { "include_usage": true } })));
    let last = with.last().unwrap();
    assert_eq!((&last["usage"]["completion_tokens"], &last["choices"]), (&json!(5), &json!([])), "{with:?}");
}

/// The arguments of a call that the server was made to make.
fn tool_call(node: &Node) -> String {
    let parameters = json!({ "type": "object", "properties": { "a": { "type": "boolean" } }, "required": ["a"], "additionalProperties": false });
    let tool = json!({ "type": "function", "function": { "name": "f", "description": "d", "parameters": parameters } });
    // 126 is the token of an opening brace: noise is to begin with the call.
    let asked = chat(
        &json!({ "max_tokens": 700, "tools": [tool], "tool_choice": "required", "logit_bias": { "126": 30 }, "seed": 1 }),
    );
    let said = node.http().post("/v1/chat/completions", &asked).json();
    let choice = &said["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls", "{said}");
    let function = &choice["message"]["tool_calls"][0]["function"];
    assert_eq!(function["name"], "f", "{said}");
    let mut streamed = asked.clone();
    streamed["stream"] = json!(true);
    let events = events(node, "/v1/chat/completions", &streamed);
    let names =
        events.iter().filter_map(|event| event["choices"][0]["delta"]["tool_calls"][0]["function"]["name"].as_str());
    assert_eq!(names.collect::<Vec<_>>(), ["f"], "{events:?}");
    function["arguments"].as_str().unwrap().to_owned()
}

/// The server has a single slot: as long as it works for a client that has gone, it does not answer the next one.
#[test]
fn a_client_that_leaves_frees_the_server() {
    let weights = weights();
    let node = builder(&weights).server("noise", &manifest(CHAT, (weights.path(), "slow"), "single")).start();
    let long = chat(&json!({ "max_tokens": 4000, "stream": true })).to_string();
    let before = Instant::now();
    let mut stream = node.http().open("POST", "/v1/chat/completions", &[], long.as_bytes());
    for _ in 0..10 {
        assert!(stream.chunk().unwrap().is_some());
    }
    let ten = before.elapsed();
    drop(stream);
    let before = Instant::now();
    let answer = node.http().post("/v1/chat/completions", &chat(&json!({ "max_tokens": 1 })));
    assert_eq!(answer.status, 200, "{}", answer.text());
    let waited = before.elapsed();
    assert!(waited < Duration::from_secs(2) + ten, "{waited:?} after {ten:?} for ten tokens of 4000");
    let [ok, error, refused, cancelled] = node.outcomes("noise", "openai");
    assert_eq!([ok, error, refused, cancelled], [1, 0, 0, 1]);
    node.stop();
}

#[test]
fn a_server_that_dies_is_started_again() {
    let weights = weights();
    let node = builder(&weights).server("noise", &manifest(CHAT, (weights.path(), "slow"), "chat")).start();
    assert_started_again(&node, &json!({}), || kill(server_of(&node, "noise"), Signal::SIGKILL).unwrap());
    assert!(
        node.metric("omni_instance_restarts_total{model=\"noise\",reason=\"signal\"}").is_some(),
        "{}",
        node.admin().get("/metrics").text()
    );
    node.stop();
}

/// llama.cpp gives back its memory by itself; health checks and metrics of the node do not wake it, a request does.
#[test]
fn a_server_that_sleeps_by_itself_is_woken_by_a_request() {
    let weights = weights();
    let text = manifest(CHAT, (weights.path(), "small"), "sleep") + "[timeouts]\nhealthcheck = \"300ms\"\n";
    let node = builder(&weights).server("noise", &text).start();
    let ask = || node.http().post("/v1/chat/completions", &chat(&json!({})));
    assert_eq!(ask().status, 200);
    let sleeps = || node.omnictl(["logs", "noise"]).stdout.matches("entering sleeping state").count();
    wait_for("the server to sleep", PATIENCE, || (sleeps() > 0).then_some(()));
    assert_eq!(ask().status, 200, "it is woken");
    wait_for("the server to sleep again", PATIENCE, || (sleeps() > 1).then_some(()));
    node.stop();
}

#[test]
fn a_server_that_does_not_start_says_why() {
    let command = |command: &str| {
        format!("[model]\nkind = \"embeddings\"\n[runtime]\nengine = \"openai\"\ncommand = {command}\n")
    };
    let node = Node::builder()
        .model("nothing", &[("omni.toml", &command("[\"no-such-server\", \"{socket}\"]"))])
        .model("ends", &[("omni.toml", &command("[\"sh\", \"-c\", \"echo no weights; exit 5\", \"{port}\"]"))])
        .model("late", &[("omni.toml", &(command("[\"sleep\", \"{port}\"]") + "[timeouts]\nstartup = \"4s\"\n"))])
        .start();
    for (model, why) in [
        ("nothing", "the server cannot be started: no-such-server: No such file or directory"),
        ("ends", "the server ended before it was healthy: exit code 5"),
        ("late", "the server was not healthy 3 s after its start: it does not listen on port "),
    ] {
        let answer = node.http().post("/v1/embeddings", &json!({ "model": model, "input": "a" }));
        assert!(answer.status >= 500, "{model}: {}", answer.text());
        let told = node.model(model).message.unwrap_or_default();
        assert!(told.contains(why), "{model}: {told}");
    }
    assert!(node.omnictl(["logs", "ends"]).stdout.contains("no weights"));
    assert!(!node.omnictl(["logs", "late"]).stdout.contains("most recent call"), "a stack says nothing of a server");
    node.stop();
}
