//! Timeouts of connections that a client keeps, with paused time.

use super::driver::GOAWAY_GRACE;
use super::*;
use crate::check::HostNames;
use crate::metrics::HttpMetrics;
use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http2::{self, SendRequest};
use omni_body::{BodyBudget, BodyMetrics};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::task::JoinHandle;

const LIMITS: ConnectionLimits =
    ConnectionLimits { connections: 8, connections_per_address: None, header_timeout: Duration::from_secs(30) };

fn config() -> Arc<ConnectionConfig> {
    let check = RequestCheck {
        names: HostNames::new([127, 0, 0, 1].into(), BTreeSet::new(), false, false),
        heads_budget: BodyBudget::new(1 << 20, 1, BodyMetrics::default()).share(),
        metrics: HttpMetrics::default(),
        render: |_, _, _| Response::new(Bytes::new()),
    };
    Arc::new(ConnectionConfig::new(LIMITS, check))
}

/// A client that answers pings, and the server of its connection, whose handler takes as many seconds as the path says.
async fn client() -> (SendRequest<Empty<Bytes>>, JoinHandle<()>) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let (open, phase) = watch::channel(ListenerPhase::Accepting);
    let handler = |request: Request<Incoming>| async move {
        let seconds = request.uri().path().trim_start_matches('/').parse().unwrap();
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        Response::new(ResponseBody::<Empty<Bytes>>::full(Bytes::from_static(b"small")))
    };
    let serving = tokio::spawn(async move {
        let _open = open;
        serve_connection(ClientStream::Forwarded { stream: theirs, admitted: false }, &config(), phase, handler).await;
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
async fn an_idle_http2_connection_is_closed() {
    let (mut sender, serving) = client().await;
    for pause in [0, 20, 29] {
        tokio::time::sleep(Duration::from_secs(pause)).await;
        ask(&mut sender, 0).await;
    }
    ask(&mut sender, 100).await; // a long request is not idle time
    let idle = Instant::now();
    tokio::time::timeout(2 * LIMITS.header_timeout, serving).await.expect("the end").unwrap();
    assert!((LIMITS.header_timeout..LIMITS.header_timeout + GOAWAY_GRACE).contains(&idle.elapsed()));
    assert!(sender.ready().await.is_err(), "the client sees it");
}

/// A client that ignores its GOAWAY is cut: it answers no ping, so that hyper waits for it.
#[tokio::test(start_paused = true)]
async fn an_idle_http2_connection_is_cut_when_its_client_ignores_the_goaway() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    let (_open, phase) = watch::channel(ListenerPhase::Accepting);
    let handler = |_| async { Response::new(ResponseBody::<Empty<Bytes>>::full(Bytes::from_static(b"small"))) };
    let serving = tokio::spawn(async move {
        serve_connection(ClientStream::Forwarded { stream: theirs, admitted: false }, &config(), phase, handler).await;
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
    let most = LIMITS.header_timeout + 2 * GOAWAY_GRACE;
    assert!((LIMITS.header_timeout..most).contains(&begun.elapsed()), "after {:?}", begun.elapsed());
}

/// Bytes without end.
struct Endless;

impl Body for Endless {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<hyper::body::Frame<Bytes>, Infallible>>> {
        std::task::Poll::Ready(Some(Ok(hyper::body::Frame::data(Bytes::from_static(&[0; 1024])))))
    }
}

/// The client reads nothing of a response that has an hour, from a listener that a successor takes over after a while.
#[tokio::test(start_paused = true)]
async fn a_response_that_is_not_read_ends_a_while_after_its_listener() {
    use tokio::io::AsyncWriteExt;
    const HOUR: Duration = Duration::from_secs(3600);
    for (after_end, expected) in [(Some(Duration::from_secs(120)), 720), (Some(2 * HOUR), 3600), (None, 3600)] {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        let (phases, phase) = watch::channel(ListenerPhase::Accepting);
        let handler = move |_| async move {
            let mut response = Response::new(ResponseBody::Stream(Endless));
            let at = (Instant::now() + HOUR).into_std();
            response.extensions_mut().insert(ReadDeadline { at, after_end, permit: None });
            response
        };
        let serving = tokio::spawn(async move {
            let stream = ClientStream::Forwarded { stream: theirs, admitted: false };
            serve_connection(stream, &config(), phase, handler).await;
        });
        let asked = Instant::now();
        ours.write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
        tokio::time::sleep(Duration::from_secs(600)).await;
        phases.send_replace(ListenerPhase::ClosingAfterResponse);
        tokio::time::timeout(2 * HOUR, serving).await.expect("an end").unwrap();
        let after = asked.elapsed().as_secs();
        assert!((expected..expected + 10).contains(&after), "{after_end:?}: after {after} s");
    }
}

/// The client answers pings, and opens a window for the response, or none. A client that reads it is closed as any idle one.
#[tokio::test(start_paused = true)]
async fn a_small_response_over_http2_is_not_kept_for_a_client_that_never_reads_it() {
    for (window, within) in [(1024, LIMITS.header_timeout), (0, UNREAD)] {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (_open, phase) = watch::channel(ListenerPhase::Accepting);
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
            let stream = ClientStream::Forwarded { stream: theirs, admitted: false };
            serve_connection(stream, &config(), phase, handler).await;
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
        assert!((within..within + LIMITS.header_timeout).contains(&after), "a window of {window}: after {after:?}");
    }
}
