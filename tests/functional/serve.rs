//! The main job: models in a folder, requests over HTTP, answers by the published contract, failures by its table.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed step of a test is a failed test")]

use omni_control_api::{Models, State};
use omni_tests::{Answer, Node, PATIENCE, wait_for};
use serde_json::{Value, json};

const COW: &str = "  __\n| hi |\n  ==\n  \\\n   \\\n     ^__^\n     (oo)\\_______\n     (__)\\       )\\/\\\n         ||----w |\n         ||     ||";

/// Says what it was given; every request is answered at once.
const ECHO: &[(&str, &str)] = &[(
    "model.py",
    r#"
def handle_request(request, context):
    return {"json": request.body.json, "method": request.method, "id": request.id, "model": context.model}
"#,
)];

fn run(model: &str) -> String {
    format!("/ai/run/{model}")
}

/// Asserts the form of a failure: a status of its own, the envelope, and nothing about the inside.
fn assert_failure(what: &str, answer: &Answer, status: u16, code: u64) {
    assert_eq!(answer.status, status, "{what}: {}", answer.text());
    let body = answer.json();
    assert_eq!(answer.error_code(), Some(code), "{what}: {body}");
    assert_eq!(
        (&body["success"], &body["result"], &body["messages"]),
        (&json!(false), &Value::Null, &json!([])),
        "{what}"
    );
    let message = body["errors"][0]["message"].as_str().expect("a message");
    assert!(!message.is_empty(), "{what}");
    for secret in ["Traceback", "/", "model.py", "panicked"] {
        assert!(!message.contains(secret), "{what}: {message}");
    }
    assert!(answer.header("x-request-id").is_some(), "{what}");
    if let Some(seconds) = answer.header("retry-after") {
        assert!((1..=60).contains(&seconds.parse::<u32>().unwrap()), "{what}: {seconds}");
    }
}

#[test]
fn a_model_answers() {
    let node = Node::builder().example("cowsay").start();
    for path in ["/ai/run/cowsay", "/client/v4/accounts/any/ai/run/cowsay"] {
        let headers = [("content-type", "application/json"), ("x-request-id", "cow-1")];
        let answer = node.http().request("POST", path, &headers, br#"{"text": "hi"}"#);
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_eq!(answer.json(), json!({"result": COW, "success": true, "errors": [], "messages": []}));
        assert_eq!(answer.header("x-request-id"), Some("cow-1"));
        assert!(
            answer.header("x-omni-model-version").is_some_and(|version| version.bytes().all(|b| b.is_ascii_hexdigit()))
        );
        let timing = answer.header("server-timing").expect("timing");
        assert!(timing.contains("queue") && timing.contains("model"), "{timing}");
    }
    let refused = node.http().post(&run("cowsay"), &json!({}));
    assert_eq!((refused.status, refused.json()["success"].as_bool()), (400, Some(false)), "{}", refused.text());
    node.stop();
}

#[test]
fn names_with_slashes_and_a_folder_that_changes() {
    let node = Node::builder().model("@cf/meta/llama", ECHO).start();
    for path in ["@cf/meta/llama", "@cf%2Fmeta%2Fllama"] {
        let answer = node.http().post(&run(path), &json!({"a": 1}));
        assert_eq!(answer.json()["result"]["model"], "@cf/meta/llama", "{path}: {}", answer.text());
    }
    for bad in ["..", "%2e%2e/echo", "a%2f..%2fecho", "%00", "@cf", "@cf/meta", "@cf/meta/llama/x", ""] {
        assert_eq!(node.http().post(&run(bad), &json!({})).status, 404, "{bad:?}");
    }

    let answers = |text: &str| {
        let body = node.http().post(&run("new"), &json!({})).json();
        (body["result"] == text).then_some(())
    };
    let says = |text: &str| format!("def handle_request(request, context):\n    return {text:?}\n");
    node.publish("new", &[("model.py", &says("one"))]);
    wait_for("a new model", PATIENCE, || answers("one"));
    node.publish("new", &[("model.py", &says("two"))]);
    wait_for("its new content", PATIENCE, || answers("two"));
    node.unpublish("new");
    wait_for("its end", PATIENCE, || (node.http().post(&run("new"), &json!({})).status == 404).then_some(()));
}

#[test]
fn failures_by_the_table() {
    let handler = |body: &str| format!("import os, sys, time\ndef handle_request(request, context):\n    {body}\n");
    let one = |body: &str| handler(body).leak() as &str;
    let node = Node::builder()
        .model("echo", ECHO)
        .model("raises", &[("model.py", one("raise RuntimeError('secret of the model')"))])
        .model("odd", &[("model.py", one("return object()"))])
        .model("exits", &[("model.py", one("os._exit(3)"))])
        .model("slow", &[("model.py", one("time.sleep(30)"))])
        .model("small", &[ECHO[0], ("omni.toml", "schema = 1\n[limits]\nbody = \"1KiB\"\n")])
        .model("broken", &[("model.py", "def handle_request(request, context:\n")])
        .model("empty", &[("model.py", "x = 1\n")])
        .model("misspelt", &[ECHO[0], ("omni.toml", "schema = 1\n[resources]\nmemmory = \"1GiB\"\n")])
        .start();
    let http = node.http();
    let json_body = [("content-type", "application/json")];

    assert_failure("no such model", &http.post(&run("nobody"), &json!({})), 404, 5007);
    assert_failure("not JSON", &http.request("POST", &run("echo"), &json_body, b"{\"a\":"), 400, 5004);
    assert_failure("too large", &http.post(&run("small"), &json!("x".repeat(2000))), 413, 3006);
    for (model, status, code) in [("raises", 500, 3043), ("odd", 500, 3043)] {
        let answer = http.post(&run(model), &json!({}));
        assert_failure(model, &answer, status, code);
        assert_eq!(answer.header("x-should-retry"), Some("false"), "{model}");
        assert!(!answer.text().contains("secret"), "{model}");
    }
    let died = http.post(&run("exits"), &json!({}));
    assert_failure("died", &died, 502, 3050);
    assert_eq!(died.header("x-should-retry"), Some("false"));
    let late = http.request("POST", &run("slow"), &[("x-omni-timeout-ms", "300")], b"{}");
    assert_failure("late", &late, 504, 3007);
    assert_eq!(late.header("x-should-retry"), Some("false"));
    for model in ["broken", "empty", "misspelt"] {
        let answer = http.post(&run(model), &json!({}));
        assert_failure(model, &answer, 503, 3040);
        assert!(answer.header("retry-after").is_some(), "{model}");
        assert_eq!(answer.header("x-omni-retry"), Some("other-node"), "{model}");
    }
    let method = http.get(&run("echo"));
    assert_eq!((method.status, method.header("allow")), (405, Some("POST")));
    assert_eq!(http.get("/nothing").status, 404);

    // The neighbours of all this are well.
    assert_eq!(http.post(&run("echo"), &json!(1)).json()["result"]["json"], 1);
    // The author gets the details that the client does not.
    assert!(node.omnictl(["logs", "raises"]).stdout.contains("secret of the model"));
    let misspelt = node.omnictl(["status", "misspelt"]);
    assert!(misspelt.code == 3 && misspelt.stdout.contains("memory"), "the nearest known name: {misspelt:?}");
    node.stop();
}

#[test]
fn streams_and_bytes() {
    let model = r#"
from omni import Response

def handle_request(request, context):
    kind = request.body.json["kind"]
    if kind == "bytes":
        return Response(b"\x00\xff", media_type="image/x-test")
    return {"text": texts, "values": values, "breaks": breaks, "cut": cut}[kind]()

def texts():
    yield "a"
    yield "b\n"

def values():
    yield {"n": 1}
    yield [2]

def breaks():
    yield "a"
    raise RuntimeError("secret of the model")

def cut():
    yield b"a" * 10
    yield {"no": "bytes"}
"#;
    let node = Node::builder().model("stream", &[("model.py", model)]).example("counter").start();
    let events = |model: &str, body: &Value| {
        let stream =
            node.http().open("POST", &run(model), &[("content-type", "application/json")], body.to_string().as_bytes());
        assert_eq!(stream.status, 200);
        assert!(stream.header("content-type").is_some_and(|media| media.starts_with("text/event-stream")));
        stream.events()
    };
    assert_eq!(events("stream", &json!({"kind": "text"})), [r#"{"response":"a"}"#, r#"{"response":"b\n"}"#, "[DONE]"]);
    assert_eq!(events("stream", &json!({"kind": "values"})), [r#"{"n":1}"#, "[2]", "[DONE]"]);
    assert_eq!(events("counter", &json!({"to": 3})).last().map(String::as_str), Some("[DONE]"));

    let broken = events("stream", &json!({"kind": "breaks"}));
    assert_eq!(broken.len(), 2, "{broken:?}");
    assert!(broken[1].contains("\"error\"") && !broken[1].contains("secret"), "{broken:?}");
    // In a broken stream of bytes the client gets the head and everything sent before the failure, and sees that the
    // end is missing.
    for _ in 0..10 {
        let body = json!({"kind": "cut"}).to_string();
        let head =
            format!("POST {} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n", run("stream"), body.len());
        let answer = node.http().raw(format!("{head}{body}").as_bytes(), false);
        let text = String::from_utf8_lossy(&answer);
        assert!(text.starts_with("HTTP/1.1 200 ") && text.contains("aaaaaaaaaa"), "{text}");
        assert!(!text.ends_with("0\r\n\r\n"), "{text}");
    }

    let bytes = node.http().post(&run("stream"), &json!({"kind": "bytes"}));
    assert_eq!(
        (bytes.status, bytes.header("content-type"), &bytes.body[..]),
        (200, Some("image/x-test"), &b"\x00\xff"[..])
    );
}

#[test]
fn bad_input_fails_only_its_own_request() {
    let node = Node::builder().model("echo", ECHO).start();
    let http = node.http();
    assert_eq!(http.post(&run("echo"), &json!(0)).status, 200);
    let many: String = (0..5000).map(|n| format!("x-{n}: y\r\n")).collect();
    let long = "x".repeat(1 << 20);
    // A refusal must be answered; a hang-up must leave nothing behind.
    let refused = [
        ("no HTTP", "\x16\x03\x01\x02\x00\x01\r\n\r\n".to_owned()),
        ("too many headers", format!("POST /ai/run/echo HTTP/1.1\r\nhost: localhost\r\n{many}\r\n")),
        ("a header bomb", format!("POST /ai/run/echo HTTP/1.1\r\nhost: localhost\r\nx: {long}\r\n\r\n")),
        ("a bad length", "POST /ai/run/echo HTTP/1.1\r\nhost: localhost\r\ncontent-length: -1\r\n\r\n".to_owned()),
        (
            "two lengths",
            "POST /ai/run/echo HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab"
                .to_owned(),
        ),
    ];
    for (what, request) in refused {
        let answer = String::from_utf8_lossy(&http.raw(request.as_bytes(), false)).into_owned();
        assert!(answer.starts_with("HTTP/1.1 4") || answer.is_empty(), "{what}: {answer}");
    }
    for half in
        ["POST", "POST /ai/run/echo HTTP/1.1\r\nhost", "POST /ai/run/echo HTTP/1.1\r\ncontent-length: 9\r\n\r\n{"]
    {
        let _ = http.raw(half.as_bytes(), true);
    }
    for bad in ["x".repeat(5000), "\u{1}".to_owned(), "a b".to_owned()] {
        let request = format!(
            "POST /ai/run/echo HTTP/1.1\r\nhost: localhost\r\nx-request-id: {bad}\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{{}}"
        );
        let answer = String::from_utf8_lossy(&http.raw(request.as_bytes(), false)).into_owned();
        assert!(!answer.contains(&bad), "an insane request id is not repeated");
    }
    let answer = http.post(&run("echo"), &json!({"still": "here"}));
    assert_eq!(answer.json()["result"]["json"], json!({"still": "here"}));
    node.stop();
}

#[test]
fn a_model_sees_its_own_memory_limit() {
    let host = std::fs::read_to_string("/proc/meminfo").unwrap();
    let shows = "def handle_request(request, context):\n    return open('/proc/meminfo').readline()\n";
    let manifest = "schema = 1\n[resources]\nmemory = \"7GiB\"\n";
    let node = Node::builder().model("shows", &[("model.py", shows), ("omni.toml", manifest)]).start();
    assert_eq!(node.http().post(&run("shows"), &json!({})).json()["result"], "MemTotal:        7340032 kB\n");
    let total = |text: &str| text.lines().next().map(str::to_owned);
    assert_eq!(total(&std::fs::read_to_string("/proc/meminfo").unwrap()), total(&host), "the host's own is untouched");
}

#[test]
fn the_node_reports_its_state() {
    let mut node = Node::builder().model("echo", ECHO).start();
    let admin = node.admin();
    assert_eq!((admin.get("/livez").status, admin.get("/readyz").status), (200, 200));
    assert_eq!(node.http().post(&run("echo"), &json!({})).status, 200);
    let metrics = admin.get("/metrics").text();
    for name in ["omni_requests_total{", "omni_request_duration_seconds_bucket{", "omni_instances{"] {
        assert!(metrics.contains(name), "{name} in\n{metrics}");
    }
    let capacity = admin.get("/capacity");
    assert_eq!(capacity.status, 200);
    let tag = capacity.header("etag").expect("an etag").to_owned();
    assert_eq!(admin.request("GET", "/capacity", &[("if-none-match", &tag)], b"").status, 304);

    let models: Models = serde_json::from_str(&node.omnictl(["list", "-o", "json"]).stdout).unwrap();
    assert_eq!(
        models.models.iter().map(|model| (model.name.as_str(), model.state)).collect::<Vec<_>>(),
        [("echo", State::Ready)]
    );
    let engine = models.models[0].instances.first().and_then(|instance| instance.pid).expect("a process");
    assert_eq!(node.omnictl(["status", "echo"]).code, 0);
    assert_eq!(node.omnictl(["status", "nobody"]).code, 4);
    let ran = node.omnictl(["run", "echo", r#"{"text": "hi"}"#]);
    assert!(ran.code == 0 && ran.stdout.contains("hi"), "{ran:?}");

    // A crash of the scheduler is none of the model's business.
    node.crash();
    node.start_again();
    assert_eq!(node.http().post(&run("echo"), &json!({})).status, 200);
    let models: Models = serde_json::from_str(&node.omnictl(["list", "-o", "json"]).stdout).unwrap();
    assert_eq!(models.models[0].instances.first().and_then(|instance| instance.pid), Some(engine), "the same process");
    node.stop();
}
