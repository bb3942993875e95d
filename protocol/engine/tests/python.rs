//! Agreement of the Python package with this protocol: its constants against ours, its frames through our decoder.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at the first surprise")]

use omni_engine_protocol::frame::{
    CancelReason, ErrorBody, ErrorOrigin, HEADER, Header, INITIAL_CREDIT, Kind, MAX_ANSWER, MAX_BATCH, MAX_CHUNK,
    RequestHead, RequestKind, flags,
};
use omni_engine_protocol::generation::{
    GenerationEvent, GenerationInput, MAX_ALTERNATIVES, MAX_NAME, ResponseFormatInput, SamplingInput, ToolChoiceInput,
};
use omni_engine_protocol::task::{
    EMBEDDINGS_TYPE, EmbeddingsAnswer, EmbeddingsInput, ImageInput, RerankInput, SpeechInput,
};
use omni_engine_protocol::{control, packet};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;

/// Output of a Python program with the package in its path.
fn python(program: &str) -> Vec<u8> {
    let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../worker/python");
    let output = Command::new("python3")
        .args(["-B", "-c", program])
        .env("PYTHONPATH", package)
        .output()
        .expect("python3 is in the path");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

#[test]
fn the_constants_are_the_same() {
    let printed = python(
        "
import json
from omni._engine import control, wire
numbers = {n: v for n, v in vars(wire).items() if n.isupper() and isinstance(v, int)}
numbers['ENGINE_FD'] = control.ENGINE_FD
numbers['MAX_PACKET'] = control.MAX_PACKET
numbers['EMBEDDINGS_TYPE'] = wire.EMBEDDINGS_TYPE
numbers['PERMANENT_FAILURE'] = control.PERMANENT_FAILURE
print(json.dumps(numbers))
",
    );
    let theirs: Value = serde_json::from_slice(&printed).unwrap();
    let mut ours = json!({
        "HEADER_LENGTH": HEADER,
        "MAX_ANSWER": MAX_ANSWER,
        "MAX_CHUNK": MAX_CHUNK,
        "MAX_SMALL": max_small(),
        "INITIAL_CREDIT": INITIAL_CREDIT,
        "MAX_ALTERNATIVES": MAX_ALTERNATIVES,
        "MAX_BATCH": MAX_BATCH,
        "MAX_NAME": MAX_NAME,
        "EMBEDDINGS_TYPE": EMBEDDINGS_TYPE,
        "REQUEST": Kind::Request as u8,
        "CREDIT": Kind::Credit as u8,
        "CANCEL": Kind::Cancel as u8,
        "RESPONSE": Kind::Response as u8,
        "STREAM": Kind::Stream as u8,
        "CHUNK": Kind::Chunk as u8,
        "END": Kind::End as u8,
        "ERROR": Kind::Error as u8,
        "CHECK": Kind::Check as u8,
        "BATCH": Kind::Batch as u8,
        "USAGE": Kind::Usage as u8,
        "HEALTH": Kind::Health as u8,
        "JSON": flags::JSON,
        "BYTES": flags::BYTES,
        "TEXT": flags::TEXT,
        "EVENTS": flags::EVENTS,
        "EVENT": flags::EVENT,
        "CONTENT": flags::CONTENT,
        "HEAD": flags::HEAD,
        "BODY_STREAM": flags::BODY_STREAM,
        "OWN_CHECK": flags::OWN_CHECK,
        "ISOLATE": flags::ISOLATE,
        "ORIGIN_HANDLER": ErrorOrigin::Handler as u8,
        "ORIGIN_RAISED": ErrorOrigin::Raised as u8,
        "ORIGIN_UNSERIALISABLE": ErrorOrigin::Unserialisable as u8,
        "ORIGIN_CANCELLED": ErrorOrigin::Cancelled as u8,
        "CLIENT_GONE": CancelReason::ClientGone as u16,
        "DEADLINE": CancelReason::Deadline as u16,
        "SHUTDOWN": CancelReason::Shutdown as u16,
        "ENGINE_FD": control::ENGINE_FD,
        "MAX_PACKET": packet::MAX_PACKET,
        "PERMANENT_FAILURE": control::PERMANENT_FAILURE,
    });
    ours["METRICS"] = (Kind::Metrics as u8).into(); // as many as the macro takes are above
    assert_eq!(theirs, ours);
}

/// The bound of the small payloads, found by asking.
fn max_small() -> u32 {
    let fits = |length| Header { length, kind: Kind::Error, flags: 0, code: 0, id: 0 }.check_answer().is_ok();
    (0..=u32::try_from(MAX_ANSWER).unwrap()).rev().step_by(1024).find(|length| fits(*length)).unwrap()
}

/// Output of a Python program that reads a text from its standard input.
fn python_of(program: &str, input: &[u8]) -> String {
    let literal: String = input.iter().map(|byte| format!("\\x{byte:02x}")).collect();
    String::from_utf8(python(&format!("data = b'{literal}'\n{program}"))).unwrap()
}

#[test]
fn heads_of_requests_from_here_are_read_by_python() {
    for (kind, counts) in [(RequestKind::CountTokens, "True"), (RequestKind::SpeechToText, "False")] {
        let head = RequestHead {
            kind: Some(kind),
            id: "r1".to_owned(),
            parameters: Some(serde_json::from_str(r#"{"language":"de"}"#).unwrap()),
            ..RequestHead::default()
        };
        let head = serde_json::to_vec(&head).unwrap();
        let payload = [&u32::try_from(head.len()).unwrap().to_le_bytes()[..], &head].concat();
        let read = python_of(
            "
from omni._engine.cancel import Cancels
from omni._engine.request import WireRequest
requests = [WireRequest(1, payload, 0.0, Cancels()) for payload in (data, memoryview(data))]
print([(one.counts_tokens, one.kind, one.id, one.parameters['language']) for one in requests])
",
            &payload,
        );
        let kind = serde_json::to_string(&kind).unwrap().replace('"', "'");
        assert_eq!(read, format!("[({counts}, {kind}, 'r1', 'de'), ({counts}, {kind}, 'r1', 'de')]\n"));
    }
}

#[test]
fn bodies_from_here_are_read_by_python() {
    let messages: Box<RawValue> = serde_json::from_str(r#"[{"role":"user","content":"hi"}]"#).unwrap();
    let schema: Box<RawValue> = serde_json::from_str(r#"{"type":"object"}"#).unwrap();
    let text = GenerationInput {
        prompt: Some("<s>hi</s>"),
        literals: &[(3, 5)],
        sampling: SamplingInput { top_k: Some(5), logit_bias: &[(7, -1.5)], ..SamplingInput::default() },
        response_format: Some(ResponseFormatInput::JsonSchema { schema: &schema }),
        logprobs: Some(2),
        ..GenerationInput::default()
    };
    let tokens = GenerationInput { prompt_tokens: Some(&[1, 2]), ..GenerationInput::default() };
    let tool_choice = ToolChoiceInput::Named("f");
    let chat = GenerationInput { messages: Some(&messages), tool_choice, ..GenerationInput::default() };
    let bodies = json!({
        "TextGeneration": [text, tokens, chat],
        "Embeddings": [
            EmbeddingsInput { texts: Some(vec!["a".into()]), ..EmbeddingsInput::default() },
            EmbeddingsInput { tokens: Some(vec![vec![1]]), dimensions: Some(8), ..EmbeddingsInput::default() },
        ],
        "Rerank": [RerankInput { query: "q".into(), documents: vec!["a".into()], top_n: None }],
        "TextToSpeech": [SpeechInput { text: "moo".into(), speed: Some(1.5), ..SpeechInput::default() }],
        "TextToImage": [ImageInput { prompt: "a cow".into(), n: 2, ..ImageInput::default() }],
    });
    let read = python_of(
        "
import json, omni
for name, bodies in json.loads(data).items():
    for body in bodies:
        print(getattr(omni, name).from_json(body))
",
        &serde_json::to_vec(&bodies).unwrap(),
    );
    insta::assert_snapshot!("bodies", read);
}

/// Frames of a text, as the header and the payload of each.
fn frames(mut rest: &[u8]) -> Vec<(Header, &[u8])> {
    let mut found = Vec::new();
    while let Some((head, after)) = rest.split_first_chunk::<HEADER>() {
        let header = Header::decode(head).unwrap();
        header.check_answer().unwrap();
        let (payload, after) = after.split_at(header.length as usize);
        found.push((header, payload));
        rest = after;
    }
    assert!(rest.is_empty());
    found
}

#[test]
fn generated_text_from_python_is_read_here() {
    let bytes = python(
        "
import sys
from omni import Finish, Reasoning, Token, ToolCall, Usage
from omni._engine import wire
from omni._engine.generation import GenerationStream
stream = GenerationStream(1, None)
pieces = [
    Reasoning('because'), 'moo', b'\\xf0\\x9f', Token('ä', 7, -0.5, [('a', -0.25)]), Token(b'\\xf0\\x9f', 8),
    ToolCall('f', {'a': 1}, id='c1'), Finish('tool_calls', Usage(3, 4, 1, 2)),
]
out = []
for piece in pieces:
    flags, payload = stream.encode(piece)
    out += [stream.opening(), wire.chunk_header(1, flags, len(payload)), bytes(payload)]
sys.stdout.buffer.write(b''.join(out))
",
    );
    let frames = frames(&bytes);
    assert_eq!((frames[0].0.kind, frames[0].0.flags), (Kind::Stream, flags::EVENT));
    let chunks = frames[1..].iter().map(|(header, payload)| match header.flags {
        flags::EVENT => format!("{:?}", GenerationEvent::parse(payload).unwrap()),
        flags => format!("{flags} {}", payload.escape_ascii()),
    });
    insta::assert_snapshot!("generated_text", chunks.collect::<Vec<_>>().join("\n"));
}

#[test]
fn embeddings_from_python_are_read_here() {
    let bytes = python(
        "
import sys
from omni._engine.results import embeddings
sys.stdout.buffer.write(embeddings([[1, 0.5], [-2, 0]], 2, None))
",
    );
    let answer = EmbeddingsAnswer::parse(&bytes).unwrap();
    assert_eq!((answer.header.count, answer.header.dimensions), (2, 2));
    assert_eq!(answer.embedding(1).collect::<Vec<_>>(), [-2.0, 0.0]);
}

#[test]
fn frames_from_python_are_frames_here() {
    let bytes = python(
        "
import sys
from omni._engine import wire
from omni._engine.answer import Stream, whole
stream = Stream(2, None)
flags, payload = stream.encode('moo')
frames = [
    whole(1, {'a': 'ä'}),
    stream.opening(), wire.chunk_header(2, flags, len(payload)), payload, wire.end(2),
    wire.error(3, wire.ORIGIN_RAISED, 500, '\\0\\ud800' * 9000),
    wire.usage(4, {'tokens': 12}), wire.health(5, None), wire.health(6, '\\0\\ud800' * 9000),
]
sys.stdout.buffer.write(b''.join(frames))
",
    );
    let mut seen = Vec::new();
    for (header, payload) in frames(&bytes) {
        if header.kind == Kind::Error {
            assert!(serde_json::from_slice::<ErrorBody>(payload).is_ok());
        }
        seen.push((header.kind, header.flags, header.code, header.id));
    }
    assert_eq!(
        seen,
        [
            (Kind::Response, flags::JSON, 200, 1),
            (Kind::Stream, flags::EVENTS, 200, 2),
            (Kind::Chunk, flags::TEXT, 0, 2),
            (Kind::End, 0, 0, 2),
            (Kind::Error, ErrorOrigin::Raised as u8, 500, 3),
            (Kind::Usage, 0, 0, 4),
            (Kind::Health, 0, 0, 5),
            (Kind::Health, 0, 0, 6),
        ]
    );
}
