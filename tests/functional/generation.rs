//! Generated text over HTTP: refusals, failures, cancellations, choices and templates. What clients make of it is in `clients.rs`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed step of a test is a failed test")]

use omni_tests::{Node, NodeBuilder, PATIENCE, wait_for};
use serde_json::{Value, json};

/// Generates by its prompt. `seen` answers what became of the others.
const CODE: &str = r#"
import time
from omni import Completion, Finish, Reasoning, TextGeneration, ToolCall, errors

SEEN = []

def handle_request(request: TextGeneration, context):
    said = request.prompt if request.messages is None else request.messages[-1]["content"]
    if said == "long":
        raise errors.ContextLengthExceeded("9 tokens, at most 8")
    if said == "seen":
        return ",".join(SEEN) or "nothing"
    if said == "whole":
        return Completion("all at once", finish=Finish("length"))
    if said == "typed":
        return typed()
    if said == "thinks":
        return thinks()
    if said == "bytes":
        return halves()
    if said == "number":
        return 5
    return endless(said)

def halves():
    yield "€".encode()[:1]
    yield "€".encode()[1:]

def thinks():
    yield "a"
    yield Reasoning("hm")
    yield "b"

def typed():
    yield Reasoning("hm")
    yield ToolCall("f", '{"a": 1}')
    yield Finish("stop")

def endless(said):
    try:
        while True:
            yield said
            time.sleep(0.01)
    except BaseException as error:
        SEEN.append(type(error).__name__)
        raise
"#;
const MANIFEST: &str = "[model]\nkind = \"text-generation\"\n[chat]\nrender = \"model\"\n[scaling]\nconcurrency = 4\n";

fn node() -> NodeBuilder {
    Node::builder().model("text", &[("model.py", CODE), ("omni.toml", MANIFEST)])
}

fn complete(node: &Node, more: &Value) -> Value {
    let mut body = json!({ "model": "text" });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    node.http().post("/v1/completions", &body).json()
}

fn text(answer: &Value) -> (&str, &str) {
    let choice = &answer["choices"][0];
    (choice["text"].as_str().unwrap_or("no text"), choice["finish_reason"].as_str().unwrap_or("no reason"))
}

#[test]
fn a_handler_returns_text_pieces_or_typed_parts() {
    let node = node().start();
    assert_eq!(text(&complete(&node, &json!({ "prompt": "whole" }))), ("all at once", "length"));
    assert_eq!(text(&complete(&node, &json!({ "prompt": "bytes" }))), ("€", "stop"));
    let answer = node.http().run("text", &json!({ "prompt": "typed", "raw": true })).json();
    let call = &answer["result"]["tool_calls"][0];
    assert_eq!((&call["name"], &call["arguments"]), (&json!("f"), &json!({ "a": 1 })), "{answer}");
    let answer = complete(&node, &json!({ "prompt": "number" }));
    assert_eq!(answer["error"]["type"], "server_error", "{answer}");
}

/// A completion has text alone, streamed or whole.
#[test]
fn completions_have_no_place_for_reasoning_and_calls() {
    let node = node().start();
    let streamed = |prompt: &str| {
        let body = json!({ "model": "text", "prompt": prompt, "stream": true }).to_string();
        let stream = node.http().open("POST", "/v1/completions", &[], body.as_bytes());
        assert_eq!(stream.status, 200);
        let events = stream.events();
        events.iter().filter_map(|event| serde_json::from_str(event).ok()).collect::<Vec<Value>>()
    };
    assert_eq!(text(&complete(&node, &json!({ "prompt": "thinks" }))), ("ab", "stop"));
    let texts: String = streamed("thinks").iter().filter_map(|event| event["choices"][0]["text"].as_str()).collect();
    assert_eq!(texts, "ab");
    let whole = complete(&node, &json!({ "prompt": "typed" }));
    let last = streamed("typed").pop().unwrap();
    assert_eq!(whole["error"]["code"], "server_error", "{whole}");
    assert_eq!(last["error"], whole["error"]);
}

#[test]
fn a_conversation_that_is_too_long_is_refused_in_the_form_of_each_api() {
    let node = node().start();
    let messages = json!([{ "role": "user", "content": "long" }]);
    for stream in [false, true] {
        let body = json!({ "model": "text", "messages": messages, "max_tokens": 9, "stream": stream });
        let answer = node.http().post("/v1/chat/completions", &body);
        let error = &answer.json()["error"];
        assert_eq!((answer.status, &error["code"]), (400, &json!("context_length_exceeded")), "{error}");
        assert_eq!(
            (&error["type"], &error["message"]),
            (&json!("invalid_request_error"), &json!("9 tokens, at most 8"))
        );
        let answer = node.http().post("/v1/messages", &body);
        let error = &answer.json()["error"];
        assert_eq!((answer.status, &error["type"]), (400, &json!("invalid_request_error")), "{error}");
        assert_eq!(error["message"], "prompt is too long: 9 tokens, at most 8");
        let answer = node.http().run("text", &json!({ "messages": messages, "stream": stream }));
        let error = &answer.json()["errors"][0];
        assert_eq!((answer.status, &error["message"]), (400, &json!("9 tokens, at most 8")), "{error}");
    }
}

#[test]
fn a_generation_that_is_no_longer_needed_is_cancelled() {
    let node = node().start();
    let seen = || complete(&node, &json!({ "prompt": "seen" }))["choices"][0]["text"].as_str().map(str::to_owned);
    let cut = complete(&node, &json!({ "prompt": "ab", "stop": "ba", "max_tokens": 1000 }));
    assert_eq!(text(&cut), ("a", "stop"));
    let limited = complete(&node, &json!({ "prompt": "ab", "max_tokens": 3 }));
    assert_eq!((text(&limited), &limited["usage"]["completion_tokens"]), (("ababab", "length"), &json!(3)));
    wait_for("both to be cancelled", PATIENCE, || seen().filter(|seen| seen.split(',').count() == 2));
    let body = json!({ "model": "text", "prompt": "x", "max_tokens": 1000, "stream": true });
    let bytes = body.to_string();
    let mut stream = node.http().open("POST", "/v1/completions", &[], bytes.as_bytes());
    assert!(stream.chunk().unwrap().is_some());
    drop(stream);
    wait_for("the one whose client went away to be cancelled", PATIENCE, || {
        seen().filter(|seen| seen.split(',').count() == 3)
    });
}

#[test]
fn a_deadline_ends_a_stream_with_an_error() {
    let node = node().start();
    assert_eq!(text(&complete(&node, &json!({ "prompt": "whole" }))).1, "length", "it has started");
    let body = json!({ "model": "text", "prompt": "x", "max_tokens": 1000, "stream": true }).to_string();
    let headers = [("x-omni-timeout-ms", "300"), ("content-type", "application/json")];
    let events = node.http().open("POST", "/v1/completions", &headers, body.as_bytes()).events();
    assert!(events.len() > 2, "{events:?}");
    let last: Value = serde_json::from_str(events.last().unwrap()).unwrap();
    assert_eq!(last["error"]["code"], "timeout", "{events:?}");
    let body = json!({ "model": "text", "prompt": "x", "max_tokens": 1000 }).to_string();
    let answer = node.http().request("POST", "/v1/completions", &headers, body.as_bytes());
    assert_eq!((answer.status, &answer.json()["error"]["code"]), (504, &json!("timeout")));
}

#[test]
fn each_request_of_a_client_has_one_outcome() {
    let node = node().start();
    let headers = [("content-type", "application/json")];
    let late = [("x-omni-timeout-ms", "300"), ("content-type", "application/json")];
    let prompt =
        |text: &str, stream: bool| json!({ "model": "text", "prompt": text, "max_tokens": 1000, "stream": stream });
    let four = json!({ "model": "text", "prompt": "whole", "n": 4 });
    assert_eq!(node.http().post("/v1/completions", &four).status, 200);
    for stream in [false, true] {
        let body = prompt("whole", stream).to_string();
        assert_eq!(node.http().request("POST", "/v1/completions", &headers, body.as_bytes()).status, 200);
        let body =
            json!({ "model": "text", "prompt": ["x", "y"], "n": 2, "max_tokens": 1000, "stream": stream }).to_string();
        let _ = node.http().open("POST", "/v1/completions", &late, body.as_bytes()).whole();
        assert_eq!(node.http().post("/v1/completions", &prompt("number", stream)).status, 500);
    }
    let hangs_up = prompt("x", true).to_string();
    let mut stream = node.http().open("POST", "/v1/completions", &headers, hangs_up.as_bytes());
    assert!(stream.chunk().unwrap().is_some());
    drop(stream);
    wait_for("the last to be counted", PATIENCE, || (node.outcomes("text", "openai")[3] == 3).then_some(()));
    assert_eq!(node.outcomes("text", "openai"), [3, 2, 0, 3], "ok, error, refused, cancelled");
}

/// Answers with its seed.
const SEEDED: &str = "
from omni import TextGeneration

def handle_request(request: TextGeneration, context):
    return str(request.sampling.seed)
";

#[test]
fn choices_are_requests_of_their_own() {
    let seeded = MANIFEST.replace("[chat]", "[generation]\nhonours = [\"seed\"]\n[chat]");
    let node = node().model("seeded", &[("model.py", SEEDED), ("omni.toml", &seeded)]).start();
    let seeds = |more: &Value| {
        let mut body = json!({ "model": "seeded", "prompt": "a" });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let answer = node.http().post("/v1/completions", &body).json();
        let choices = answer["choices"].as_array().unwrap_or_else(|| panic!("{answer}"));
        choices.iter().map(|choice| choice["text"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(seeds(&json!({ "seed": 7 })), ["7"]);
    assert_eq!(seeds(&json!({ "seed": 7, "n": 3 })), ["7", "8", "9"]);
    assert_eq!(seeds(&json!({ "seed": 7, "n": 2, "prompt": ["a", "b"] })), ["7", "8", "7", "8"]);
    assert_eq!(seeds(&json!({ "n": 2 })), ["None", "None"]);
    let answer = complete(&node, &json!({ "prompt": ["ab", "cd"], "n": 2, "max_tokens": 2 }));
    let texts: Vec<_> = answer["choices"].as_array().unwrap().iter().map(|choice| choice["text"].clone()).collect();
    assert_eq!(texts, ["abab", "abab", "cdcd", "cdcd"]);
    assert_eq!(answer["usage"]["completion_tokens"], 8);
}

#[test]
fn what_cannot_be_honoured_is_refused_by_name() {
    let node = node().model("custom", &[("model.py", "def handle_request(request, context):\n    return 1\n")]).start();
    for (body, param) in [
        (json!({ "model": "text", "prompt": "whole", "seed": 1 }), "seed"),
        (json!({ "model": "text", "prompt": [[1, 2]] }), "prompt"),
        (json!({ "model": "text", "prompt": "whole", "foo": 1 }), "foo"),
        (json!({ "model": "custom", "prompt": "whole" }), "model"),
    ] {
        let answer = node.http().post("/v1/completions", &body);
        let error = &answer.json()["error"];
        assert_eq!((answer.status, &error["param"]), (400, &json!(param)), "{error}");
    }
    let answer = node.http().request("POST", "/v1/completions", &[("content-type", "text/plain")], b"whole");
    assert_eq!(answer.status, 400);
    let embeddings = node.http().post("/v1/embeddings", &json!({ "model": "text", "input": "a" }));
    assert_eq!((embeddings.status, &embeddings.json()["error"]["param"]), (400, &json!("model")));
}

#[test]
fn a_template_that_cannot_be_used_fails_its_own_model_alone() {
    let manifest = "[model]\nkind = \"text-generation\"\n";
    let model =
        |template: &'static str| [("model.py", CODE), ("omni.toml", manifest), ("chat_template.jinja", template)];
    let node = Node::builder()
        .model("broken", &model("{% if %}"))
        .model("endless", &model("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"))
        .model("refuses", &model("{{ raise_exception('only one user') }}"))
        .model("none", &[("model.py", CODE), ("omni.toml", manifest)])
        .model("fine", &model("{{ messages[0].content }}"))
        .start();
    let chat = |model: &str| {
        let messages = json!([{ "role": "user", "content": "whole" }]);
        node.http().post("/v1/chat/completions", &json!({ "model": model, "messages": messages }))
    };
    for (model, status, message) in [
        ("broken", 503, "the model cannot start now"),
        ("endless", 500, "the model failed on this request"),
        ("refuses", 400, "only one user"),
        ("none", 400, "the model has no chat template"),
    ] {
        let answer = chat(model);
        let said = answer.json()["error"]["message"].as_str().unwrap().to_owned();
        assert!(answer.status == status && said.contains(message), "{model}: {} {said}", answer.status);
    }
    assert_eq!(chat("fine").json()["choices"][0]["message"]["content"], "all at once");
    let refused = node.model("broken").directory.refused.unwrap();
    assert!(refused.starts_with("line 1 of the chat template: "), "{refused}");
}

/// Answers its prompt.
const ECHO: &str = "from omni import TextGeneration\ndef handle_request(request: TextGeneration, context):\n    yield request.prompt or str(request.messages)\n";

#[test]
fn tools_are_refused_where_the_template_has_no_place_for_them() {
    const KIND: &str = "[model]\nkind = \"text-generation\"\n";
    /// The handler reads the tools, and yields calls.
    const OWN: &str = "[model]\nkind = \"text-generation\"\n[chat]\ntool-parser = \"none\"\n";
    const PLAIN: &str = "{% for m in messages %}{{ m.content }}{% endfor %}";
    let files = |template| [("model.py", ECHO), ("omni.toml", KIND), ("chat_template.jinja", template)];
    let node = Node::builder()
        .model("plain", &files(PLAIN))
        .model("tooled", &files("{{ tools | tojson }}"))
        .model("handler", &[("model.py", ECHO), ("omni.toml", OWN), ("chat_template.jinja", PLAIN)])
        .model("faulty", &files("{{ messages[0].rol.x }}"))
        .start();
    let ask = |model: &str, choice: &str| {
        let tool = json!({"type": "function", "function": {"name": "moo", "parameters": {"type": "object"}}});
        let messages = json!([{"role": "user", "content": "hello"}]);
        let body = json!({"model": model, "messages": messages, "tools": [tool], "tool_choice": choice}).to_string();
        let headers = [("content-type", "application/json"), ("x-request-id", "asked-once")];
        node.http().request("POST", "/v1/chat/completions", &headers, body.as_bytes())
    };
    let refused = ask("plain", "auto");
    assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!("tools")), "{}", refused.text());
    for (model, choice) in [("plain", "none"), ("tooled", "auto"), ("handler", "auto")] {
        assert_eq!(ask(model, choice).status, 200, "{model}");
    }

    assert_eq!(ask("faulty", "none").status, 500);
    let log = node.omnictl(["logs", "faulty", "--request", "asked-once"]).stdout;
    assert!(log.contains("cannot be rendered: line 1 of the chat template"), "the author is told: {log}");
}
