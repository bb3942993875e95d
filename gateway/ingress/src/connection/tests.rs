//! Connections that a client keeps, in a time that passes while nobody has anything to do.

use super::*;
use crate::check::Names;
use crate::metrics::HttpMetrics;
use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http2::{self, SendRequest};
use omni_body::{BodyBudget, BodyMetrics};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::net::UnixStream;
use tokio::task::JoinHandle;

const BOUNDS: Bounds =
    Bounds { connections: 8, connections_per_address: None, header_timeout: Duration::from_secs(30) };

fn rules() -> Arc<Rules> {
    let door = Door {
        names: Names::new([127, 0, 0, 1].into(), BTreeSet::new(), false, false),
        room: BodyBudget::new(1 << 20, 1, BodyMetrics::default()).share(),
        metrics: HttpMetrics::default(),
        refuse: |_, _| Response::new(Bytes::new()),
    };
    Arc::new(Rules::new(BOUNDS, door))
}

/// A client that answers pings, and the other end of its connection, each request to which takes as long as its path says.
async fn client() -> (SendRequest<Empty<Bytes>>, JoinHandle<()>) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let (open, phase) = watch::channel(Phase::Open);
    let handler = |request: Request<Incoming>| async move {
        let seconds = request.uri().path().trim_start_matches('/').parse().unwrap();
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        Response::new(ResponseBody::<Empty<Bytes>>::full(Bytes::from_static(b"small")))
    };
    let serving = tokio::spawn(async move {
        let _open = open;
        converse(Stream::Asked { stream: theirs, admitted: false }, &rules(), phase, handler).await;
    });
    let (sender, connection) = http2::Builder::new(TokioExecutor::new()).handshake(TokioIo::new(ours)).await.unwrap();
    tokio::spawn(connection);
    (sender, serving)
}

async fn ask(sender: &mut SendRequest<Empty<Bytes>>, seconds: u64) {
    let request = Request::get(format!("http://localhost/{seconds}")).body(Empty::new()).unwrap();
    sender.ready().await.unwrap();
    let answer = sender.send_request(request).await.unwrap();
    assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "small");
}

#[tokio::test(start_paused = true)]
async fn an_http2_connection_over_which_nothing_is_asked_is_closed() {
    let (mut sender, serving) = client().await;
    for pause in [0, 20, 29] {
        tokio::time::sleep(Duration::from_secs(pause)).await;
        ask(&mut sender, 0).await;
    }
    ask(&mut sender, 100).await; // a long one is none that is not used
    let unused = Instant::now();
    tokio::time::timeout(2 * BOUNDS.header_timeout, serving).await.expect("the end").unwrap();
    assert!((BOUNDS.header_timeout..BOUNDS.header_timeout + LET_GO).contains(&unused.elapsed()));
    assert!(sender.ready().await.is_err(), "the client knows it");
}

/// One that is told to go and does not is cut: its client answers no ping, so that hyper waits for it.
#[tokio::test(start_paused = true)]
async fn an_unused_http2_connection_is_not_kept_by_a_client_that_does_not_let_go() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    let (_open, phase) = watch::channel(Phase::Open);
    let handler = |_| async { Response::new(ResponseBody::<Empty<Bytes>>::full(Bytes::from_static(b"small"))) };
    let serving = tokio::spawn(async move {
        converse(Stream::Asked { stream: theirs, admitted: false }, &rules(), phase, handler).await;
    });
    let settings = b"\0\0\0\x04\0\0\0\0\0\0\0\0\x04\x01\0\0\0\0";
    let get = b"\0\0\x0e\x01\x05\0\0\0\x01\x82\x84\x86\x41\x09localhost";
    ours.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
    ours.write_all(settings).await.unwrap();
    ours.write_all(get).await.unwrap();
    let begun = Instant::now();
    let mut said = Vec::new();
    ours.read_to_end(&mut said).await.unwrap();
    serving.await.unwrap();
    assert!(said.windows(5).any(|bytes| bytes == b"small"), "{said:?}");
    assert!(said.windows(5).any(|bytes| bytes == b"\x08\x07\0\0\0"), "GOAWAY: {said:?}");
    let most = BOUNDS.header_timeout + 2 * LET_GO;
    assert!((BOUNDS.header_timeout..most).contains(&begun.elapsed()), "after {:?}", begun.elapsed());
}

/// The client answers pings, and opens a window for what it has asked for, or none. One that takes it is let go as any that asks for
/// nothing more.
#[tokio::test(start_paused = true)]
async fn a_small_answer_over_http2_is_not_kept_for_a_client_that_never_takes_it() {
    for (window, within) in [(1024, BOUNDS.header_timeout), (0, UNREAD)] {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (_open, phase) = watch::channel(Phase::Open);
        let answered = Arc::new(AtomicBool::new(false));
        let answers = Arc::clone(&answered);
        let handler = move |_| {
            answers.store(true, Ordering::Relaxed);
            async {
                Response::new(ResponseBody::<Empty<Bytes>>::Pieces([
                    Bytes::from_static(b"small"),
                    Bytes::new(),
                    Bytes::new(),
                ]))
            }
        };
        let serving = tokio::spawn(async move {
            let stream = Stream::Asked { stream: theirs, admitted: false };
            converse(stream, &rules(), phase, handler).await;
        });
        let client = http2::Builder::new(TokioExecutor::new())
            .initial_stream_window_size(window)
            .handshake(TokioIo::new(ours))
            .await;
        let (mut sender, connection) = client.unwrap();
        tokio::spawn(connection);
        let request = Request::get("http://node/").body(Empty::<Bytes>::new()).unwrap();
        let _answer = sender.send_request(request).await.unwrap();
        let asked = Instant::now();
        let ended = tokio::time::timeout(3 * UNREAD, serving).await;
        assert!(answered.load(Ordering::Relaxed));
        ended.expect("an end").unwrap();
        let after = asked.elapsed();
        assert!((within..within + BOUNDS.header_timeout).contains(&after), "a window of {window}: after {after:?}");
    }
}
