//! Log probabilities of repeated prompts: a node's answers against those of the engine as a program of its own.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed step of a test is a failed test")]

use nix::sys::socket::{
    AddressFamily, Backlog, ControlMessage, ControlMessageOwned, MsgFlags, Shutdown, SockFlag, SockType, UnixAddr,
    bind, connect, listen, recvmsg, sendmsg, shutdown, socket,
};
use nix::unistd::close;
use omni_tests::noise::{builder, weights};
use omni_tests::{Answer, Client, Node, program};
use serde_json::{Value, json};
use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;

/// Longest packet between a scheduler and a worker, and more.
const LONGEST_PACKET: usize = 1 << 20;

/// Program of its own, which ends when it is dropped.
struct Alone {
    process: Child,
    http: Client,
}

impl Alone {
    fn start(weights: &Path) -> Self {
        let mut command = Command::new(program("omni-engine"));
        command.arg("serve").arg(weights).args(["--name", "noise", "--listen", "127.0.0.1:0", "--memory", "256MiB"]);
        let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.split_once(" at http://").and_then(|(_, rest)| rest.split_once("/v1"));
        let (address, _) = address.unwrap_or_else(|| panic!("{line}"));
        Self { process, http: Client::new(address.parse().unwrap()) }
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn manifest(weights: &Path) -> String {
    format!(
        "[model]\nkind = \"text-generation\"\n[runtime]\nengine = \"native\"\n[weights]\nsource = \"file://{}\"\n\
         [scaling]\nconcurrency = 8\n",
        weights.display()
    )
}

fn completion(more: &Value) -> Value {
    let mut body = json!({ "model": "noise", "echo": true, "temperature": 0, "ignore_eos": true });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn ask(http: &Client, body: &Value) -> Answer {
    http.post("/v1/completions", body)
}

/// The bytes of a whole answer, but for its id and its time, which stand before the name of the model.
fn all_but_ids(answer: &Answer) -> String {
    let text = answer.text();
    let at = text.find("\"model\"").unwrap_or_else(|| panic!("{text}"));
    text[at..].to_owned()
}

/// A streamed answer in the form of a whole one: the parts of each choice together. Events are cut by time.
fn joined(http: &Client, body: &Value) -> Vec<Value> {
    let stream =
        http.open("POST", "/v1/completions", &[("content-type", "application/json")], body.to_string().as_bytes());
    let mut choices: Vec<Value> = Vec::new();
    let events = stream.events();
    assert_eq!(events.last().map(String::as_str), Some("[DONE]"), "{events:?}");
    for event in events.iter().filter(|event| *event != "[DONE]") {
        let event: Value = serde_json::from_str(event).unwrap();
        for part in event["choices"].as_array().unwrap() {
            let index = usize::try_from(part["index"].as_u64().unwrap()).unwrap();
            while choices.len() <= index {
                let index = choices.len();
                choices.push(json!({ "index": index, "text": "", "logprobs": null, "finish_reason": null }));
            }
            add(&mut choices[index], part);
        }
    }
    choices
}

fn add(choice: &mut Value, part: &Value) {
    let text = format!("{}{}", choice["text"].as_str().unwrap(), part["text"].as_str().unwrap());
    choice["text"] = text.into();
    if part["finish_reason"] != Value::Null {
        choice["finish_reason"] = part["finish_reason"].clone();
    }
    match (&mut choice["logprobs"], &part["logprobs"]) {
        (_, Value::Null) => {}
        (Value::Object(all), Value::Object(more)) => {
            for (name, values) in more {
                all[name].as_array_mut().unwrap().extend(values.as_array().unwrap().iter().cloned());
            }
        }
        (all, more) => *all = more.clone(),
    }
}

#[test]
fn a_node_repeats_prompts_as_the_engine_alone_does() {
    let weights = weights();
    let folder = weights.path().join("small");
    let alone = Alone::start(&folder.join("noise.gguf"));
    let node = builder(&weights).model("noise", &[("omni.toml", &manifest(&folder))]).start();
    let http = node.http();
    let tokens = json!([1, 75, 200, 2, 104, 105]); // control tokens, and a byte that is no character
    let table = [
        json!({ "prompt": "h\u{e9}llo", "logprobs": 0, "max_tokens": 1 }),
        json!({ "prompt": "h\u{e9}llo", "logprobs": 1, "max_tokens": 4 }),
        json!({ "prompt": "a rather long prompt ".repeat(100), "logprobs": 5, "max_tokens": 3 }),
        json!({ "prompt": tokens, "logprobs": 5, "max_tokens": 3 }),
        json!({ "prompt": tokens, "max_tokens": 3 }),
        json!({ "prompt": [tokens, [3, 4]], "logprobs": 1, "max_tokens": 2 }),
        json!({ "prompt": ["one", "two"], "logprobs": 2, "n": 2, "max_tokens": 5 }),
        json!({ "prompt": "one", "logprobs": 1, "n": 2, "max_tokens": 2 }),
        json!({ "prompt": "one", "n": 2, "max_tokens": 2 }),
        // Nothing repeated, and control tokens, which have names but no text.
        json!({ "prompt": "one", "echo": false, "logprobs": 5, "max_tokens": 4, "logit_bias": { "1": 100 } }),
        json!({ "prompt": "stops", "logprobs": 1, "max_tokens": 20, "stop": ["stop"] }),
        // Refused by both: an answer has a token at least, and not more alternatives than there may be.
        json!({ "prompt": "one", "logprobs": 1, "max_tokens": 0 }),
        json!({ "prompt": "one", "logprobs": 21, "max_tokens": 1 }),
    ];
    for more in table {
        let body = completion(&more);
        let (mine, theirs) = (ask(&http, &body), ask(&alone.http, &body));
        assert_eq!(mine.status, theirs.status, "{}\n{}", mine.text(), theirs.text());
        if mine.status != 200 {
            assert_eq!((mine.status, &mine.json()["error"]), (400, &theirs.json()["error"]));
            continue;
        }
        assert_eq!(all_but_ids(&mine), all_but_ids(&theirs), "{more}");
        let mut streamed = body;
        streamed["stream"] = true.into();
        let whole = mine.json()["choices"].as_array().unwrap().clone();
        assert_eq!(joined(&http, &streamed), whole, "{more}");
        assert_eq!(joined(&alone.http, &streamed), whole, "{more}");
    }
    let control = json!({ "prompt": "hi", "logprobs": 1, "max_tokens": 2, "logit_bias": { "1": 100 } });
    let choice = &ask(&http, &completion(&control)).json()["choices"][0];
    assert_eq!((&choice["text"], &choice["logprobs"]["tokens"]), (&json!("hi"), &json!(["h", "i", "<s>", "<s>"])));
    let answer = ask(&http, &completion(&json!({ "prompt": "hi", "logprobs": 1, "n": 3, "max_tokens": 1 }))).json();
    let logprobs = &answer["choices"][2]["logprobs"];
    assert_eq!(logprobs["tokens"].as_array().unwrap()[..2], ["h", "i"], "{answer}");
    assert_eq!((&logprobs["token_logprobs"][0], &logprobs["top_logprobs"][0]), (&Value::Null, &Value::Null));
    assert!(logprobs["token_logprobs"][1].as_f64().unwrap() < 0.0);
    let usage = (&answer["usage"]["prompt_tokens"], &answer["usage"]["completion_tokens"]);
    assert_eq!(usage, (&json!(2), &json!(3)), "the prompt is counted once");
    node.stop();
}

/// Answers `a` with its log probability, and takes token ids.
const HANDLER: &str = r#"
from omni import TextGeneration, Token

def handle_request(request: TextGeneration, context):
    yield Token("a", 1, -0.5, [("a", -0.5)])
"#;
const HONOURS: &str =
    "[model]\nkind = \"text-generation\"\n[generation]\nhonours = [\"logprobs\", \"token-prompts\", \"ignore-eos\"]\n";

#[test]
fn a_handler_in_python_is_not_asked_for_the_tokens_of_a_prompt() {
    let node = Node::builder().model("noise", &[("model.py", HANDLER), ("omni.toml", HONOURS)]).start();
    let http = node.http();
    for (more, is_refused) in [
        (json!({ "prompt": "p", "logprobs": 1 }), true),
        (json!({ "prompt": [1, 2] }), true),
        (json!({ "prompt": [1, 2], "logprobs": 0, "stream": true }), true),
        (json!({ "prompt": "p" }), false),
        (json!({ "prompt": "p", "echo": false, "logprobs": 1 }), false),
    ] {
        let answer = ask(&http, &completion(&more));
        assert_eq!(answer.status, if is_refused { 400 } else { 200 }, "{more}: {}", answer.text());
        if is_refused {
            let error = &answer.json()["error"];
            assert_eq!((&error["param"], &error["code"]), (&json!("echo"), &json!("unsupported_parameter")), "{error}");
            assert!(error["message"].as_str().unwrap().contains("leave `echo` out"), "{error}");
        }
    }
    assert_eq!(ask(&http, &completion(&json!({ "prompt": "p:" }))).json()["choices"][0]["text"], "p:a");
    node.stop();
}

/// Has the next scheduler find the worker of an instance at a relay, which tells the worker that it speaks the protocol's
/// first version only: so the two agree on that, as with a worker of an earlier release.
fn make_older(node: &Node, model: &str) {
    let path = node.worker_socket(&node.instance(model).expect("an instance").id);
    let own = path.parent().unwrap().with_file_name("worker.sock");
    fs::hard_link(&path, &own).unwrap();
    fs::remove_file(&path).unwrap();
    let packets = || socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None).unwrap();
    let listener = packets();
    bind(listener.as_raw_fd(), &UnixAddr::new(&path).unwrap()).unwrap();
    listen(&listener, Backlog::new(1).unwrap()).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
    thread::spawn(move || {
        let scheduler = OwnedFd::from(UnixListener::from(listener).accept().unwrap().0);
        let worker = packets();
        connect(worker.as_raw_fd(), &UnixAddr::new(&own).unwrap()).unwrap();
        fs::remove_file(&own).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| relay(&worker, &scheduler, <[u8]>::to_vec));
            relay(&scheduler, &worker, |packet| match serde_json::from_slice::<Value>(packet) {
                Ok(mut message) if message["type"] == "hello" => {
                    message["protocol"] = 1.into();
                    message.to_string().into_bytes()
                }
                _ => packet.to_vec(),
            });
        });
    });
}

/// Passes packets on with their descriptors, until one of the two has closed.
fn relay(from: &OwnedFd, to: &OwnedFd, change: impl Fn(&[u8]) -> Vec<u8>) {
    let mut bytes = vec![0; LONGEST_PACKET];
    while let Ok((length, descriptors)) = receive(from, &mut bytes)
        && length > 0
    {
        let (packet, rights) = (change(&bytes[..length]), [ControlMessage::ScmRights(&descriptors)]);
        let rights = if descriptors.is_empty() { &[][..] } else { &rights };
        let sent = sendmsg::<UnixAddr>(to.as_raw_fd(), &[IoSlice::new(&packet)], rights, MsgFlags::MSG_NOSIGNAL, None);
        descriptors.into_iter().for_each(|descriptor| close(descriptor).unwrap());
        if sent.is_err() {
            break;
        }
    }
    for end in [from, to] {
        let _ = shutdown(end.as_raw_fd(), Shutdown::Both);
    }
}

/// Length of the next packet, and the descriptors that come with it.
fn receive(from: &OwnedFd, bytes: &mut [u8]) -> nix::Result<(usize, Vec<RawFd>)> {
    let (mut space, mut parts) = (nix::cmsg_space!([RawFd; 8]), [IoSliceMut::new(bytes)]);
    let received = recvmsg::<UnixAddr>(from.as_raw_fd(), &mut parts, Some(&mut space), MsgFlags::MSG_CMSG_CLOEXEC)?;
    let descriptors = received.cmsgs()?.flat_map(|message| match message {
        ControlMessageOwned::ScmRights(descriptors) => descriptors,
        _ => Vec::new(),
    });
    Ok((received.bytes, descriptors.collect()))
}

#[test]
fn an_instance_of_an_earlier_release_is_not_asked_for_what_it_does_not_know() {
    let weights = weights();
    let manifest = manifest(&weights.path().join("small"));
    let mut node = builder(&weights).model("noise", &[("omni.toml", &manifest)]).start();
    let http = node.http();
    let scored = completion(&json!({ "prompt": "one", "logprobs": 1, "max_tokens": 1 }));
    let plain = completion(&json!({ "prompt": "one", "max_tokens": 1 }));
    let before = ask(&http, &scored);
    assert_eq!(before.status, 200, "{}", before.text());
    let engine = node.engine("noise");
    make_older(&node, "noise");
    node.upgrade();
    let refused = ask(&http, &scored);
    let error = &refused.json()["error"];
    assert_eq!((refused.status, &error["param"]), (400, &json!("echo")), "{error}\n{}", node.log());
    assert!(error["message"].as_str().unwrap().contains("earlier release"), "{error}");
    let answer = ask(&http, &plain);
    assert_eq!((answer.status, node.engine("noise")), (200, engine), "it serves all else: {}", answer.text());
    assert_eq!(node.omnictl(["restart", "noise", "--wait"]).code, 0, "{}", node.log());
    assert_ne!(node.engine("noise"), engine);
    assert_eq!(all_but_ids(&ask(&http, &scored)), all_but_ids(&before));
    node.stop();
}
