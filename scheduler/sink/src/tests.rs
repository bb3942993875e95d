//! Tests with a server that answers once.

use super::*;
use std::io::Write;
use std::net::TcpListener;
use std::thread;

/// A server that answers one request with this head and body, and the head that it got.
fn server(answer: &'static str) -> (String, thread::JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/take", listener.local_addr().unwrap());
    let thread = thread::spawn(move || {
        let (mut connection, _) = listener.accept().unwrap();
        let (head, body) = testing::receive(&connection).unwrap();
        assert_eq!(body, b"batch");
        connection.write_all(answer.as_bytes()).unwrap();
        head
    });
    (url, thread)
}

fn post(answer: &'static str) -> (Result<Vec<u8>, PostError>, String) {
    let (url, thread) = server(answer);
    let client = SinkClient::new(url, None, Duration::from_secs(20)).unwrap();
    let posted = client.post("text/plain", &[("x-key", "secret")], b"batch");
    (posted, thread.join().unwrap())
}

#[test]
fn a_batch_is_acknowledged_by_its_status_and_the_answer_is_read() {
    let (posted, got) = post("HTTP/1.1 202 Fine\r\ncontent-length: 3\r\nconnection: close\r\n\r\nyes");
    assert_eq!(posted.unwrap(), b"yes");
    assert!(got.contains("content-type: text/plain\r\n") && got.contains("x-key: secret\r\n"), "{got}");
}

#[test]
fn a_refusal_has_its_status_and_its_advice() {
    for (answer, status, retry_after) in [
        ("HTTP/1.1 503 Busy\r\nretry-after: 7\r\ncontent-length: 0\r\n\r\n", 503, Some(Duration::from_secs(7))),
        ("HTTP/1.1 400 No\r\ncontent-length: 0\r\n\r\n", 400, None),
        ("HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n", 302, None),
    ] {
        let Err(PostError::Status { status: code, retry_after: after, .. }) = post(answer).0 else {
            panic!("{answer}: it was not refused")
        };
        assert_eq!((code, after), (status, retry_after));
    }
}

#[test]
fn a_server_that_is_not_there_is_unreachable() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    drop(listener);
    let client = SinkClient::new(url, None, Duration::from_secs(5)).unwrap();
    assert!(matches!(client.post("text/plain", &[], b"batch"), Err(PostError::Unreachable { .. })));
}

#[test]
fn a_url_of_https_needs_certificates() {
    let dir = tempfile::tempdir().unwrap();
    let none = dir.path().join("none.pem");
    fs::write(&none, "nothing").unwrap();
    let new = |authorities: &Path| {
        SinkClient::new("https://sink.example".to_owned(), Some(authorities), Duration::from_secs(1)).map(drop)
    };
    assert!(matches!(new(&none), Err(InvalidSink::Certificates { .. })));
    assert!(matches!(new(&dir.path().join("missing")), Err(InvalidSink::Certificates { .. })));
}
