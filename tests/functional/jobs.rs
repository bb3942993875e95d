//! Batch jobs of a node: files and batches of the OpenAI API, queued requests of Workers AI, owners, and what they survive.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed step of a test is a failed test")]

use omni_tests::clients::run_clients;
use omni_tests::process::peak_resident;
use omni_tests::{Answer, Client, Node, NodeBuilder, PATIENCE, chance, is_soak, wait_for};
use serde_json::{Value, json};
use std::os::unix::fs::PermissionsExt;
use std::thread;
use std::time::{Duration, Instant};

const CHAT: &str = r#"
import os
from omni import Finish, TextGeneration, Usage

def handle_request(request: TextGeneration, context):
    said = request.messages[-1]["content"]
    if said == "die":
        os._exit(3)
    yield said
    yield Finish("stop", Usage(prompt_tokens=4, completion_tokens=2))
"#;
const SLOW: &str = r#"
import time
from omni import TextGeneration

def handle_request(request: TextGeneration, context):
    time.sleep(0.1)
    yield "slow"
"#;
const ECHO: &str = "
def handle_request(request, context):
    if request.body.json.get('fails'):
        raise ValueError('as asked')
    return request.body.json
";
const TEXT: &str = "[model]\nkind = \"text-generation\"\n[chat]\nrender = \"model\"\n[scaling]\nconcurrency = 4\n";
const JOBS: &str = "[jobs]\nidle = \"1ms\"\n";

fn builder(config: &str) -> NodeBuilder {
    Node::builder()
        .config(config)
        .model("chat", &[("model.py", CHAT), ("omni.toml", TEXT)])
        .model("slow", &[("model.py", SLOW), ("omni.toml", TEXT)])
        .model("echo", &[("model.py", ECHO)])
}

#[test]
fn the_openai_sdks_work_unmodified() {
    let node = builder(JOBS).start();
    run_clients(&node, "test_batches.py");
    run_clients(&node, "batches.test.mjs");
}

#[test]
fn litellm_and_the_clients_of_workers_ai_work_unmodified() {
    let node = builder(JOBS).start();
    run_clients(&node, "test_batches_litellm.py");
    run_clients(&node, "test_batches_cloudflare.py");
    run_clients(&node, "batches-cloudflare.test.mjs");
}

/// Uploads a file and begins a batch of it, with these headers beside.
fn begin(http: &Client, lines: &[Value], token: Option<&str>) -> String {
    let content: String = lines.iter().map(|line| format!("{line}\n")).collect();
    let field = |head: &str, value: &str| format!("--b\r\nContent-Disposition: form-data; {head}\r\n\r\n{value}\r\n");
    let form =
        format!("{}{}--b--\r\n", field("name=\"purpose\"", "batch"), field("name=\"file\"; filename=\"x\"", &content));
    let file = ask(http, ("POST", "/v1/files"), token, ("multipart/form-data; boundary=b", form.as_bytes()));
    assert_eq!(file.status, 200, "{}", file.text());
    let body = json!({
        "input_file_id": file.json()["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h",
    });
    let body = body.to_string();
    let batch = ask(http, ("POST", "/v1/batches"), token, ("application/json", body.as_bytes()));
    assert_eq!(batch.status, 200, "{}", batch.text());
    batch.json()["id"].as_str().unwrap().to_owned()
}

fn ask(http: &Client, (method, path): (&str, &str), token: Option<&str>, (media, body): (&str, &[u8])) -> Answer {
    let bearer = token.map(|token| format!("Bearer {token}"));
    let mut headers = vec![("content-type", media)];
    headers.extend(bearer.as_deref().map(|bearer| ("authorization", bearer)));
    http.request(method, path, &headers, body)
}

fn get(http: &Client, path: &str, token: Option<&str>) -> Answer {
    ask(http, ("GET", path), token, ("application/json", b""))
}

fn line(id: usize, model: &str) -> Value {
    let body = json!({"model": model, "messages": [{"role": "user", "content": format!("say {id}")}]});
    json!({"custom_id": id.to_string(), "method": "POST", "url": "/v1/chat/completions", "body": body})
}

fn await_end(node: &Node, id: &str, token: Option<&str>) -> Value {
    wait_for("the end of the batch", 2 * PATIENCE, || {
        let batch = get(&node.http(), &format!("/v1/batches/{id}"), token);
        let is_over = ["completed", "failed", "cancelled"].iter().any(|status| batch.json()["status"] == *status);
        Some(batch.json()).filter(|_| batch.status == 200 && is_over)
    })
}

#[test]
fn queued_requests_of_workers_ai_have_their_answers() {
    let node = builder(JOBS).start();
    let requests = json!({"requests": [
        {"prompt": "one", "external_reference": "r1", "other": [1, 2]}, {"prompt": "two"}, {"fails": true},
    ]});
    let queued = node.http().post("/ai/run/echo?queueRequest=true", &requests);
    assert_eq!(queued.status, 200, "{}", queued.text());
    let result = &queued.json()["result"];
    assert_eq!((&result["status"], &result["model"]), (&json!("queued"), &json!("echo")));
    let batch = format!("/v1/batches/batch_{}", result["request_id"].as_str().unwrap().replace('-', ""));
    for (method, path) in [("GET", batch.clone()), ("POST", format!("{batch}/cancel"))] {
        let refused = ask(&node.http(), (method, &path), None, ("application/json", b""));
        assert_eq!(refused.status, 404, "{path} is of the other API");
    }
    let poll = json!({"request_id": result["request_id"]});
    let answers = wait_for("the answers", PATIENCE, || {
        // The binding asks without the query, others with it.
        let [bare, with_query] =
            ["/ai/run/echo", "/ai/run/echo?queueRequest=true"].map(|path| node.http().post(path, &poll));
        assert_eq!((bare.status, with_query.status), (200, 200), "{}", bare.text());
        Some(bare.json()["result"].clone()).filter(|result| result["responses"].is_array())
    });
    let responses = &answers["responses"];
    let first = json!({
        "id": 0, "result": {"prompt": "one", "other": [1, 2]}, "success": true, "external_reference": "r1",
    });
    assert_eq!(responses[0], first);
    assert_eq!(
        (&responses[1]["result"], &responses[1]["external_reference"]),
        (&json!({"prompt": "two"}), &Value::Null)
    );
    assert_eq!((&responses[2]["success"], &responses[2]["result"]), (&json!(false), &Value::Null));
    assert_eq!(responses[2]["errors"][0]["code"], 3043);

    let foreign = json!({"request_id": "01890000-0000-7000-8000-000000000000"});
    assert_eq!(node.http().post("/ai/run/echo?queueRequest=true", &foreign).status, 404);
    let passed = node.http().post("/ai/run/echo", &foreign);
    assert_eq!(passed.json()["result"], foreign, "a model may take such an object");
    assert_eq!(node.http().post("/ai/run/echo?queueRequest=true", &json!({"requests": []})).status, 400);
}

/// A node with these properties of the tokens "one" and "two", of `a` and `b`.
fn node_with_tokens(of_a: &str, of_b: &str) -> (Node, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let tokens = folder.path().join("tokens.toml");
    // The digests of "one" and "two".
    let one = "7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed";
    let two = "3fc4ccfe745870e2c0d99f71f30ff0656c8dedd41cc1d7d3d376b0dbe685e2f3";
    let text = format!("[a]\nsha256 = \"{one}\"\n{of_a}\n[b]\nsha256 = \"{two}\"\n{of_b}\n");
    std::fs::write(&tokens, text).unwrap();
    std::fs::set_permissions(&tokens, std::fs::Permissions::from_mode(0o644)).unwrap();
    (builder(JOBS).config(&format!("[server]\ntokens = {tokens:?}\n")).start(), folder)
}

#[test]
fn what_one_token_owns_another_does_not_see() {
    let (node, _folder) = node_with_tokens("in-flight = 1", "models = [\"slow\"]");
    let http = node.http();
    let (mine, theirs) = (Some("one"), Some("two"));
    let lines: Vec<Value> = (0..4).map(|id| line(id, "chat")).collect();
    let id = begin(&http, &lines, mine);
    let batch = await_end(&node, &id, mine);
    assert_eq!(batch["request_counts"], json!({"total": 4, "completed": 4, "failed": 0}), "no quota counts");
    let output = batch["output_file_id"].as_str().unwrap();
    for path in [format!("/v1/batches/{id}"), format!("/v1/files/{output}"), format!("/v1/files/{output}/content")] {
        assert_eq!(get(&http, &path, theirs).status, 404, "{path}");
        assert_eq!(get(&http, &path, mine).status, 200, "{path}");
        assert_eq!(get(&http, &path, None).status, 401, "{path}");
    }
    assert_eq!(
        ask(&http, ("POST", &format!("/v1/batches/{id}/cancel")), theirs, ("application/json", b"")).status,
        404
    );
    assert_eq!(ask(&http, ("DELETE", &format!("/v1/files/{output}")), theirs, ("application/json", b"")).status, 404);
    for path in ["/v1/files", "/v1/batches"] {
        assert_eq!(get(&http, path, theirs).json()["data"], json!([]), "{path}");
        assert_ne!(get(&http, path, mine).json()["data"], json!([]), "{path}");
    }
    // The other token is not good for this model, in a batch as elsewhere.
    let refused = await_end(&node, &begin(&http, &lines, theirs), theirs);
    assert_eq!((&refused["request_counts"]["failed"], &refused["output_file_id"]), (&json!(4), &Value::Null));
    assert_eq!(get(&http, "/v1/batches?foo=1", mine).status, 400);
}

/// Requests that each kill the instance, beside those of clients and of another token's batch.
#[test]
fn a_batch_that_kills_its_model_leaves_it_to_others() {
    let (node, _folder) = node_with_tokens("", "");
    let http = node.http();
    let die = |id: usize| {
        let body = json!({"model": "chat", "messages": [{"role": "user", "content": "die"}]});
        json!({"custom_id": id.to_string(), "method": "POST", "url": "/v1/chat/completions", "body": body})
    };
    let killing = begin(&http, &(0..100).map(die).collect::<Vec<_>>(), Some("one"));
    let failed =
        || get(&http, &format!("/v1/batches/{killing}"), Some("one")).json()["request_counts"]["failed"].clone();
    wait_for("the second death that an item alone has caused", PATIENCE, || {
        node.log().contains("no further item for this model for 20 s").then_some(())
    });
    let chat = || {
        let body = json!({"model": "chat", "messages": [{"role": "user", "content": "hello"}]}).to_string();
        ask(&http, ("POST", "/v1/chat/completions"), Some("two"), ("application/json", body.as_bytes()))
    };
    wait_for("the model to be there again", PATIENCE, || (chat().status == 200).then_some(()));
    // For twenty seconds the batch waits: the model is there for all others.
    let (deaths, ended) = (node.model("chat").restarts, failed());
    assert!(deaths <= 6 && ended.as_u64() <= Some(2), "{deaths}, {ended}");
    let good = begin(&http, &(0..20).map(|id| line(id, "chat")).collect::<Vec<_>>(), Some("two"));
    let until = Instant::now() + Duration::from_secs(5);
    while Instant::now() < until {
        let answer = chat();
        assert_eq!(answer.status, 200, "{}", answer.text());
        thread::sleep(Duration::from_millis(50));
    }
    let counts = await_end(&node, &good, Some("two"))["request_counts"].clone();
    assert_eq!(counts, json!({"total": 20, "completed": 20, "failed": 0}));
    assert_eq!((node.model("chat").restarts, failed()), (deaths, ended));
    let cancel = format!("/v1/batches/{killing}/cancel");
    assert_eq!(ask(&http, ("POST", &cancel), Some("one"), ("application/json", b"")).status, 200);
    assert_eq!(await_end(&node, &killing, Some("one"))["status"], "cancelled");
    node.stop();
}

#[test]
fn a_batch_goes_on_after_a_kill_and_over_an_upgrade() {
    let mut node = builder(JOBS).start();
    let lines: Vec<Value> = (0..60).map(|id| line(id, "slow")).collect();
    let id = begin(&node.http(), &lines, None);
    let completed = |node: &Node, least: u64| {
        wait_for("results", PATIENCE, || {
            let batch = get(&node.http(), &format!("/v1/batches/{id}"), None);
            (batch.status == 200 && batch.json()["request_counts"]["completed"].as_u64()? >= least).then_some(())
        });
    };
    completed(&node, 4);
    node.crash();
    node.start_again();
    completed(&node, 8);
    node.upgrade();
    let batch = await_end(&node, &id, None);
    assert_eq!(batch["request_counts"], json!({"total": 60, "completed": 60, "failed": 0}));
    let output = batch["output_file_id"].as_str().unwrap();
    let content = get(&node.http(), &format!("/v1/files/{output}/content"), None).text();
    let ids: Vec<String> = content
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["custom_id"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(ids, (0..60).map(|id| id.to_string()).collect::<Vec<_>>());
}

#[test]
fn every_item_has_one_result_whatever_is_killed() {
    let (items, kills) = if is_soak() { (10_000, 20) } else { (400, 4) };
    let mut chance = chance();
    let mut node = builder(JOBS).start();
    let lines: Vec<Value> = (0..items).map(|id| line(id, "chat")).collect();
    let id = begin(&node.http(), &lines, None);
    for _ in 0..kills {
        thread::sleep(Duration::from_millis(chance.u64(50..1500)));
        node.crash();
        node.start_again();
    }
    let batch = await_end(&node, &id, None);
    assert_eq!(batch["request_counts"], json!({"total": items, "completed": items, "failed": 0}), "{batch}");
    let output = batch["output_file_id"].as_str().unwrap();
    let content = get(&node.http(), &format!("/v1/files/{output}/content"), None).text();
    for (at, line) in content.lines().enumerate() {
        let line: Value = serde_json::from_str(line).unwrap();
        let said = &line["response"]["body"]["choices"][0]["message"]["content"];
        assert_eq!((&line["custom_id"], said), (&json!(at.to_string()), &json!(format!("say {at}"))));
    }
    assert_eq!(content.lines().count(), items);
}

#[test]
fn an_upload_goes_to_the_disk_as_it_comes() {
    let node = builder(JOBS).start();
    let (head, end) = (
        "--b\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n--b\r\n\
         Content-Disposition: form-data; name=\"file\"; filename=\"x\"\r\n\r\n",
        "\r\n--b--\r\n",
    );
    let upload = |mebibytes: usize| {
        let length = head.len() + (mebibytes << 20) + end.len();
        let request = format!(
            "POST /v1/files HTTP/1.1\r\nHost: {}\r\nContent-Type: multipart/form-data; boundary=b\r\n\
             Content-Length: {length}\r\nConnection: close\r\n\r\n{head}",
            node.data_address()
        );
        let piece = vec![b'x'; 1 << 20];
        let content = std::iter::repeat_n(piece.as_slice(), mebibytes);
        let pieces: Vec<&[u8]> = std::iter::once(request.as_bytes()).chain(content).chain([end.as_bytes()]).collect();
        let answer = node.http().write_all_then_read(&pieces).whole();
        assert_eq!((answer.status, &answer.json()["bytes"]), (200, &json!(mebibytes << 20)), "{}", answer.text());
    };
    upload(4);
    let pid = node.pid();
    std::fs::write(format!("/proc/{pid}/clear_refs"), "5").unwrap(); // the peak is counted anew
    let before = peak_resident(pid).unwrap();
    upload(200);
    let grown = peak_resident(pid).unwrap().saturating_sub(before);
    assert!(grown <= 4 << 20, "{grown} bytes");
}

#[test]
fn a_node_without_batch_jobs_has_no_such_routes() {
    let node = builder("[jobs]\nenabled = false\n").start();
    assert_eq!(get(&node.http(), "/v1/files", None).status, 404);
    let refused = node.http().post("/ai/run/echo?queueRequest=true", &json!({"requests": []}));
    assert!(refused.status == 400 && refused.text().contains("its batch jobs are off"), "{}", refused.text());
    for query in ["", "?queueRequest=false"] {
        let taken = node.http().post(&format!("/ai/run/echo{query}"), &json!({"requests": []}));
        assert_eq!(taken.json()["result"], json!({"requests": []}), "it is the model's");
    }
}

#[test]
fn a_batch_says_why_it_waits_and_goes_on_as_soon_as_its_model_is_ready() {
    let node = builder(JOBS).start();
    node.await_seen("chat");
    assert_eq!(node.omnictl(["stop", "chat", "--wait"]).code, 0);
    let batch = begin(&node.http(), &[line(0, "chat")], None);
    wait_for("the reason", PATIENCE, || {
        let shown = node.omnictl(["jobs", "show", &batch]);
        shown.stderr.contains("chat was stopped by hand: `omnictl start chat`").then_some(())
    });
    wait_for("an attempt", PATIENCE, || {
        (node.metric("omni_job_items_given_back_total").unwrap_or_default() > 0.0).then_some(())
    });
    assert_eq!(node.omnictl(["start", "chat", "--wait"]).code, 0);
    let ready = Instant::now();
    assert_eq!(await_end(&node, &batch, None)["status"], "completed");
    assert!(ready.elapsed() < Duration::from_secs(10), "{:?}", ready.elapsed());
    assert!(!node.omnictl(["jobs", "show", &batch]).stderr.contains("stopped by hand"));
    node.stop();
}
