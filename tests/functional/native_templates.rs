//! Chat templates that the weights of a model on the native engine bring.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed step of a test is a failed test")]

#[path = "../../worker/weights/downloader/tests/server/mod.rs"]
mod server;

use omni_control_api::State;
use omni_tests::noise::{builder, chat, weights};
use omni_tests::{Answer, Node, NodeBuilder, PATIENCE, wait_for};
use serde_json::{Value, json};
use server::{Served, Server};
use std::fs;
use std::thread;
use std::time::Duration;
use tempfile::TempDir;

/// Tokens, one for each byte, of the conversation by the template inside of the file of noise:
/// `<|user|>hi<|end|><|assistant|>`.
const INSIDE: u64 = 30;

/// Template whose prompts have so many tokens.
fn template(tokens: usize) -> String {
    format!("{{% for m in messages %}}{}{{% endfor %}}", "x".repeat(tokens))
}

fn manifest(source: &str) -> String {
    format!(
        "[model]\nkind = \"text-generation\"\n[runtime]\nengine = \"native\"\n[weights]\nsource = \"{source}\"\n\
         [scaling]\nconcurrency = 2\n"
    )
}

fn in_folder(weights: &TempDir) -> String {
    manifest(&format!("file://{}", weights.path().join("small").display()))
}

fn ask(node: &Node) -> Answer {
    node.http().post("/v1/chat/completions", &chat(&json!({})))
}

/// Tokens of the prompt of a conversation.
fn prompt_tokens(node: &Node) -> Value {
    let answer = ask(node);
    assert_eq!(answer.status, 200, "{}\n{}", answer.text(), node.log_about("noise"));
    answer.json()["usage"]["prompt_tokens"].clone()
}

/// A server with the file of noise, and a node that may fetch from it.
fn fetching(served: impl FnOnce(Vec<u8>) -> Served) -> (Server, NodeBuilder) {
    let (server, weights) = (Server::start(), weights());
    server.put("/noise.gguf", served(fs::read(weights.path().join("small/noise.gguf")).unwrap()));
    let prefix = server.url("");
    let config = format!("[weights]\nprivate-hosts = [\"127.0.0.1\"]\n[weights.sources.\"{prefix}\"]\n");
    let manifest = manifest(&server.url("/noise.gguf"));
    (server, Node::builder().config(&config).model("noise", &[("omni.toml", &manifest)]))
}

#[test]
fn a_model_in_a_folder_chats_by_the_template_inside_of_its_file() {
    let weights = weights();
    let node = builder(&weights).model("noise", &[("omni.toml", &in_folder(&weights))]).start();
    assert_eq!(prompt_tokens(&node), INSIDE);
    let counted = node.http().post("/v1/messages/count_tokens", &chat(&json!({})));
    assert_eq!((counted.status, counted.json()["input_tokens"].as_u64()), (200, Some(INSIDE)), "{}", counted.text());
    // Tools are shown by this template, and the engine makes calls in its form.
    let function =
        json!({ "name": "f", "parameters": { "type": "object", "properties": {}, "additionalProperties": false } });
    let tools = json!({ "tools": [{ "type": "function", "function": function }], "tool_choice": "required", "max_tokens": 100 });
    let said = node.http().post("/v1/chat/completions", &chat(&tools)).json();
    assert!(said["usage"]["prompt_tokens"].as_u64() > Some(INSIDE), "{said}");
    assert_eq!(said["choices"][0]["message"]["tool_calls"][0]["function"]["name"], "f", "{said}");
    node.stop();
}

#[test]
fn a_folder_without_weights_or_without_a_template_says_so() {
    let weights = weights();
    let folder = weights.path().join("small");
    let file = folder.join("noise.gguf");
    let bytes = fs::read(&file).unwrap();
    fs::remove_file(&file).unwrap();
    let node = builder(&weights).model("noise", &[("omni.toml", &in_folder(&weights))]).start();
    let answer = ask(&node);
    assert_eq!(answer.status, 503, "{}", answer.text());
    assert!(
        node.log_about("noise").contains("holds neither safetensors nor a GGUF file"),
        "{}",
        node.log_about("noise")
    );

    let key = b"tokenizer.chat_template";
    let at = bytes.windows(key.len()).position(|window| window == key).unwrap();
    let mut without = bytes;
    without[at..at + key.len()].copy_from_slice(b"tokenizer.chat_nothing.");
    fs::write(&file, without).unwrap();
    let said = wait_for("the model to load", PATIENCE, || {
        let answer = ask(&node);
        (answer.status == 400).then(|| answer.text())
    });
    assert!(said.contains("has no chat template"), "{said}");
    node.stop();
}

#[test]
fn files_of_the_folder_come_before_the_one_inside_and_those_beside_the_manifest_before_all() {
    let weights = weights();
    let manifest = in_folder(&weights);
    let inside = weights.path().join("small/chat_template.jinja");
    fs::write(&inside, template(20)).unwrap();
    let node = builder(&weights).model("noise", &[("omni.toml", &manifest)]).start();
    assert_eq!(prompt_tokens(&node), 20);
    // Another version has a template of its own, and the next one none again: each is rendered by what it has.
    let newer = format!("{manifest}# 2\n");
    node.publish("noise", &[("omni.toml", &newer), ("chat_template.jinja", &template(12))]);
    wait_for("the template of the directory", PATIENCE, || (prompt_tokens(&node) == 12).then_some(()));
    fs::remove_file(&inside).unwrap();
    let config = json!({ "chat_template": template(7) }).to_string();
    fs::write(weights.path().join("small/tokenizer_config.json"), config).unwrap();
    node.publish("noise", &[("omni.toml", &format!("{manifest}# 3\n"))]);
    wait_for("the template of the folder", PATIENCE, || (prompt_tokens(&node) == 7).then_some(()));
    node.stop();
}

#[test]
fn requests_wait_for_weights_that_are_fetched_and_for_the_template_in_them() {
    let (server, node) = fetching(|content| Served { slow: Some(Duration::from_secs(1)), ..Served::new(content) });
    let mut node = node.start();
    node.await_seen("noise");
    thread::scope(|scope| {
        let asked: Vec<_> = (0..6).map(|_| scope.spawn(|| prompt_tokens(&node))).collect();
        wait_for("the download", PATIENCE, || (node.model("noise").state == State::Preparing).then_some(()));
        for answer in asked {
            assert_eq!(answer.join().unwrap(), INSIDE);
        }
    });
    assert_eq!(node.outcomes("noise", "openai"), [6, 0, 0, 0], "each is counted once");
    // A new scheduler adopts the instance, and reads the template anew.
    let instance = node.instance("noise").unwrap().id;
    server.put("/noise.gguf", Served { status: Some(500), ..Served::new(Vec::new()) });
    node.crash();
    node.start_again();
    assert_eq!(prompt_tokens(&node), INSIDE);
    assert_eq!(node.instance("noise").unwrap().id, instance);
    node.stop();
}

#[test]
fn a_request_that_waits_for_its_template_goes_to_the_next_scheduler() {
    let (server, node) = fetching(|content| Served { slow: Some(Duration::from_mins(10)), ..Served::new(content) });
    let mut node = node.start();
    node.await_seen("noise");
    let (address, body) = (node.http(), chat(&json!({})));
    let asked = thread::spawn(move || address.post("/v1/chat/completions", &body));
    wait_for("the download", PATIENCE, || (node.model("noise").state == State::Preparing).then_some(()));
    node.upgrade();
    // The stuck download ends with the model's stop, and the next attempt is served.
    wait_for("the request at the successor", PATIENCE, || (node.model("noise").queued == 1).then_some(()));
    let whole = fs::read(weights().path().join("small/noise.gguf")).unwrap();
    server.put("/noise.gguf", Served::new(whole));
    assert_eq!(node.omnictl(["stop", "noise"]).code, 0);
    let answer = asked.join().unwrap();
    assert_eq!(answer.status, 503, "{}", answer.text());
    assert_eq!(node.omnictl(["start", "noise"]).code, 0);
    assert_eq!(prompt_tokens(&node), INSIDE);
    node.stop();
}

#[test]
fn weights_that_cannot_be_fetched_fail_the_requests_that_wait() {
    let (_server, node) = fetching(|content| Served { status: Some(403), ..Served::new(content) });
    let node = node.start();
    node.await_seen("noise");
    let answer = ask(&node);
    assert_eq!(answer.status, 503, "{}", answer.text());
    let said = node.model("noise").message.unwrap_or_default();
    assert!(said.contains("answers 403"), "{said}");
    assert_eq!(node.outcomes("noise", "openai"), [0, 0, 1, 0]);
    node.stop();
}

#[test]
fn a_template_that_cannot_be_used_is_named_in_the_models_log() {
    let weights = weights();
    fs::write(weights.path().join("small/chat_template.jinja"), "{% for").unwrap();
    let node = builder(&weights).model("noise", &[("omni.toml", &in_folder(&weights))]).start();
    let answer = ask(&node);
    assert_eq!(answer.status, 500, "{}", answer.text());
    let logs = node.omnictl(["logs", "noise"]).stdout;
    let expected = "the chat template of `chat_template.jinja` in the folder of the weights cannot be used: line 1";
    assert!(logs.contains(expected), "{logs}");
    node.stop();
}
