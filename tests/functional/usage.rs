//! Records of usage: one for each attempt at a request, whatever its end and whoever is killed, and each at the sink.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed step of a test is a failed test")]

use omni_tests::{Answer, Node, PATIENCE, Receiver, chance, is_soak, wait_for};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};
use std::{fs, mem};

const CUSTOM: &str = r#"
import time

def handle_request(request, context):
    asked = request.body.json
    if asked == "fails":
        raise ValueError("no")
    if asked == "waits":
        time.sleep(30)
    if asked == "streams":
        return pieces()
    context.usage(pages=3)
    return "answer"

def pieces():
    while True:
        yield "piece"
        time.sleep(0.01)
"#;
const TEXT: &str = r#"
from omni import Finish, TextGeneration, Usage

def handle_request(request: TextGeneration, context):
    said = request.messages[-1]["content"]
    yield "one "
    yield "two"
    if said == "counted by the model":
        yield Finish("stop", Usage(prompt_tokens=9, completion_tokens=7, cached_tokens=4))
"#;
const KIND: &str = "[model]\nkind = \"text-generation\"\n[chat]\nrender = \"model\"\n";

/// Records of a node's log and spool, by the ids of their requests.
fn records(node: &Node) -> BTreeMap<String, Vec<Value>> {
    let mut found: BTreeMap<String, BTreeMap<String, Value>> = BTreeMap::new();
    let (models, socket) = (node.folder(), node.control_socket());
    let (root, runtime) = (models.parent().unwrap(), socket.parent().unwrap());
    // The spool comes first: what is moved meanwhile is in the log.
    let mut folders = vec![root.join("state/scheduler/usage"), runtime.join("control/usage")];
    while let Some(folder) = folders.pop() {
        let Ok(entries) = fs::read_dir(folder) else { continue };
        for path in entries.map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                folders.push(path);
            } else {
                // Moved away in between: it is found where it went.
                for line in lines(&path, &fs::read(&path).unwrap_or_default()).lines() {
                    let Ok(record) = serde_json::from_str::<Value>(line) else { continue };
                    let text = |key: &str| record[key].as_str().unwrap().to_owned();
                    found.entry(text("request_id")).or_default().insert(text("id"), record.clone());
                }
            }
        }
    }
    found.into_iter().map(|(request, by_id)| (request, by_id.into_values().collect())).collect()
}

/// Lines of a file of the log, or those of a segment of the spool, which says their length.
fn lines(path: &Path, bytes: &[u8]) -> String {
    let lines = match path.extension().and_then(OsStr::to_str) {
        Some("jsonl") => bytes,
        Some("segment") if bytes.len() > 16 => {
            let length = usize::from_ne_bytes(bytes[8..16].try_into().unwrap());
            &bytes[16..16 + length]
        }
        _ => &[],
    };
    String::from_utf8(lines.to_vec()).unwrap()
}

fn post(node: &Node, path: &str, id: &str, body: &Value) -> Answer {
    let headers = [("content-type", "application/json"), ("x-request-id", id), ("x-omni-timeout-ms", "2000")];
    node.http().request("POST", path, &headers, body.to_string().as_bytes())
}

#[test]
fn every_end_of_an_attempt_is_in_its_record() {
    let node = Node::builder()
        .model("custom", &[("model.py", CUSTOM)])
        .model("text", &[("model.py", TEXT), ("omni.toml", KIND)])
        .start();
    for (id, asked, status) in [("answered", "hello", 200), ("failed", "fails", 500), ("late", "waits", 504)] {
        assert_eq!(post(&node, "/ai/run/custom", id, &json!(asked)).status, status, "{id}");
    }
    let headers = [("content-type", "application/json"), ("x-request-id", "left")];
    let mut stream = node.http().open("POST", "/ai/run/custom", &headers, b"\"streams\"");
    stream.chunk().unwrap().unwrap();
    drop(stream);
    let chat = |id: &str, said: &str, n: u32| {
        let body = json!({"model": "text", "n": n, "messages": [{"role": "user", "content": said}]});
        let answer = post(&node, "/v1/chat/completions", id, &body);
        assert_eq!(answer.status, 200, "{}", answer.text());
        // Before the last byte had left, its records were written.
        records(&node).remove(id).unwrap_or_default()
    };
    let (estimated, counted, two) =
        (chat("estimated", "hi", 1), chat("counted", "counted by the model", 1), chat("two", "hi", 2));

    let all = wait_for("the record of the client that left", PATIENCE, || {
        Some(records(&node)).filter(|records| records.contains_key("left"))
    });
    let only = |id: &str| {
        let [record] = &all[id][..] else { panic!("{id}: {:?}", all[id]) };
        record.clone()
    };
    let answered = only("answered");
    let id = answered["id"].as_str().unwrap();
    assert_eq!((id.len(), id.as_bytes()[14]), (36, b'7'), "{id} is a UUIDv7");
    assert_eq!(answered["instance"].as_str().unwrap().len(), 12);
    assert!(!answered["version"].as_str().unwrap().is_empty());
    assert!(answered["run_seconds"].as_f64().unwrap() > 0.0 && answered["queue_seconds"].as_f64().unwrap() > 0.0);
    assert_eq!(
        [&answered["outcome"], &answered["api"], &answered["model"], &answered["reported"], &answered["bytes_in"]],
        [&json!("complete"), &json!("run"), &json!("custom"), &json!({"pages": 3}), &json!(7)]
    );
    for (id, outcome) in [("failed", "failed"), ("late", "deadline"), ("left", "cancelled")] {
        let record = only(id);
        assert_eq!(record["outcome"], outcome, "{record}");
        assert_eq!(record["instance"].as_str().unwrap().len(), 12, "{record}");
    }
    assert!(only("left")["bytes_out"].as_u64().unwrap() > 0);
    assert!(only("late")["run_seconds"].as_f64().unwrap() > 1.0);
    let tokens = |records: &[Value]| records.iter().map(|record| record["tokens"].clone()).collect::<Vec<_>>();
    let by_model = json!({"input": 9, "output": 7, "cached": 4, "reasoning": 0, "source": "model"});
    assert_eq!(tokens(&counted), [by_model]);
    assert_eq!((&estimated[0]["tokens"]["output"], &estimated[0]["tokens"]["source"]), (&json!(2), &json!("counted")));
    assert_eq!(two.len(), 2, "one for each choice");

    // Sums are of the log, which the records reach a little later.
    let shown = wait_for("all records in the sums", PATIENCE, || {
        let shown: Value =
            serde_json::from_str(&node.omnictl(["usage", "--since", "1h", "-o", "json"]).stdout).unwrap();
        let attempts = |row: &Value| row["attempts"].as_u64().unwrap();
        let all: u64 = shown["rows"].as_array().unwrap().iter().map(attempts).sum();
        (all == 8).then_some(shown)
    });
    let row = |model: &str| shown["rows"].as_array().unwrap().iter().find(|row| row["model"] == model).unwrap().clone();
    assert_eq!((row("custom")["attempts"].clone(), row("custom")["complete"].clone()), (json!(4), json!(1)));
    assert_eq!((row("text")["attempts"].clone(), row("text")["output_tokens"].clone()), (json!(4), json!(13)));
    assert_eq!(row("custom")["reported"], json!({"pages": 3}));
    let metrics = node.admin().get("/metrics").text();
    assert!(metrics.contains("omni_usage_records_total 8\n"), "{metrics}");

    let spool = node.control_socket().parent().unwrap().join("control/usage");
    assert!(spool.is_dir());
    node.stop();
    assert!(!spool.exists(), "what was made at the start is removed");
}

/// A sink that refuses every second batch, and what it got: how often each record.
struct Sink {
    server: Receiver,
    got: Arc<Mutex<BTreeMap<String, (String, u32)>>>,
}

impl Sink {
    fn start() -> Self {
        let got = Arc::<Mutex<BTreeMap<String, (String, u32)>>>::default();
        let to = Arc::clone(&got);
        let server = Receiver::start(move |number, _, body| {
            let refuses = number % 2 == 0;
            if !refuses {
                let mut to = to.lock().unwrap();
                for line in body.lines() {
                    let record: Value = serde_json::from_str(line).unwrap();
                    let text = |key: &str| record[key].as_str().unwrap().to_owned();
                    to.entry(text("id")).or_insert((text("request_id"), 0)).1 += 1;
                }
            }
            let status = if refuses { "503 Busy" } else { "200 OK" };
            format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        });
        Self { server, got }
    }

    /// Ids of the requests whose records it has.
    fn requests(&self) -> BTreeSet<String> {
        self.got.lock().unwrap().values().map(|(request, _)| request.clone()).collect()
    }
}

/// Sends requests until `ends`; returns the ids of those that were answered.
fn clients(address: SocketAddr, ends: &AtomicBool, most: usize) -> BTreeSet<String> {
    let answered = Mutex::new(BTreeSet::new());
    thread::scope(|scope| {
        for number in 0..4 {
            let answered = &answered;
            scope.spawn(move || {
                for at in 0..most {
                    if ends.load(Ordering::Relaxed) {
                        return;
                    }
                    let id = format!("request-{number}-{at}");
                    if ask(address, &id) == Some(200) {
                        answered.lock().unwrap().insert(id);
                    }
                }
            });
        }
    });
    mem::take(&mut *answered.lock().unwrap())
}

/// Status of a request; `None` while there is no scheduler.
fn ask(address: SocketAddr, id: &str) -> Option<u16> {
    let mut connection = TcpStream::connect(address).ok()?;
    let request = format!(
        "POST /ai/run/custom HTTP/1.1\r\nhost: localhost\r\nx-request-id: {id}\r\ncontent-type: application/json\r\n\
         content-length: 7\r\nconnection: close\r\n\r\n\"hello\""
    );
    connection.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    connection.read_to_string(&mut answer).ok()?;
    if !answer.contains("answer") {
        return None;
    }
    answer.split(' ').nth(1)?.parse().ok()
}

#[test]
fn every_answered_request_is_at_the_sink_though_the_scheduler_is_killed() {
    // The sink fails half of the time, and each failure is followed by a pause: a hundred batches take minutes.
    let (kills, between, most, patience) = if is_soak() {
        (60, Duration::from_secs(5), 100_000, Duration::from_secs(900))
    } else {
        (4, Duration::from_millis(1500), 2000, Duration::from_secs(120))
    };
    let sink = Sink::start();
    let config = format!("[usage]\nsink = \"http://{}/usage\"\n", sink.server.address());
    let mut node = Node::builder()
        .config(&config)
        .model("custom", &[("model.py", CUSTOM), ("omni.toml", "[scaling]\nmin-instances = 1\n")])
        .hold_listeners()
        .start();
    node.says("custom", "answer");
    let (address, ends) = (node.data_address(), AtomicBool::new(false));
    let mut chance = chance();
    let answered = thread::scope(|scope| {
        let clients = scope.spawn(|| clients(address, &ends, most));
        for _ in 0..kills {
            let until = Instant::now() + between.mul_f64(0.5 + chance.f64());
            while Instant::now() < until && !clients.is_finished() {
                thread::park_timeout(Duration::from_millis(20));
            }
            node.crash();
            node.start_again();
        }
        ends.store(true, Ordering::Relaxed);
        clients.join().unwrap()
    });
    assert!(answered.len() > 100, "{}", answered.len());
    let at_sink = wait_for("every record at the sink", patience, || {
        Some(sink.requests()).filter(|requests| answered.is_subset(requests))
    });
    let got = sink.got.lock().unwrap();
    let twice = got.values().filter(|(_, times)| *times > 1).count();
    println!("{} answered, {} records, {twice} of them twice, {kills} kills", answered.len(), at_sink.len());
    let mut per_request: BTreeMap<&str, u32> = BTreeMap::new();
    got.values().for_each(|(request, _)| *per_request.entry(request).or_default() += 1);
    assert!(answered.iter().all(|id| per_request[id.as_str()] == 1), "one record for each attempt");
}

#[test]
fn requests_are_refused_where_no_record_may_be_lost_and_the_disk_is_full() {
    let node = Node::builder()
        .on_disk("state", 64 << 20, 4096)
        .config("[usage]\nwhen-full = \"refuse\"\n")
        .model("custom", &[("model.py", CUSTOM)])
        .start();
    node.says("custom", "answer");
    node.disk().fill();
    let refused = |node: &Node| node.http().run("custom", &json!("hello"));
    // Half of the spool has to fill with records first.
    let answer = wait_for("a refusal", Duration::from_secs(240), || {
        (0..500).map(|_| refused(&node)).find(|answer| answer.status != 200)
    });
    assert_eq!((answer.status, answer.error_code()), (503, Some(3040)));
    assert!(answer.text().contains("record of usage"), "{}", answer.text());
    node.disk().free();
    wait_for("an answer", PATIENCE, || (refused(&node).status == 200).then_some(()));
    let metrics = node.admin().get("/metrics").text();
    assert!(metrics.contains("omni_usage_records_lost_total 0\n"), "{metrics}");
}
