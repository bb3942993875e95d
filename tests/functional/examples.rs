//! The models of `models/`, with their real packages and weights, called as clients call them: they are what authors
//! begin from, so each must do what its first lines say.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed step of a test is a failed test")]

use omni_tests::{Answer, Node};
use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;

/// Output of `cowsay.get_output_string("cow", "hi")` of cowsay 6.1.
const COW: &str = r"  __
| hi |
  ==
  \
   \
     ^__^
     (oo)\_______
     (__)\       )\/\
         ||----w |
         ||     ||";
const MIB: u64 = 1 << 20;
const PNG: &[u8] = b"\x89PNG\r\n\x1a\n";

/// The result in the envelope of the Workers AI run API.
fn result(answer: &Answer) -> Value {
    let mut body = answer.json();
    let result = body["result"].take();
    assert_eq!(answer.status, 200, "{body}");
    assert_eq!(answer.header("content-type"), Some("application/json"));
    assert_eq!(body, json!({"result": null, "success": true, "errors": [], "messages": []}));
    result
}

/// A refusal in the same envelope; returns its message.
fn refusal(answer: &Answer) -> String {
    let mut body = answer.json();
    assert_eq!(answer.status, 400, "{body}");
    let errors = body["errors"].take();
    assert_eq!(body, json!({"result": null, "success": false, "errors": null, "messages": []}));
    assert_eq!(errors.as_array().map(Vec::len), Some(1), "{errors}");
    errors[0]["message"].as_str().expect("a message").to_owned()
}

fn cowsay(node: &Node) {
    let http = node.http();
    for path in ["/ai/run/cowsay", "/client/v4/accounts/0123abc/ai/run/cowsay"] {
        assert_eq!(result(&http.post(path, &json!({"text": "hi"}))), COW);
    }
    for body in [json!({}), json!(["text"])] {
        assert!(refusal(&http.run("cowsay", &body)).contains("text is missing"), "{body}");
    }
}

/// Width and height, from the header of a PNG.
fn size(png: &[u8]) -> (u32, u32) {
    assert!(png.starts_with(PNG) && png[12..16] == *b"IHDR" && png.ends_with(b"IEND\xaeB`\x82"));
    let number = |at: usize| u32::from_be_bytes(png[at..at + 4].try_into().unwrap());
    (number(16), number(20))
}

/// A bitmap of one colour, as simple as a picture can be.
fn bitmap(width: u32, height: u32) -> Vec<u8> {
    let row = (width * 3).div_ceil(4) * 4;
    let pixels = vec![0x7f; (row * height) as usize];
    let mut bmp = b"BM".to_vec();
    for number in [54 + row * height, 0, 54, 40, width, height, 1 | 24 << 16, 0, row * height, 0, 0, 0, 0] {
        bmp.extend(number.to_le_bytes());
    }
    bmp.extend(pixels);
    bmp
}

fn thumbnail(node: &Node) {
    let ask = |headers: &[(&str, &str)], body: &[u8]| {
        let headers: Vec<_> = [("content-type", "image/bmp")].iter().chain(headers).copied().collect();
        node.http().request("POST", "/ai/run/thumbnail", &headers, body)
    };
    let picture = bitmap(600, 300);
    for (headers, expected) in [(&[][..], (128, 64)), (&[("x-thumbnail-size", "32")], (32, 16))] {
        let answer = ask(headers, &picture);
        assert_eq!((answer.status, answer.header("content-type")), (200, Some("image/png")), "{}", answer.text());
        assert_eq!(size(&answer.body), expected);
    }
    // More than a mebibyte: the body is streamed to the model.
    let large = bitmap(1200, 900);
    assert!(large.len() as u64 > 3 * MIB);
    assert_eq!(size(&ask(&[], &large).body), (128, 96));
    // The output is a valid input.
    assert_eq!(size(&ask(&[("x-thumbnail-size", "8")], &ask(&[], &picture).body).body), (8, 4));
    assert!(refusal(&ask(&[], b"not a picture")).contains("not an image"));
    assert!(refusal(&ask(&[("x-thumbnail-size", "-1")], &picture)).contains("whole number"));
}

fn counter(node: &Node) {
    // The first event is there while the second is still far away; then the client goes.
    let mut stream = node.http().stream("counter", &json!({"to": 2, "ms": 60_000}));
    assert_eq!(stream.status, 200);
    assert!(stream.header("content-type").is_some_and(|media| media.starts_with("text/event-stream")));
    let first = stream.chunk().unwrap().expect("an event");
    assert_eq!(String::from_utf8_lossy(&first), "data: {\"count\":1}\n\n");
    drop(stream);

    let many = node.http().stream("counter", &json!({"to": 2000})).events();
    assert_eq!(many.len(), 2001);
    assert!(many[..2000].iter().zip(1..).all(|(event, count)| *event == format!("{{\"count\":{count}}}")));
    assert!(refusal(&node.http().run("counter", &json!({"to": -1}))).contains("\"to\""));
    assert_eq!(node.http().stream("counter", &json!({"to": 0})).events(), ["[DONE]"]);
}

fn memory(node: &Node) {
    let look = |body: Value| result(&node.http().run("memory", &body));
    let before = look(json!({}));
    assert_eq!(before["meminfo"]["MemTotal"], 7_340_032);
    assert_eq!(before["psutil"]["total"], 7_516_192_768_u64);
    let after = look(json!({"eat_mib": 200}));
    assert_eq!(after["eaten_mib"], 200);
    let available = |answer: &Value| answer["psutil"]["available"].as_u64().unwrap();
    let eaten = available(&before) - available(&after);
    assert!((150 * MIB..300 * MIB).contains(&eaten), "{eaten} bytes less are available");
    assert!(refusal(&node.http().run("memory", &json!({"eat_mib": -1}))).contains("eat_mib"));
}

fn embeddings(node: &Node) {
    let ask = |text: Value| node.http().run("embeddings", &json!({"text": text}));
    let texts = ["A man is eating food.", "A man is eating a piece of bread.", "A monkey is playing drums."];
    let answer = result(&ask(json!(texts)));
    assert_eq!(answer["shape"], json!([3, 384]));
    let vectors: Vec<Vec<f64>> = serde_json::from_value(answer["data"].clone()).unwrap();
    assert_eq!(vectors.iter().map(Vec::len).collect::<Vec<_>>(), [384; 3]);
    let cosine = |a: usize, b: usize| vectors[a].iter().zip(&vectors[b]).map(|(x, y)| x * y).sum::<f64>();
    assert!((0..3).all(|n| (cosine(n, n) - 1.0).abs() < 1e-5));
    // As sentence-transformers has it for these weights.
    assert!((cosine(0, 1) - 0.755).abs() < 0.001 && (cosine(0, 2) - 0.048).abs() < 0.001);
    let alone = result(&ask(json!(texts[0])));
    assert_eq!(alone["shape"], json!([1, 384]));
    assert!(refusal(&ask(json!([]))).contains("text"));
}

/// The first choice of the answer of a model that is asked for the capital of France, as greedily as can be.
fn choice(node: &Node, model: &str, more: &Value) -> Value {
    let answer = node.http().post("/v1/chat/completions", &question(model, more));
    assert_eq!(answer.status, 200, "{model}: {}", answer.text());
    answer.json()["choices"][0].take()
}

fn question(model: &str, more: &Value) -> Value {
    // The system prompt in the template of the weights, which llama.cpp takes, leads the model astray after other words.
    let text = if model == "llama" { "Name the capital of France." } else { "What is the capital of France?" };
    let messages = json!([{"role": "user", "content": text}]);
    let mut body = json!({"model": model, "messages": messages, "temperature": 0, "max_tokens": 100});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// SmolLM2 on the native engine and in llama.cpp's server, from the same weights.
fn language_models(node: &Node) {
    const PARIS: &str = "The capital of France is Paris.";
    let city = json!({"city": {"type": "string", "maxLength": 20}});
    let schema = json!({"type": "object", "properties": city, "required": ["city"], "additionalProperties": false});
    let tool = json!({"type": "function", "function": {"name": "weather", "parameters": schema}});
    let format = json!({"type": "json_schema", "json_schema": {"name": "place", "schema": schema, "strict": true}});
    for model in ["chat", "llama"] {
        let plain = choice(node, model, &json!({}));
        assert_eq!((&plain["message"]["content"], &plain["finish_reason"]), (&json!(PARIS), &json!("stop")), "{model}");
        let stream = question(model, &json!({"stream": true})).to_string();
        let events = node.http().open("POST", "/v1/chat/completions", &[], stream.as_bytes()).events();
        let chunks = events.iter().filter_map(|event| serde_json::from_str::<Value>(event).ok());
        let texts: Vec<String> = chunks
            .filter_map(|chunk| Some(chunk["choices"][0]["delta"]["content"].as_str()?.to_owned()))
            .filter(|text| !text.is_empty())
            .collect();
        assert!(texts.concat() == PARIS && texts.len() > 2, "{model}: {events:?}");
        assert_eq!(events.last().map(String::as_str), Some("[DONE]"), "{model}");
        let kept = choice(node, model, &json!({"response_format": format}));
        let kept: Value = serde_json::from_str(kept["message"]["content"].as_str().unwrap()).unwrap();
        assert!(kept["city"].is_string() && kept.as_object().map(serde_json::Map::len) == Some(1), "{model}: {kept}");
    }
    let called = choice(node, "chat", &json!({"tools": [tool], "tool_choice": "required"}));
    let call = &called["message"]["tool_calls"][0]["function"];
    assert_eq!((&call["name"], &called["finish_reason"]), (&json!("weather"), &json!("tool_calls")), "{called}");
    let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
    assert!(arguments["city"].is_string(), "{arguments}");
    let answer =
        result(&node.http().run("chat", &json!({"prompt": "What is the capital of France?", "temperature": 0})));
    assert_eq!(answer["response"], PARIS);
}

/// The first request of the README: by its client, and by curl.
fn first_request(node: &Node) {
    let readme = include_str!("../../README.md").replace("127.0.0.1:8080", &node.data_address().to_string());
    let between = |begin: &str, end: &str| {
        let (_, rest) = readme.split_once(begin).unwrap_or_else(|| panic!("the README has no {begin:?}"));
        format!("{begin}{}", rest.split_once(end).unwrap().0)
    };
    let python = concat!(env!("CARGO_MANIFEST_DIR"), "/../.omni/venv/bin/python");
    let client = Command::new(python).args(["-c", &between("from openai import OpenAI", "```")]).output();
    let client = client.expect("a client: `make setup` fetches it");
    let said = String::from_utf8_lossy(&client.stdout);
    assert_eq!(said, "The capital of France is Paris.", "{}", String::from_utf8_lossy(&client.stderr));
    let curl = Command::new("bash").args(["-c", &between("curl -N http://", "\n```")]).output().unwrap();
    let said = String::from_utf8_lossy(&curl.stdout);
    assert!(said.contains(" Paris") && said.ends_with("data: [DONE]\n\n"), "{said}");
}

/// Weights of the chat model.
const WEIGHTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/chat/SmolLM2-135M-Instruct.Q4_1.gguf");

/// Recording that the package with the weights brings, in the environment of the example's own test.
const RECORDING: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../.omni/models/speech/lib/python3.11/site-packages/moonshine_voice/assets/beckett.wav"
);

fn speech(node: &Node) {
    let mut form = b"--x\r\ncontent-disposition: form-data; name=\"model\"\r\n\r\nspeech\r\n--x\r\n\
        content-disposition: form-data; name=\"file\"; filename=\"beckett.wav\"\r\n\r\n"
        .to_vec();
    form.extend(std::fs::read(RECORDING).expect("a recording: `make setup` fetches it"));
    form.extend(b"\r\n--x--\r\n");
    let headers = [("content-type", "multipart/form-data; boundary=x")];
    let answer = node.http().request("POST", "/v1/audio/transcriptions", &headers, &form);
    assert_eq!(answer.status, 200, "{}", answer.text());
    let text = answer.json()["text"].as_str().unwrap().to_owned();
    assert!(text.starts_with("Ever tried. Ever failed."), "{text}");
}

#[test]
fn every_example_works_as_documented() {
    let examples = ["chat", "cowsay", "counter", "embeddings", "llama", "memory", "speech", "thumbnail"];
    let all = |folder: &str| {
        let mut names: Vec<String> = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| !name.starts_with('.'))
            .collect();
        names.sort();
        names
    };
    let mut known = examples.map(str::to_owned);
    known.sort();
    assert_eq!(all(concat!(env!("CARGO_MANIFEST_DIR"), "/../models")), known, "every example is shown here");

    assert!(Path::new(WEIGHTS).exists(), "{WEIGHTS} is missing: `make setup` fetches it");
    // Packages come over the network once: starting takes what it takes.
    let mut node = Node::builder();
    for name in examples {
        node = node.example(name);
    }
    let node = node.start();
    for name in examples {
        let started = node.omnictl(["start", name, "--wait", "--timeout", "5m"]);
        assert_eq!(started.code, 0, "{name}: {started:?}\n{}", node.log());
    }
    language_models(&node);
    first_request(&node);
    cowsay(&node);
    thumbnail(&node);
    counter(&node);
    memory(&node);
    embeddings(&node);
    speech(&node);
    for model in node.models() {
        assert_eq!(model.restarts, 0, "{}", model.name);
    }
    node.stop();
}
