//! Tests of the export, with a collector that takes, refuses, or is not there.

use super::*;
use crate::context::{SpanId, TraceId};
use crate::span::SpanKind;
use omni_sink::testing::receive;
use std::io::Write;
use std::net::TcpListener;

fn span(number: u64) -> Span {
    Span {
        trace: TraceId::new(1).unwrap(),
        id: SpanId::new(number + 1).unwrap(),
        parent: None,
        name: "queue".into(),
        kind: SpanKind::Internal,
        times: (1, 2),
        attributes: Vec::new(),
        is_error: false,
    }
}

fn settings(url: &str, headers: Option<ExportHeaders>) -> ExportSettings {
    let client = SinkClient::new(url.to_owned(), None, Duration::from_secs(5)).unwrap();
    ExportSettings { client, headers, resource: Resource { version: "1", host: None, instance: "i".to_owned() } }
}

/// A collector that answers its deliveries with these statuses and bodies in turn, and what it got.
fn collector(answers: Vec<(&'static str, &'static str)>) -> (String, Receiver<(String, Vec<u8>)>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/v1/traces", listener.local_addr().unwrap());
    let (sender, received) = sync_channel(1000);
    thread::spawn(move || {
        for (status, body) in answers {
            let (mut connection, _) = listener.accept().unwrap();
            let got = receive(&connection).unwrap();
            let length = body.len();
            let answer = format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}");
            connection.write_all(answer.as_bytes()).unwrap();
            sender.send(got).unwrap();
        }
    });
    (url, received)
}

fn spans_of((_, body): &(String, Vec<u8>)) -> usize {
    let body: serde_json::Value = serde_json::from_slice(body).unwrap();
    body["resourceSpans"][0]["scopeSpans"][0]["spans"].as_array().unwrap().len()
}

/// The counts once all of these spans are delivered or lost.
fn settled(exporter: &Exporter, all: u64) -> (u64, u64) {
    let began = Instant::now();
    loop {
        let SpanCounts { exported, lost } = exporter.counts();
        if exported + lost == all {
            return (exported, lost);
        }
        assert!(began.elapsed() < Duration::from_secs(30), "{exported} exported and {lost} lost of {all}");
        thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_delivery_is_repeated_until_the_collector_takes_it() {
    let dir = std::env::temp_dir().join(format!("omni-traces-{}", std::process::id()));
    fs::write(&dir, "X-Key: secret key\n\nauthorization: Bearer b\n").unwrap();
    let (url, received) = collector(vec![("503 Busy", ""), ("200 OK", "{}")]);
    let headers = ExportHeaders::open(dir.clone()).unwrap();
    let exporter = Exporter::start(settings(&url, Some(headers))).unwrap();
    (0..3).for_each(|number| exporter.send(span(number)));
    assert_eq!(settled(&exporter, 3), (3, 0));
    let got: Vec<_> = received.try_iter().collect();
    assert_eq!(got.iter().map(spans_of).collect::<Vec<_>>(), [3, 3]);
    let head = &got[1].0;
    assert!(head.starts_with("post /v1/traces ") && head.contains("content-type: application/json\r\n"), "{head}");
    assert!(head.contains("x-key: secret key\r\n") && head.contains("authorization: bearer b\r\n"), "{head}");
    fs::remove_file(dir).unwrap();
}

#[test]
fn a_refusal_for_good_loses_its_delivery_alone() {
    let partial = r#"{"partialSuccess": {"rejectedSpans": "2"}}"#;
    let (url, received) = collector(vec![("400 No", ""), ("200 OK", partial)]);
    let exporter = Exporter::start(settings(&url, None)).unwrap();
    (0..3).for_each(|number| exporter.send(span(number)));
    assert_eq!(settled(&exporter, 3), (0, 3));
    (0..5).for_each(|number| exporter.send(span(number)));
    assert_eq!(settled(&exporter, 8), (3, 5), "the collector has refused two of five");
    assert_eq!(received.try_iter().map(|got| spans_of(&got)).collect::<Vec<_>>(), [3, 5]);
}

#[test]
fn without_a_collector_spans_are_lost_and_nobody_waits() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    drop(listener);
    let exporter = Exporter::start(settings(&url, None)).unwrap();
    let count = 3 * MOST as u64;
    let began = Instant::now();
    (0..count).for_each(|number| exporter.send(span(number)));
    assert!(began.elapsed() < Duration::from_secs(10), "{count} spans took {:?}", began.elapsed());
    assert!(exporter.counts().lost > 0);
    let shared = Arc::clone(&exporter.shared);
    drop(exporter);
    let lost = shared.lost.load(Ordering::Relaxed) + shared.queue().spans.len() as u64;
    assert_eq!((shared.exported.load(Ordering::Relaxed), lost), (0, count));
}

#[test]
fn what_waits_at_the_end_is_delivered() {
    let (url, received) = collector(vec![("200 OK", "{}"); 2]);
    let exporter = Exporter::start(settings(&url, None)).unwrap();
    let count = BATCH + 7;
    (0..count as u64).for_each(|number| exporter.send(span(number)));
    let shared = Arc::clone(&exporter.shared);
    drop(exporter);
    assert_eq!(shared.exported.load(Ordering::Relaxed), count as u64);
    assert_eq!(received.try_iter().map(|got| spans_of(&got)).sum::<usize>(), count);
}

#[test]
fn headers_of_a_file() {
    let of = |text: &str| headers_of(Path::new("f"), text).map_err(|error| error.to_string());
    assert_eq!(of("A-b: c: d\r\n\n e_1 :f\n"), Ok(vec![("a-b".into(), "c: d".into()), ("e_1".into(), "f".into())]));
    assert_eq!(of(""), Ok(Vec::new()));
    for text in ["a: b\nsecret", "a: b\n: secret", "a: b\nse cret: c", "a: b\na:", "a: b\nc: \u{e9}"] {
        assert_eq!(of(text), Err("f: line 2 is no header: write `name: value`".to_owned()), "{text}");
    }
    assert_eq!(of(&"a: b\n".repeat(33)), Err("f: there are too many headers, or they are too long".to_owned()));
}
