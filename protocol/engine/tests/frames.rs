//! Every kind of frame of the data and cancel wires, byte by byte, held still by a snapshot.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at the first surprise")]

use omni_engine_protocol::frame::{
    AnswerHead, CONTEXT_LENGTH, CancelReason, ErrorBody, ErrorOrigin, Header, Kind, RequestHead, RequestKind,
    batch_payload, flags,
};
use std::fmt::Write;

/// A frame with this payload, as a line of hexadecimal header and readable payload.
fn line(name: &str, kind: Kind, flags: u8, code: u16, payload: &[u8]) -> String {
    let header = Header { length: u32::try_from(payload.len()).unwrap(), kind, flags, code, id: 0x0102_0304_0506_0708 };
    assert_eq!(Header::decode(&header.encode()), Ok(header));
    let mut out = format!("{name}: ");
    for byte in header.encode() {
        write!(out, "{byte:02x}").unwrap();
    }
    write!(out, " {}", payload.escape_ascii()).unwrap();
    out
}

fn json(value: &impl serde::Serialize) -> Vec<u8> {
    serde_json::to_vec(value).unwrap()
}

fn with_head(head: &impl serde::Serialize, rest: &[u8]) -> Vec<u8> {
    let head = json(head);
    let length = u32::try_from(head.len()).unwrap();
    [&length.to_le_bytes()[..], &head, rest].concat()
}

#[test]
fn every_kind_of_frame() {
    let request = RequestHead {
        id: "r".into(),
        method: "POST".into(),
        timeout_ms: 60_000,
        session: None,
        headers: vec![("content-type".into(), "application/json".into())],
        body_length: None,
        body_handed: false,
        ..RequestHead::default()
    };
    let upload = RequestHead { session: Some("s".into()), body_length: Some(1 << 26), ..request.clone() };
    let audio = RequestHead {
        kind: Some(RequestKind::SpeechToText),
        parameters: Some(serde_json::from_str(r#"{"language":"de"}"#).unwrap()),
        ..request.clone()
    };
    let image = AnswerHead { media_type: Some("image/png".into()), ..AnswerHead::default() };
    let file = AnswerHead { headers: vec![("x-a".into(), "b".into())], length: Some(9), ..AnswerHead::default() };
    let error = json(&ErrorBody { message: "no cow".into(), ..ErrorBody::default() });
    let parameter = Some("herd[2]".to_owned());
    let named = json(&ErrorBody { message: "no cow".into(), parameter, ..ErrorBody::default() });
    let code = Some(CONTEXT_LENGTH.to_owned());
    let long = json(&ErrorBody { message: "too long".into(), code, ..ErrorBody::default() });
    let mut lines = vec![
        line("request", Kind::Request, flags::JSON, 0, &with_head(&request, b"{}")),
        line("request, streamed body", Kind::Request, flags::BODY_STREAM, 0, &with_head(&upload, b"")),
        line("request, file with parameters", Kind::Request, flags::BYTES, 0, &with_head(&audio, b"RIFF")),
        line("batch", Kind::Batch, 0, 0, &batch_payload(&[17, 18]).unwrap()),
        line("credit", Kind::Credit, 0, 0, &65_536_u32.to_le_bytes()),
        line("response, JSON", Kind::Response, flags::JSON, 200, b"{}"),
        line("response, bytes with head", Kind::Response, flags::BYTES | flags::HEAD, 201, &with_head(&image, b"png")),
        line("stream of events", Kind::Stream, flags::EVENTS, 200, b""),
        line("stream of bytes", Kind::Stream, flags::BYTES, 200, &json(&file)),
        line("stream of generated text", Kind::Stream, flags::EVENT, 200, b""),
        line("chunk, text", Kind::Chunk, flags::TEXT, 0, b"moo"),
        line("chunk, JSON", Kind::Chunk, flags::JSON, 0, b"{}"),
        line("chunk, bytes", Kind::Chunk, flags::BYTES, 0, b"\0"),
        line("chunk, event", Kind::Chunk, flags::EVENT, 0, br#"{"type":"finish","reason":"stop"}"#),
        line("end", Kind::End, 0, 0, b""),
        line("usage", Kind::Usage, 0, 0, br#"{"tokens":12}"#),
        line("check, own", Kind::Check, flags::OWN_CHECK, 0, b""),
        line("check, of the engine", Kind::Check, 0, 0, b""),
        line("health, well", Kind::Health, 0, 0, b""),
        line("health, unwell", Kind::Health, 0, 0, b"no disk"),
        line("metrics", Kind::Metrics, 0, 0, br#"[{"name":"running","kind":"gauge","value":2.0}]"#),
    ];
    lines.push(line("error, of a parameter", Kind::Error, ErrorOrigin::Handler as u8, 400, &named));
    lines.push(line("error, of a class", Kind::Error, ErrorOrigin::Handler as u8, 400, &long));
    for reason in [CancelReason::ClientGone, CancelReason::Deadline, CancelReason::Shutdown] {
        lines.push(line(&format!("cancel, {reason:?}"), Kind::Cancel, 0, reason as u16, b""));
    }
    for origin in [ErrorOrigin::Handler, ErrorOrigin::Raised, ErrorOrigin::Unserialisable, ErrorOrigin::Cancelled] {
        lines.push(line(&format!("error, {origin:?}"), Kind::Error, origin as u8, 500, &error));
    }
    insta::assert_snapshot!("frames", lines.join("\n"));
}
