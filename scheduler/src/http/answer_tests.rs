//! Tests of answers: envelopes, types and headers, and the ends of streams.

use super::*;
use serde_json::{Value, json};

fn told(status: u16, json: &'static [u8]) -> Value {
    serde_json::from_slice(&envelope(status, Bytes::from_static(json), false).bytes().unwrap()).unwrap()
}

fn head(media_type: Option<&str>, headers: &[(&str, &str)]) -> AnswerHead {
    let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    AnswerHead { media_type: media_type.map(str::to_owned), headers, length: None }
}

fn a_stream(shape: Shape) -> Content {
    Content::Stream(crate::wire::stream::stream(shape).1)
}

#[test]
fn timings_are_parts_that_add_up() {
    let ms = Duration::from_millis;
    assert_eq!(server_timing(ms(2), None, ms(30)), "queue;dur=2.000, model;dur=30.000");
    assert_eq!(server_timing(ms(152), Some(ms(150)), ms(3)), "queue;dur=2.000, swap;dur=150.000, model;dur=3.000");
}

#[test]
fn a_failed_status_is_no_success_and_keeps_the_value() {
    assert_eq!(told(399, b"[1]"), json!({ "result": [1], "success": true, "errors": [], "messages": [] }));
    for (status, code) in [(400, 5004), (422, 5004), (429, 3040), (500, 3043), (504, 3007), (599, 3043)] {
        let message = format!("the model answered with status {status}");
        let errors = json!([{ "code": code, "message": message }]);
        let expected = json!({ "result": { "d": "é" }, "success": false, "errors": errors, "messages": [] });
        assert_eq!(told(status, "{\"d\":\"é\"}".as_bytes()), expected);
    }
    let large = Bytes::from(format!("\"{}\"", "x".repeat(JOIN)));
    let told: Value = serde_json::from_slice(&envelope(503, large, false).bytes().unwrap()).unwrap();
    assert_eq!((&told["success"], told["result"].as_str().unwrap().len()), (&json!(false), JOIN));
}

#[test]
fn a_models_type_and_headers_are_sent() {
    let many: Vec<(String, String)> = (0..64).map(|n| (format!("x-h-{n}"), "vé".to_owned())).collect();
    let answer = AnswerHead { headers: many, ..AnswerHead::default() };
    let response = head_of(200, &answer, &Content::Json(Bytes::new()));
    assert_eq!(response.headers().len(), 64 + 1);
    assert_eq!(response.headers()["x-h-63"].as_bytes(), "vé".as_bytes());
    assert_eq!(response.headers()[CONTENT_TYPE], "application/json");

    let of = |media: &str, body: &Content| head_of(200, &head(Some(media), &[]), body).headers()[CONTENT_TYPE].clone();
    let json = "application/json; charset=utf-8";
    assert_eq!(of(json, &Content::Json(Bytes::new())), json);
    assert_eq!(of("image/png", &Content::Bytes(Bytes::new())), "image/png");
    assert_eq!(of("image/png", &a_stream(Shape::Bytes)), "image/png");
    assert_eq!(of("image/png", &a_stream(Shape::Events)), EVENTS);
    assert_eq!(of("Text/Event-Stream;charset=utf-8", &a_stream(Shape::Events)), "Text/Event-Stream;charset=utf-8");
}

#[test]
fn events_are_not_cached_unless_the_model_says_how() {
    let cache = |headers: &[(&str, &str)]| {
        let response = head_of(200, &head(None, headers), &a_stream(Shape::Events));
        let all: Vec<_> = response.headers().get_all(CACHE_CONTROL).iter().cloned().collect();
        all
    };
    assert_eq!(cache(&[]), ["no-cache"]);
    assert_eq!(cache(&[("cache-control", "no-cache, no-transform")]), ["no-cache, no-transform"]);
}

#[test]
fn a_stream_of_the_models_own_events_ends_as_the_model_ends_it() {
    let last =
        |maker, end| last_of(Shape::Events, maker, end).unwrap().map(|last| String::from_utf8(last.to_vec()).unwrap());
    assert_eq!(last(Maker::Model, End::Complete), None);
    assert_eq!(last(Maker::Node, End::Complete).unwrap(), "data: [DONE]\n\n");
    assert_eq!(last(Maker::Both, End::Complete).unwrap(), "data: [DONE]\n\n");
    let failed = "data: {\"error\":{\"message\":\"gone\"}}\n\n";
    assert_eq!(last(Maker::Node, End::Failed("gone".into())).unwrap(), failed);
    assert_eq!(last(Maker::Model, End::Failed("gone".into())).unwrap(), format!("\n\n{failed}"));
}
