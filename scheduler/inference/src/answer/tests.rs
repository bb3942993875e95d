//! Tests of answers: media types and headers.

use super::*;

fn head(media_type: Option<&str>, headers: &[(&str, &str)]) -> AnswerHead {
    let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    AnswerHead { media_type: media_type.map(str::to_owned), headers, length: None }
}

fn a_stream(kind: StreamKind) -> AnswerContent {
    AnswerContent::Stream(omni_engine_client::stream(kind).1)
}

#[test]
fn timings_are_parts_that_add_up() {
    let ms = Duration::from_millis;
    assert_eq!(server_timing(ms(2), None, ms(30)), "queue;dur=2.000, model;dur=30.000");
    assert_eq!(server_timing(ms(152), Some(ms(150)), ms(3)), "queue;dur=2.000, swap;dur=150.000, model;dur=3.000");
}

#[test]
fn a_models_type_and_headers_are_sent() {
    let many: Vec<(String, String)> = (0..64).map(|n| (format!("x-h-{n}"), "vé".to_owned())).collect();
    let answer = AnswerHead { headers: many, ..AnswerHead::default() };
    let response = response_head(200, &answer, &AnswerContent::Json(Bytes::new()));
    assert_eq!(response.headers().len(), 64 + 1);
    assert_eq!(response.headers()["x-h-63"].as_bytes(), "vé".as_bytes());
    assert_eq!(response.headers()[CONTENT_TYPE], "application/json");

    let media_type = |media: &str, body: &AnswerContent| {
        response_head(200, &head(Some(media), &[]), body).headers()[CONTENT_TYPE].clone()
    };
    let json = "application/json; charset=utf-8";
    assert_eq!(media_type(json, &AnswerContent::Json(Bytes::new())), json);
    assert_eq!(media_type("image/png", &AnswerContent::Bytes(Bytes::new())), "image/png");
    assert_eq!(media_type("image/png", &a_stream(StreamKind::Bytes)), "image/png");
    assert_eq!(media_type("image/png", &a_stream(StreamKind::Events)), EVENTS);
    assert_eq!(
        media_type("Text/Event-Stream;charset=utf-8", &a_stream(StreamKind::Events)),
        "Text/Event-Stream;charset=utf-8"
    );
}

#[test]
fn events_are_not_cached_unless_the_model_says_how() {
    let cache = |headers: &[(&str, &str)]| {
        let response = response_head(200, &head(None, headers), &a_stream(StreamKind::Events));
        let all: Vec<_> = response.headers().get_all(CACHE_CONTROL).iter().cloned().collect();
        all
    };
    assert_eq!(cache(&[]), ["no-cache"]);
    assert_eq!(cache(&[("cache-control", "no-cache, no-transform")]), ["no-cache, no-transform"]);
}
