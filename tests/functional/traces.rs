//! Traces of requests, as a collector gets them: spans of a cold start, of refusals and of clients that leave; a
//! handler's own spans; items of batches; a collector that is away; and nothing of what clients and models write.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed step of a test is a failed test")]

use omni_tests::{Answer, Node, NodeBuilder, PATIENCE, Receiver, wait_for};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// A word that no span may have.
const SECRET: &str = "sesame-4711";
/// Context of a client, and that of its trace.
const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const CLIENT: &str = "b7ad6b7169203331";

/// Calls a tool if there is one, fails, or streams without end. What it says is secret.
const CHAT: &str = r#"
import time
from omni import TextGeneration

def handle_request(request: TextGeneration, context):
    said = request.prompt or ""
    if "fail" in said:
        raise ValueError("sesame-4711")
    while "endless" in said:
        yield "sesame-4711 "
        time.sleep(0.01)
    time.sleep(0.05)
    yield "sesame-4711 "
    if request.tools:
        yield '<tool_call>\n{"name": "sesame-4711", "arguments": {"a": "sesame-4711"}}\n</tool_call>'
"#;
const TEMPLATE: &str = "{% if tools %}<tool_call>{{ tools | tojson }}</tool_call>{% endif %}\
    {% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>{% endfor %}";
const KIND: &str = "[model]\nkind = \"text-generation\"\n[chat]\ntool-parser = \"hermes\"\n[scaling]\nqueue = 1\n";
/// Answers with its trace.
const ECHO: &str = "
def handle_request(request, context):
    trace = context.trace
    return {'id': trace.trace_id, 'span': trace.span_id, 'sampled': trace.sampled, 'headers': trace.headers()}
";
/// Makes a span with the official SDK, whose parent is the node's, and answers with what was exported.
const SDK: &str = r#"
import json
from opentelemetry.propagate import extract
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

EXPORTER = InMemorySpanExporter()
PROVIDER = TracerProvider()
PROVIDER.add_span_processor(SimpleSpanProcessor(EXPORTER))

def handle_request(request, context):
    EXPORTER.clear()
    with PROVIDER.get_tracer("model").start_as_current_span("search", context=extract(context.trace.headers())):
        pass
    return [json.loads(span.to_json()) for span in EXPORTER.get_finished_spans()]
"#;

/// A collector, and the deliveries that it got.
struct Collector {
    server: Receiver,
    got: Arc<Mutex<Vec<String>>>,
}

impl Collector {
    fn start() -> Self {
        let got = Arc::<Mutex<Vec<String>>>::default();
        let to = Arc::clone(&got);
        let server = Receiver::start(move |_, head, body| {
            assert!(head.starts_with("POST /v1/traces HTTP/1.1\r\n"), "{head}");
            to.lock().unwrap().push(body.to_owned());
            let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\nconnection: close";
            format!("{head}\r\n\r\n{{}}")
        });
        Self { server, got }
    }

    fn config(&self, sample: f64) -> String {
        format!("[tracing]\nendpoint = \"http://{}\"\nsample = {sample:.1}\n", self.server.address())
    }

    /// All spans so far.
    fn spans(&self) -> Vec<Value> {
        let mut spans = Vec::new();
        for body in self.got.lock().unwrap().iter() {
            let body: Value = serde_json::from_str(body).unwrap();
            for resource in body["resourceSpans"].as_array().unwrap() {
                assert_eq!(attribute(&resource["resource"], "service.name"), "omni");
                for scope in resource["scopeSpans"].as_array().unwrap() {
                    spans.extend(scope["spans"].as_array().unwrap().iter().cloned());
                }
            }
        }
        spans
    }

    /// The spans of a trace, once its request has ended.
    fn trace(&self, id: &str) -> Vec<Value> {
        wait_for("the spans of the trace", PATIENCE, || {
            let spans: Vec<Value> = self.spans().into_iter().filter(|span| span["traceId"] == id).collect();
            spans.iter().any(|span| span["kind"] == 2).then_some(spans)
        })
    }

    /// Checks that no delivery has the secret word in it.
    fn has_no_secret(&self) {
        for body in self.got.lock().unwrap().iter() {
            assert!(!body.to_lowercase().contains(SECRET), "{body}");
        }
    }
}

/// Value of an attribute; null without it.
fn attribute(of: &Value, key: &str) -> Value {
    let found = of["attributes"].as_array().unwrap().iter().find(|attribute| attribute["key"] == key);
    found.map_or(Value::Null, |found| found["value"].as_object().unwrap().values().next().unwrap().clone())
}

/// The only span of this name.
fn named<'a>(spans: &'a [Value], name: &str) -> &'a Value {
    let found: Vec<&Value> = spans.iter().filter(|span| span["name"] == name).collect();
    let [span] = found[..] else { panic!("{name}: {spans:#?}") };
    span
}

fn times(span: &Value) -> (u64, u64) {
    let time = |key: &str| span[key].as_str().unwrap().parse().unwrap();
    (time("startTimeUnixNano"), time("endTimeUnixNano"))
}

/// Checks that a span is a part of another one, in time too.
fn is_within(inner: &Value, outer: &Value) {
    assert_eq!(inner["parentSpanId"], outer["spanId"], "{inner:#}\n{outer:#}");
    let ((begin, end), (from, until)) = (times(inner), times(outer));
    assert!(from <= begin && begin <= end && end <= until, "{inner:#}\n{outer:#}");
}

fn builder(config: &str) -> NodeBuilder {
    Node::builder()
        .config(config)
        .model("chat", &[("model.py", CHAT), ("omni.toml", KIND), ("chat_template.jinja", TEMPLATE)])
        .model("echo", &[("model.py", ECHO)])
}

/// A request for generated text, with a secret in all its parts.
fn chat(said: &str, more: &Value) -> Value {
    let messages = json!([{"role": "system", "content": SECRET}, {"role": "user", "content": said}]);
    let mut body = json!({"model": "chat", "user": SECRET, "metadata": {SECRET: SECRET}, "messages": messages});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn post(node: &Node, path: &str, headers: &[(&str, &str)], body: &Value) -> Answer {
    let mut all =
        vec![("content-type", "application/json"), ("x-secret", SECRET), ("tracestate", "vendor=sesame-4711")];
    all.extend(headers);
    node.http().request("POST", path, &all, body.to_string().as_bytes())
}

#[test]
fn a_cold_chat_with_tools_is_one_trace() {
    let collector = Collector::start();
    let node = builder(&collector.config(0.0)).start();
    let function = json!({"name": SECRET, "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}});
    let body = chat("call", &json!({"tools": [{"type": "function", "function": function}]}));
    let path = format!("/v1/chat/completions?q={SECRET}");
    let answer = post(&node, &path, &[("traceparent", PARENT), ("x-request-id", SECRET)], &body);
    let choice = &answer.json()["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls", "{}", answer.text());
    assert!(answer.text().contains(SECRET), "the answer has what no span may have");

    let spans = collector.trace(TRACE);
    let (request, model) = (named(&spans, "POST /v1/chat/completions"), named(&spans, "chat chat"));
    assert_eq!((&request["parentSpanId"], &request["kind"]), (&json!(CLIENT), &json!(2)));
    assert_eq!(attribute(request, "http.route"), "/v1/chat/completions");
    assert_eq!(attribute(request, "http.response.status_code"), "200");
    let queue = named(&spans, "queue");
    for (inner, outer) in [
        (queue, request),
        (named(&spans, "environment"), queue),
        (named(&spans, "start"), queue),
        (named(&spans, "template"), request),
        (model, request),
        (named(&spans, "tools"), model),
    ] {
        is_within(inner, outer);
        assert_eq!(inner["status"], json!({}), "{inner}");
    }
    assert_eq!(spans.len(), 7, "{spans:#?}");
    let time = |name: &str| times(named(&spans, name)).1 - times(named(&spans, name)).0;
    assert!(time("environment") + time("start") > time("queue") / 2, "most of the wait was the start: {spans:#?}");
    assert!(times(named(&spans, "environment")).1 <= times(named(&spans, "start")).0, "{spans:#?}");
    assert!(times(queue).1 <= times(model).0, "the wait ends before the model has the request");
    assert_eq!(attribute(named(&spans, "tools"), "omni.tools.calls"), "1");
    for (key, value) in [
        ("gen_ai.operation.name", json!("chat")),
        ("gen_ai.provider.name", json!("omni")),
        ("gen_ai.request.model", json!("chat")),
        ("gen_ai.response.finish_reasons", json!({"values": [{"stringValue": "tool_calls"}]})),
        ("omni.api", json!("openai")),
        ("omni.instance.id", json!(node.model("chat").instances[0].id)),
    ] {
        assert_eq!(attribute(model, key), value, "{key}");
    }
    let output = answer.json()["usage"]["completion_tokens"].as_u64().unwrap();
    assert_eq!(attribute(model, "gen_ai.usage.output_tokens"), output.to_string());
    collector.has_no_secret();

    // The record of its usage leads to the trace.
    wait_for("the record of the request", PATIENCE, || {
        usage_log(&node).contains(&format!("\"trace_id\":\"{TRACE}\"")).then_some(())
    });
    let metrics = node.admin().get("/metrics").text();
    assert!(metrics.contains("omni_trace_spans_total 7\n") && metrics.contains("omni_trace_spans_lost_total 0\n"));

    // Spans that wait at the end of the node are delivered.
    let last = PARENT.replacen("0af7651916cd43dd", "eeeeeeeeeeeeeeee", 1);
    assert_eq!(post(&node, "/ai/run/echo", &[("traceparent", &last)], &json!({})).status, 200);
    node.stop();
    let spans: Vec<Value> = collector.spans().into_iter().filter(|span| span["traceId"] == last[3..35]).collect();
    assert!(named(&spans, "run echo")["parentSpanId"] == named(&spans, "POST /ai/run/{model}")["spanId"], "{spans:#?}");
}

/// The log of usage records.
fn usage_log(node: &Node) -> String {
    let mut folders = vec![node.folder().parent().unwrap().join("state/scheduler/usage")];
    let mut all = String::new();
    while let Some(folder) = folders.pop() {
        for path in fs::read_dir(folder).into_iter().flatten().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                folders.push(path);
            } else {
                all.push_str(&String::from_utf8_lossy(&fs::read(&path).unwrap_or_default()));
            }
        }
    }
    all
}

#[test]
fn refusals_failures_and_clients_that_leave_end_their_traces() {
    let collector = Collector::start();
    let broken = ("model.py", "raise ValueError('no weights')\n");
    let node = builder(&collector.config(0.0)).model("broken", &[broken]).start();
    let parent = |digit: char| PARENT.replacen("0af7651916cd43dd", &digit.to_string().repeat(16), 1);
    let trace = |digit: char| collector.trace(&parent(digit)[3..35]);

    // Without such a model the request alone has a span.
    let body = json!({"model": SECRET, "messages": [{"role": "user", "content": SECRET}]});
    assert_eq!(post(&node, "/v1/chat/completions", &[("traceparent", &parent('1'))], &body).status, 404);
    assert_eq!(post(&node, &format!("/{SECRET}"), &[("traceparent", &parent('2'))], &body).status, 404);
    let refused = trace('1');
    let [request] = &refused[..] else { panic!("{refused:#?}") };
    assert_eq!((&request["name"], &request["status"]), (&json!("POST /v1/chat/completions"), &json!({})));
    assert_eq!(attribute(request, "http.response.status_code"), "404");
    assert_eq!((&trace('2')[0]["name"], trace('2').len()), (&json!("POST"), 1));

    // A model that cannot start: its name is known, and no instance is.
    assert!(post(&node, "/ai/run/broken", &[("traceparent", &parent('6'))], &json!({})).status >= 500);
    let spans = trace('6');
    assert_eq!(attribute(named(&spans, "POST /ai/run/{model}"), "gen_ai.request.model"), "broken");

    // A handler that raises.
    let failed = post(&node, "/v1/chat/completions", &[("traceparent", &parent('3'))], &chat("fail", &json!({})));
    assert_eq!(failed.status, 500, "{}", failed.text());
    let spans = trace('3');
    assert_eq!(
        (&named(&spans, "chat chat")["status"]["code"], named(&spans, "queue")["status"].clone()),
        (&json!(2), json!({}))
    );
    let request = named(&spans, "POST /v1/chat/completions");
    assert_eq!((attribute(request, "error.type"), &request["status"]["code"]), (json!("500"), &json!(2)));

    // A client that leaves its stream.
    let endless = chat("endless", &json!({"stream": true})).to_string();
    let headers = [("content-type", "application/json"), ("traceparent", &*parent('4'))];
    let mut stream = node.http().open("POST", "/v1/chat/completions", &headers, endless.as_bytes());
    stream.chunk().unwrap().unwrap();
    // Another one in the queue, and one for which the queue has no room.
    let waiting = node.http().send("chat", &json!({"prompt": "endless"}));
    wait_for("the queue", PATIENCE, || (node.model("chat").queued == 1).then_some(()));
    let full = post(&node, "/v1/chat/completions", &[("traceparent", &parent('5'))], &chat("hi", &json!({})));
    assert_eq!(full.status, 429, "{}", full.text());
    drop((stream, waiting));
    let spans = trace('4');
    for name in ["chat chat", "POST /v1/chat/completions"] {
        let span = named(&spans, name);
        assert_eq!(
            (attribute(span, "error.type"), &span["status"]["code"]),
            (json!("cancelled"), &json!(2)),
            "{span:#}"
        );
    }
    is_within(named(&spans, "chat chat"), named(&spans, "POST /v1/chat/completions"));
    let spans = trace('5');
    assert_eq!(attribute(named(&spans, "POST /v1/chat/completions"), "http.response.status_code"), "429");
    assert!(spans.iter().all(|span| span["name"] != "chat chat"), "no instance got it: {spans:#?}");
    collector.has_no_secret();
}

#[test]
fn a_handler_gets_the_trace_that_its_spans_belong_to() {
    let collector = Collector::start();
    let node = builder(&collector.config(0.0))
        .model("sdk", &[("model.py", SDK), ("requirements.txt", "opentelemetry-sdk==1.45.2\n")])
        .start();
    let answer = post(&node, "/ai/run/sdk", &[("traceparent", PARENT), ("x-omni-timeout-ms", "300000")], &json!({}));
    assert_eq!(answer.status, 200, "{}\n{}", answer.text(), node.log());
    let spans = collector.trace(TRACE);
    let model = named(&spans, "run sdk");
    let own = &answer.json()["result"][0];
    assert_eq!(own["context"]["trace_id"], format!("0x{TRACE}"), "{own}");
    assert_eq!(own["parent_id"], format!("0x{}", model["spanId"].as_str().unwrap()), "{own}");

    // A context that is not recorded is passed on as it came, and one that is not valid is replaced.
    let echo = |headers: &[(&str, &str)]| post(&node, "/ai/run/echo", headers, &json!({})).json()["result"].clone();
    let unsampled = PARENT.replace("-01", "-00");
    let seen = echo(&[("traceparent", &unsampled)]);
    assert_eq!(seen["headers"], json!({"traceparent": unsampled, "tracestate": "vendor=sesame-4711"}));
    assert_eq!((&seen["id"], &seen["span"], &seen["sampled"]), (&json!(TRACE), &json!(CLIENT), &json!(false)));
    for invalid in ["00-00000000000000000000000000000000-b7ad6b7169203331-01", "secret", &PARENT.to_uppercase()] {
        let seen = echo(&[("traceparent", invalid)]);
        assert_eq!((seen["id"].as_str().unwrap().len(), &seen["sampled"]), (32, &json!(false)));
        assert_ne!(seen["id"], TRACE, "{seen}");
        assert_eq!(seen["headers"].as_object().unwrap().len(), 1, "a state without its parent is none: {seen}");
    }
    collector.has_no_secret();
}

#[test]
fn a_node_without_tracing_passes_on_what_came() {
    let node = builder("").start();
    let seen = post(&node, "/ai/run/echo", &[("traceparent", PARENT)], &json!({})).json()["result"].clone();
    assert_eq!(seen["headers"], json!({"traceparent": PARENT, "tracestate": "vendor=sesame-4711"}));
    let seen = post(&node, "/ai/run/echo", &[], &json!({})).json()["result"].clone();
    assert_eq!((&seen["headers"], seen["id"].as_str().unwrap().len()), (&json!({}), 32));
    assert_eq!(node.metric("omni_trace_spans_total"), Some(0.0));
}

#[test]
fn a_collector_that_is_away_costs_counted_losses_alone() {
    let collector = Collector::start();
    let config = format!("{}timeout = \"1s\"\n", collector.config(1.0));
    drop(collector);
    let node = builder(&config).start();
    let http = node.http();
    let began = Instant::now();
    for _ in 0..200 {
        assert_eq!(http.run("echo", &json!({})).status, 200);
    }
    assert!(began.elapsed() < PATIENCE);
    let lost =
        wait_for("the losses", PATIENCE, || node.metric("omni_trace_spans_lost_total").filter(|lost| *lost > 0.0));
    assert!(lost <= 602.0, "three for each request, and the start of the instance: {lost}");
    let ended = Instant::now();
    node.stop();
    assert!(ended.elapsed() < PATIENCE + Duration::from_secs(10));
}

#[test]
fn items_of_batches_begin_traces_of_their_own() {
    let collector = Collector::start();
    let jobs = "[jobs]\nidle = \"1ms\"\n";
    let node = builder(&format!("{}{jobs}", collector.config(1.0))).start();
    let queued = json!({"requests": [{"text": SECRET}, {"text": SECRET}]});
    let answer = post(&node, "/ai/run/echo?queueRequest=true", &[], &queued);
    let id =
        answer.json()["result"]["request_id"].as_str().unwrap_or_else(|| panic!("{}", answer.text())).replace('-', "");
    let spans = wait_for("the spans of both items", 2 * PATIENCE, || {
        let spans = collector.spans();
        let items = spans.iter().filter(|span| attribute(span, "omni.batch.id") == format!("batch_{id}")).count();
        (items == 2).then_some(spans)
    });
    let items: Vec<&Value> = spans.iter().filter(|span| !attribute(span, "omni.batch.id").is_null()).collect();
    let mut numbers: Vec<_> = items.iter().map(|span| attribute(span, "omni.batch.item")).collect();
    numbers.sort_by_key(ToString::to_string);
    assert_eq!(numbers, ["0", "1"]);
    assert_ne!(items[0]["traceId"], items[1]["traceId"]);
    assert!(
        items.iter().all(|span| span["parentSpanId"].is_null() && span["name"] == "POST /ai/run/{model}"),
        "{items:#?}"
    );
    collector.has_no_secret();
}

#[test]
fn headers_for_the_collector_are_checked_at_the_start_and_stay_secret() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("headers");
    fs::write(&path, format!("authorization {SECRET}\n")).unwrap();
    let refused = failing(&path);
    assert!(refused.contains("line 1 is no header"), "{refused}");
    assert!(!refused.contains(SECRET), "{refused}");
}

/// Output of a node that cannot start with these headers.
fn failing(headers: &Path) -> String {
    let config = format!("[tracing]\nendpoint = \"http://127.0.0.1:9\"\nheaders = \"{}\"\n", headers.display());
    let output = builder(&config).begin().ends_by_itself();
    format!("{}{}", output.stdout, output.stderr)
}
