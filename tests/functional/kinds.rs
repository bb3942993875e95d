//! Models that rank, transcribe, speak and draw, over the OpenAI API and the run API: answers, uploads, bounds, refusals.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed step of a test is a failed test")]

use omni_tests::{Answer, Node, NodeBuilder, PATIENCE, pattern, wait_for};
use serde_json::{Value, json};
use std::io::Write;

const MIB: usize = 1024 * 1024;
/// Scores documents by the times that the query is in them.
const RANK: &str = r#"
from omni import Rerank, Scores, Usage

def handle_request(request: Rerank, context):
    scores = [document.count(request.query) / 2 for document in request.documents]
    if request.query == "few":
        return scores[1:]
    return Scores(scores, Usage(prompt_tokens=7)) if request.query == "usage" else scores
"#;
/// Transcribes into what it was given.
const HEAR: &str = r#"
import json
from omni import Segment, SpeechToText, Transcription

def handle_request(request: SpeechToText, context):
    if request.prompt == "plain":
        return "plain text"
    if request.prompt == "number":
        return 5
    data = b"".join(request.audio.stream())
    said = {"bytes": len(data), "first": data[:3].hex(), "translate": request.translate, **request.parameters}
    text = json.dumps(said, sort_keys=True)
    return Transcription(text, request.language or "en", 2.5, [Segment(0, 1, "one"), Segment(1, 2.5, "two")])
"#;
/// Speaks as a whole, or in pieces without end.
const SAY: &str = r#"
import time
from omni import Response, TextToSpeech, errors

WAV = b"RIFF\x24\x00\x00\x00WAVE"

def handle_request(request: TextToSpeech, context):
    if request.voice == "nobody":
        raise errors.BadRequest("there is no voice `nobody`", "voice")
    if request.text == "slow":
        return slow()
    if request.text == "words":
        return "no sound"
    if request.text == "events":
        return Response.stream(iter(["a"]), media_type="text/event-stream")
    if request.text == "flac":
        return Response.audio(b"fLaC" + bytes(9))
    return WAV + f"{request.voice} {request.format} {request.speed} {request.language}".encode()

def slow():
    yield b"first"
    while True:
        time.sleep(0.01)
"#;
/// Draws images that have the parameters behind the file.
const DRAW: &str = r#"
from omni import TextToImage

PNG = b"\x89PNG\r\n\x1a\n"

def handle_request(request: TextToImage, context):
    if request.prompt == "words":
        return "no image"
    if request.prompt == "one":
        return PNG
    if request.prompt == "large":
        return [PNG + bytes(8 << 20)] * request.n
    told = f"{request.width}x{request.height} {request.seed} {request.steps} {request.guidance} {request.negative_prompt}"
    return [PNG + told.encode()] * request.n
"#;

fn node() -> NodeBuilder {
    let manifest = |kind: &str, more: &str| -> &'static str { format!("[model]\nkind = \"{kind}\"\n{more}").leak() };
    Node::builder()
        .model("rank", &[("model.py", RANK), ("omni.toml", manifest("rerank", ""))])
        .model("hear", &[("model.py", HEAR), ("omni.toml", manifest("speech-to-text", "[limits]\nbody = \"4MiB\"\n"))])
        .model("say", &[("model.py", SAY), ("omni.toml", manifest("text-to-speech", ""))])
        .model("draw", &[("model.py", DRAW), ("omni.toml", manifest("text-to-image", ""))])
        .model("custom", &[("model.py", "def handle_request(request, context):\n    return 1\n")])
}

const FORM: (&str, &str) = ("content-type", "multipart/form-data; boundary=b0undary");

/// A form with a file and these fields.
fn form(fields: &[(&str, &str)], file: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    let disposition = "content-disposition: form-data; name=";
    write!(body, "--b0undary\r\n{disposition}\"file\"; filename=\"a.wav\"\r\ncontent-type: audio/wav\r\n\r\n").unwrap();
    body.extend(file);
    for (name, value) in fields {
        write!(body, "\r\n--b0undary\r\n{disposition}\"{name}\"\r\n\r\n{value}").unwrap();
    }
    body.extend(b"\r\n--b0undary--\r\n");
    body
}

fn transcribe(node: &Node, fields: &[(&str, &str)], file: &[u8]) -> Answer {
    let fields: Vec<_> = [("model", "hear")].iter().chain(fields).copied().collect();
    node.http().request("POST", "/v1/audio/transcriptions", &[FORM], &form(&fields, file))
}

/// Request as the transcribing model has got it.
fn heard(text: &Value) -> Value {
    serde_json::from_str(text.as_str().unwrap()).unwrap()
}

#[test]
fn documents_are_ranked_by_the_models_scores() {
    let node = node().start();
    let body = json!({ "model": "rank", "query": "a", "documents": ["b", "aa", { "text": "a" }], "top_n": 2 });
    for prefix in ["", "/client/v4/accounts/x/ai"] {
        let answer = node.http().post(&format!("{prefix}/v1/rerank"), &body).json();
        let results = json!([
            { "index": 1, "relevance_score": 1.0, "document": { "text": "aa" } },
            { "index": 2, "relevance_score": 0.5, "document": { "text": "a" } },
        ]);
        assert_eq!((&answer["results"], &answer["usage"]["total_tokens"]), (&results, &json!(4)), "{answer}");
    }
    let counted = json!({ "model": "rank", "query": "usage", "documents": ["usage"], "return_documents": false });
    let answer = node.http().post("/v1/rerank", &counted);
    assert_eq!(answer.json()["usage"]["total_tokens"], 7);
    assert!(answer.header("x-omni-model-version").is_some() && answer.header("server-timing").is_some());
    let native = json!({ "query": "a", "contexts": [{ "text": "b" }, { "text": "a" }], "top_k": 1 });
    let answer = node.http().run("rank", &native).json();
    assert_eq!(answer["result"], json!({ "response": [{ "id": 1, "score": 0.5 }] }), "{answer}");
    let few = json!({ "model": "rank", "query": "few", "documents": ["a", "b"] });
    let answer = node.http().post("/v1/rerank", &few);
    assert_eq!((answer.status, &answer.json()["error"]["type"]), (500, &json!("server_error")));
}

#[test]
fn recordings_are_transcribed_in_all_formats() {
    let node = node().start();
    let fields =
        [("language", "de"), ("temperature", "0.5"), ("prompt", "p"), ("timestamp_granularities[]", "segment")];
    let answer = transcribe(&node, &fields, b"\xffRI").json();
    let expected = json!({
        "bytes": 3, "first": "ff5249", "translate": false, "language": "de", "temperature": 0.5, "prompt": "p",
        "filename": "a.wav", "media_type": "audio/wav",
    });
    assert_eq!(heard(&answer["text"]), expected);
    let verbose = transcribe(&node, &[("response_format", "verbose_json")], b"x").json();
    assert_eq!((&verbose["duration"], &verbose["segments"][1]["text"]), (&json!(2.5), &json!("two")), "{verbose}");
    for (format, media_type, text) in [
        ("text", "text/plain; charset=utf-8", "plain text\n"),
        ("srt", "application/x-subrip", "1\n00:00:00,000 --> 00:00:00,000\nplain text\n\n"),
        ("vtt", "text/vtt", "WEBVTT\n\n00:00:00.000 --> 00:00:00.000\nplain text\n\n"),
        ("json", "application/json", "{\"text\":\"plain text\"}"),
    ] {
        let answer = transcribe(&node, &[("prompt", "plain"), ("response_format", format)], b"x");
        assert_eq!((answer.header("content-type"), answer.text().as_str()), (Some(media_type), text));
    }
    let path = "/client/v4/accounts/x/ai/v1/audio/translations";
    let answer = node.http().request("POST", path, &[FORM], &form(&[("model", "hear")], b"x")).json();
    assert_eq!(heard(&answer["text"])["translate"], true);
    assert_eq!(transcribe(&node, &[("prompt", "number")], b"x").status, 500);
}

#[test]
fn long_recordings_arrive_whole_and_the_connection_goes_on() {
    let node = node().start();
    let file = pattern(3 * MIB);
    let body = form(&[("model", "hear")], &file);
    let head = |framing: &str| {
        format!(
            "POST /v1/audio/transcriptions HTTP/1.1\r\nhost: localhost\r\n{}: {}\r\n{framing}\r\n\r\n",
            FORM.0, FORM.1
        )
    };
    let length = head(&format!("content-length: {}", body.len()));
    let (answer, reader) = node.http().write_all_then_read(&[length.as_bytes(), &body]).whole_then();
    assert_eq!(heard(&answer.json()["text"])["bytes"], 3 * MIB, "past hyper");
    let mut connection = reader.into_inner();
    connection.write_all(length.as_bytes()).and_then(|()| connection.write_all(&body)).unwrap();
    let answer = omni_tests::Stream::read(std::io::BufReader::new(connection)).whole();
    assert_eq!(heard(&answer.json()["text"])["bytes"], 3 * MIB, "once more on the same connection");
    let chunked = head("transfer-encoding: chunked");
    let size = format!("{:x}\r\n", body.len());
    let pieces = [chunked.as_bytes(), size.as_bytes(), &body, b"\r\n0\r\n\r\n"];
    let answer = node.http().write_all_then_read(&pieces).whole();
    assert_eq!(heard(&answer.json()["text"])["bytes"], 3 * MIB, "in chunks");
}

#[test]
fn uploads_are_bounded() {
    let node = node().start();
    let answer = transcribe(&node, &[], &pattern(5 * MIB));
    assert_eq!(
        (answer.status, &answer.json()["error"]["code"]),
        (413, &json!("request_too_large")),
        "{}",
        answer.text()
    );
    let head = format!(
        "POST /v1/audio/transcriptions HTTP/1.1\r\nhost: localhost\r\n{}: {}\r\ncontent-length: {}\r\n\r\n",
        FORM.0,
        FORM.1,
        65 * MIB
    );
    assert_eq!(node.http().write_all_then_read(&[head.as_bytes()]).status, 413, "before it is sent");
    let whole = form(&[("model", "hear")], &pattern(2 * MIB));
    let cut = node.http().request("POST", "/v1/audio/transcriptions", &[FORM], &whole[..whole.len() - 20]);
    assert_eq!(cut.status, 400);
    assert!(cut.text().contains("it is cut off"), "{}", cut.text());
    assert_eq!(heard(&transcribe(&node, &[], b"x").json()["text"])["bytes"], 1);
}

#[test]
fn recordings_over_the_run_api_are_files_or_json() {
    let node = node().start();
    let file = |length: usize| {
        node.http().request("POST", "/ai/run/hear", &[("content-type", "audio/mpeg")], &pattern(length)).json()
    };
    for length in [9, 3 * MIB] {
        let answer = file(length);
        let said = heard(&answer["result"]["text"]);
        assert_eq!((&said["bytes"], &said["media_type"]), (&json!(length), &json!("audio/mpeg")), "{answer}");
    }
    let answer = file(9);
    assert_eq!((&answer["result"]["segments"][0]["end"], &answer["success"]), (&json!(1.0), &json!(true)));
    assert_eq!(answer["result"]["transcription_info"], json!({ "language": "en", "duration": 2.5 }));
    let bodies =
        [json!({ "audio": [109, 111, 111] }), json!({ "audio": "bW9v", "task": "translate", "language": "fr" })];
    let [numbers, base64] = bodies.map(|body| heard(&node.http().run("hear", &body).json()["result"]["text"]));
    assert_eq!((&numbers["first"], &numbers["translate"]), (&json!("6d6f6f"), &json!(false)));
    assert_eq!(
        (&base64["first"], &base64["translate"], &base64["language"]),
        (&json!("6d6f6f"), &json!(true), &json!("fr"))
    );
    assert_eq!(file(5 * MIB)["errors"][0]["code"], 3006);
    let refused = node.http().run("hear", &json!({ "audio": "bW9v", "beam_size": 5 }));
    assert_eq!((refused.status, refused.error_code()), (400, Some(5004)));
}

#[test]
fn recordings_that_wait_for_a_cold_model_are_passed_to_the_successor() {
    let code = format!("{HEAR}\ndef setup(context):\n    import time\n    time.sleep(2)\n").leak();
    let manifest = "[model]\nkind = \"speech-to-text\"\n[scaling]\nconcurrency = 4\n";
    let mut node = Node::builder().model("hear", &[("model.py", code), ("omni.toml", manifest)]).start();
    let http = node.http();
    std::thread::scope(|scope| {
        let form = scope.spawn(|| {
            let body = form(&[("model", "hear")], &pattern(2 * MIB));
            http.request("POST", "/v1/audio/transcriptions", &[FORM], &body).json()["text"].clone()
        });
        let file = scope.spawn(|| {
            let answer = http.request("POST", "/ai/run/hear", &[("content-type", "audio/mpeg")], &pattern(2 * MIB));
            answer.json()["result"]["text"].clone()
        });
        let json = scope.spawn(|| http.run("hear", &json!({ "audio": "bW9v" })).json()["result"]["text"].clone());
        wait_for("the model to be started", PATIENCE, || (node.model("hear").queued == 3).then_some(()));
        node.upgrade();
        for (waiting, length) in [(form, 2 * MIB), (file, 2 * MIB), (json, 3)] {
            assert_eq!(heard(&waiting.join().unwrap())["bytes"], length, "{}", node.log());
        }
    });
    node.stop();
}

#[test]
fn speech_is_streamed_in_its_media_type() {
    let node = node().start();
    let speak = |more: &Value| {
        let mut body = json!({ "model": "say" });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        node.http().post("/v1/audio/speech", &body)
    };
    let answer = speak(&json!({ "input": "hi", "voice": "ann", "response_format": "opus", "speed": 1.5 }));
    let expected = b"RIFF\x24\0\0\0WAVEann opus 1.5 None".to_vec();
    assert_eq!((answer.header("content-type"), &answer.body), (Some("audio/wav"), &expected));
    assert_eq!(speak(&json!({ "input": "flac" })).header("content-type"), Some("audio/flac"));
    let refused = speak(&json!({ "input": "hi", "voice": "nobody" }));
    assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!("voice")), "{}", refused.text());
    for input in ["words", "events"] {
        assert_eq!(speak(&json!({ "input": input })).status, 500, "{input}");
    }
    let body = json!({ "model": "say", "input": "slow", "voice": "ann" }).to_string();
    let mut stream =
        node.http().open("POST", "/v1/audio/speech", &[("content-type", "application/json")], body.as_bytes());
    assert_eq!((stream.status, stream.header("content-type")), (200, Some("audio/mpeg")));
    assert_eq!(stream.chunk().unwrap().as_deref(), Some(&b"first"[..]));
    drop(stream);
    let seen = wait_for("the cancelled request to make room", PATIENCE, || {
        Some(speak(&json!({ "input": "hi" }))).filter(|answer| answer.status == 200)
    });
    assert_eq!(seen.header("content-type"), Some("audio/wav"));
}

#[test]
fn speech_over_the_run_api_is_bytes_or_base64() {
    let node = node().start();
    let body = json!({ "prompt": "hi", "lang": "fr" });
    let answer = node.http().run("say", &body);
    assert_eq!((answer.header("content-type"), &answer.body[12..]), (Some("audio/wav"), &b"None None None fr"[..]));
    let headers = [("content-type", "application/json"), ("accept", "application/json")];
    let answer = node.http().request("POST", "/ai/run/say", &headers, body.to_string().as_bytes()).json();
    assert_eq!(answer["result"], json!({ "audio": "UklGRiQAAABXQVZFTm9uZSBOb25lIE5vbmUgZnI=" }));
    assert_eq!(node.http().run("say", &json!({ "prompt": "hi", "sample_rate": 8000 })).error_code(), Some(5004));
}

#[test]
fn images_are_drawn_in_number_and_size() {
    let node = node().start();
    let draw = |more: &Value| {
        let mut body = json!({ "model": "draw" });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        node.http().post("/v1/images/generations", &body)
    };
    let answer = draw(&json!({ "prompt": "a cow", "n": 2, "size": "64x32", "seed": 7 })).json();
    let image = json!({ "b64_json": "iVBORw0KGgo2NHgzMiA3IE5vbmUgTm9uZSBOb25l" });
    assert_eq!(answer["data"], json!([image, image]));
    assert!(answer["created"].as_u64().unwrap() > 1_700_000_000);
    for (more, param) in [
        (json!({ "prompt": "a", "response_format": "url" }), "response_format"),
        (json!({ "prompt": "a", "size": "big" }), "size"),
        (json!({ "prompt": "a", "style": "vivid" }), "style"),
    ] {
        let refused = draw(&more);
        assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!(param)));
    }
    for prompt in ["words", "one"] {
        assert_eq!(draw(&json!({ "prompt": prompt, "n": 2 })).status, 500, "{prompt}");
    }
    let large = draw(&json!({ "prompt": "large", "n": 2 }));
    assert_eq!(large.status, 200, "longer than one frame of the engine");
    assert!(large.body.len() > 21 * MIB, "{}", large.body.len());
}

#[test]
fn images_over_the_run_api_are_base64_or_bytes() {
    let node = node().start();
    let body = json!({ "prompt": "a cow", "width": 64, "height": 32, "num_steps": 4, "guidance": 7.5 });
    let answer = node.http().run("draw", &body).json();
    assert_eq!(answer["result"], json!({ "image": "iVBORw0KGgo2NHgzMiBOb25lIDQgNy41IE5vbmU=" }));
    let headers = [("content-type", "application/json"), ("accept", "image/*")];
    let answer = node.http().request("POST", "/ai/run/draw", &headers, body.to_string().as_bytes());
    let expected = b"\x89PNG\r\n\x1a\n64x32 None 4 7.5 None".to_vec();
    assert_eq!((answer.header("content-type"), &answer.body), (Some("image/png"), &expected));
    let refused = node.http().run("draw", &json!({ "prompt": "a", "strength": 1 }));
    assert_eq!((refused.status, refused.error_code()), (400, Some(5004)));
}

#[test]
fn models_of_other_kinds_are_refused_by_name() {
    let node = node().start();
    for model in ["custom", "rank", "hear", "say", "draw"] {
        for (route, own, body) in [
            ("/v1/rerank", "rank", json!({ "model": model, "query": "a", "documents": ["a"] })),
            ("/v1/audio/speech", "say", json!({ "model": model, "input": "a" })),
            ("/v1/images/generations", "draw", json!({ "model": model, "prompt": "a" })),
            ("/v1/embeddings", "none", json!({ "model": model, "input": "a" })),
            ("/v1/completions", "none", json!({ "model": model, "prompt": "a" })),
        ] {
            let answer = node.http().post(route, &body);
            let error = if own == model { json!(null) } else { json!("model") };
            let param = if answer.status == 200 { json!(null) } else { answer.json()["error"]["param"].clone() };
            assert_eq!(param, error, "{route} {model}");
        }
        let answer = node.http().request("POST", "/v1/audio/transcriptions", &[FORM], &form(&[("model", model)], b"x"));
        assert_eq!(answer.status, if model == "hear" { 200 } else { 400 }, "{model}");
    }
    let absent = node.http().request("POST", "/v1/audio/translations", &[FORM], &form(&[("model", "absent")], b"x"));
    assert_eq!((absent.status, &absent.json()["error"]["code"]), (404, &json!("model_not_found")));
    let json = node.http().post("/v1/audio/transcriptions", &json!({ "model": "hear" }));
    assert_eq!(json.status, 400);
    assert!(json.text().contains("multipart/form-data"), "{}", json.text());
    let get = node.http().get("/v1/audio/speech");
    assert_eq!((get.status, get.header("allow")), (405, Some("POST")));
}
