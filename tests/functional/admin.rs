//! Endpoints for machines: health, capacity, metrics.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed step of a test is a failed test")]

use nix::sys::signal::{Signal, kill};
use omni_tests::{Node, PATIENCE, Stream, wait_for};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{BufReader, Write};
use std::net::TcpStream;

const MODEL: &str = r#"
import time
from omni import Response

def handle_request(request, context):
    wanted = request.body.json
    context.usage(calls=1, tokens=2.5)
    if wanted == "sleep":
        print("began")
        time.sleep(600)
    if wanted == "stream":
        return endless()
    if wanted == "break":
        return broken()
    if wanted == "large":
        return bytes(200_000)
    if wanted == "raise":
        raise RuntimeError
    return Response.error(400, "no") if wanted == "refuse" else wanted

def endless():
    while True:
        yield "x"

def broken():
    yield "half"
    raise RuntimeError
"#;

/// The samples of an OpenMetrics text by name and sorted labels. Anything else in it is a failure.
fn samples(text: &str) -> BTreeMap<String, f64> {
    assert!(text.ends_with("# EOF\n"), "{text}");
    let sample = |line: &str| {
        let (name, number) = line.rsplit_once(' ').unwrap_or_else(|| panic!("no sample: {line}"));
        let name = match name.strip_suffix('}').and_then(|name| name.split_once('{')) {
            None => name.to_owned(),
            Some((name, labels)) => {
                let mut labels: Vec<&str> = labels.split(',').collect();
                labels.sort_unstable();
                format!("{name}{{{}}}", labels.join(","))
            }
        };
        (name, number.parse().unwrap_or_else(|error| panic!("{error}: {line}")))
    };
    text.lines().filter(|line| !line.starts_with('#')).map(sample).collect()
}

fn capacity_of(node: &Node, model: &str) -> Value {
    let capacity = node.admin().get("/capacity").json();
    capacity["models"].as_array().unwrap().iter().find(|row| row["name"] == model).expect("the model").clone()
}

#[test]
fn metrics_count_requests_and_failures() {
    let manifest = "[limits]\nbody = \"1KiB\"\n";
    let node = Node::builder().model("model", &[("model.py", MODEL), ("omni.toml", manifest)]).start();
    let http = node.http();
    for (body, times) in [("fine", 3), ("large", 2), ("raise", 2), ("refuse", 1)] {
        for _ in 0..times {
            let _ = http.run("model", &json!(body));
        }
    }
    assert_eq!(http.run("model", &json!("x".repeat(2000))).status, 413);
    assert_eq!(http.stream("model", &json!("break")).events().len(), 2);
    // Given up: by a deadline, by a client that waits, by a client in the middle of a stream.
    let headers = [("x-omni-timeout-ms", "300")];
    assert_eq!(http.request("POST", "/ai/run/model", &headers, b"\"sleep\"").status, 504);
    let hangs_up = http.send("model", &json!("sleep"));
    let began = || (node.omnictl(["logs", "model"]).stdout.matches("began").count() == 2).then_some(());
    wait_for("the handler to begin", PATIENCE, began);
    drop(hangs_up);
    let mut stream = http.stream("model", &json!("stream"));
    assert!(stream.chunk().unwrap().is_some());
    drop(stream);
    assert_eq!(http.run("model", &json!("fine")).status, 200, "and the handler is free again");

    let metrics = node.admin().get("/metrics");
    assert!(metrics.header("content-type").is_some_and(|media| media.starts_with("application/openmetrics-text")));
    let samples = samples(&metrics.text());
    let outcome =
        |outcome: &str| samples[&format!(r#"omni_requests_total{{api="run",model="model",outcome="{outcome}"}}"#)];
    let outcomes = ["ok", "error", "refused", "cancelled"].map(outcome);
    assert_eq!(outcomes, [6.0, 4.0, 1.0, 3.0], "ok, error, refused, cancelled");
    let one = r#"{model="model"}"#;
    assert_eq!(samples[&format!("omni_requests_in_flight{one}")], 0.0);
    assert_eq!(samples[&format!("omni_queue_depth{one}")], 0.0);
    assert_eq!(samples[r#"omni_instances{model="model",state="ready"}"#], 1.0);
    assert_eq!(samples[r#"omni_instances{model="model",state="failed"}"#], 0.0);
    let memory = samples[&format!("omni_worker_memory_bytes{one}")];
    assert!((1e6..2e9).contains(&memory), "{memory}");
    assert_eq!(samples[&format!("omni_worker_oom_kills_total{one}")], 0.0);
    let calls = samples[r#"omni_usage_total{model="model",unit="calls"}"#];
    assert!(calls >= 10.0, "{calls}");
    for histogram in ["omni_time_to_first_byte_seconds", "omni_queue_wait_seconds"] {
        let count = samples[&format!("{histogram}_count{one}")];
        assert!(count >= 4.0, "{histogram}: {count}");
        assert_eq!(samples[&format!(r#"{histogram}_bucket{{le="+Inf",model="model"}}"#)], count);
    }
    assert!(samples[r#"omni_request_duration_seconds_count{model="model",phase="total"}"#] >= 4.0);
    assert!(samples[r#"omni_instance_start_duration_seconds_count{phase="start"}"#] >= 1.0);

    // A death is counted, by its cause.
    kill(node.engine("model").unwrap(), Signal::SIGKILL).unwrap();
    let death = r#"omni_instance_restarts_total{model="model",reason="signal"}"#;
    wait_for("the death", PATIENCE, || {
        (self::samples(&node.admin().get("/metrics").text()).get(death) == Some(&1.0)).then_some(())
    });
    node.stop();
}

#[test]
fn health_and_capacity() {
    let manifest = "[scaling]\nqueue = 3\n";
    let mut node = Node::builder()
        .model("model", &[("model.py", MODEL), ("omni.toml", manifest)])
        .model("broken", &[("model.py", "nonsense(\n")])
        .start();
    let admin = node.admin();
    assert_eq!((admin.get("/livez").status, admin.get("/readyz").status, admin.get("/x").status), (200, 200, 404));
    assert_eq!(admin.request("POST", "/livez", &[], b"").status, 405);

    assert_eq!(node.http().run("broken", &json!(0)).status, 503);
    let cold = capacity_of(&node, "model");
    assert_eq!((&cold["state"], &cold["resident"], &cold["free_slots"]), (&json!("stopped"), &json!(false), &json!(1)));
    let broken = capacity_of(&node, "broken");
    assert_eq!((&broken["state"], &broken["free_slots"]), (&json!("failed"), &json!(0)));

    // Nothing changes, nothing is sent; something changes, and it is another tag.
    assert_eq!(node.http().run("model", &json!("fine")).status, 200);
    let idle = wait_for("an idle node", PATIENCE, || {
        let capacity = admin.get("/capacity");
        (!capacity.json()["idle_since_unix_ms"].is_null()).then_some(capacity)
    });
    let tag = idle.header("etag").expect("a tag").to_owned();
    let same = admin.request("GET", "/capacity", &[("if-none-match", &tag)], b"");
    assert_eq!((same.status, same.body.len(), same.header("etag")), (304, 0, Some(tag.as_str())));
    let working = node.http().send("model", &json!("sleep"));
    let busy = wait_for("a busy node", PATIENCE, || {
        let capacity = admin.request("GET", "/capacity", &[("if-none-match", &tag)], b"");
        (capacity.status == 200).then_some(capacity)
    });
    assert_ne!(busy.header("etag"), Some(tag.as_str()));
    let waiting = node.http().send("model", &json!("fine"));
    wait_for("one that waits", PATIENCE, || (capacity_of(&node, "model")["queued"] == 1).then_some(()));
    let full = capacity_of(&node, "model");
    assert_eq!(
        (&full["state"], &full["resident"], &full["free_slots"], &full["queue_limit"]),
        (&json!("ready"), &json!(true), &json!(0), &json!(3))
    );
    assert!(full["version"].is_string() && full["estimated_wait_ms"].is_u64(), "{full}");
    assert!(admin.get("/capacity").json()["idle_since_unix_ms"].is_null());
    drop(working);
    assert_eq!(Stream::read(waiting).whole().status, 200);

    // Shutting down: it says so while it finishes what it has, and takes nothing new.
    let mut working = node.http().connect();
    let head =
        "POST /ai/run/model HTTP/1.1\r\nhost: localhost\r\ncontent-type: image/x\r\ntransfer-encoding: chunked\r\n\r\n";
    working.write_all(format!("{head}3\r\n\"fi\r\n").as_bytes()).unwrap();
    wait_for("the request to be at work", PATIENCE, || (node.model("model").in_flight == 1).then_some(()));
    let mut kept = node.http().send("broken", &json!(0));
    let answer;
    (answer, kept) = Stream::read(kept).whole_then();
    assert_eq!(answer.status, 503);
    kill(node.pid(), Signal::SIGTERM).unwrap();
    wait_for("the word that it is not ready", PATIENCE, || (admin.get("/readyz").status == 503).then_some(()));
    assert_eq!((admin.get("/livez").status, admin.get("/capacity").json()["draining"].as_bool()), (200, Some(true)));
    assert!(TcpStream::connect(node.data_address()).is_err(), "nobody else gets in");
    working.write_all(b"3\r\nne\"\r\n0\r\n\r\n").unwrap();
    let answer = Stream::read(BufReader::new(working)).whole();
    assert_eq!((answer.status, &answer.json()["result"]), (200, &json!("fine")));
    drop(kept);
    assert!(node.wait_for_end().success());
}
