//! Connections of a listener, from both sides.

use super::*;
use bytes::Bytes;
use http_body_util::Empty;
use hyper::client::conn::http2;
use nix::sys::socket::getsockopt;
use std::sync::atomic::{AtomicBool, Ordering};

const BOUNDS: Bounds = Bounds { connections: 8, header_timeout: Duration::from_secs(30) };

#[tokio::test]
async fn a_connection_has_the_options_of_its_listener() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    bequeath_options(&listener);
    let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (accepted, _) = listener.accept().await.unwrap();
    let of = |socket| (getsockopt(socket, TcpNoDelay), getsockopt(socket, TcpUserTimeout), getsockopt(socket, Unsent));
    assert_eq!(of(&accepted), (Ok(true), Ok(UNREAD_MS), Ok(UNSENT)));
    assert_ne!(of(&client), of(&accepted), "they are not the kernel's own");
}

/// The client answers pings, and opens no window for what it has asked for. Time passes while nobody has anything to do.
#[tokio::test(start_paused = true)]
async fn a_small_answer_over_http2_is_not_kept_for_a_client_that_never_takes_it() {
    for (window, is_kept) in [(1024, true), (0, false)] {
        let (ours, theirs) = tokio::net::UnixStream::pair().unwrap();
        let (_open, phase) = watch::channel(Phase::Open);
        let answered = Arc::new(AtomicBool::new(false));
        let answers = Arc::clone(&answered);
        let handler = move |_| {
            answers.store(true, Ordering::Relaxed);
            async { Response::new(AnswerBody::Pieces([Bytes::from_static(b"small"), Bytes::new(), Bytes::new()])) }
        };
        let serving = tokio::spawn(async move {
            let stream = Stream::Asked { stream: theirs, admitted: false };
            converse(stream, &builder(BOUNDS), BOUNDS, phase, handler).await;
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
        assert_eq!(ended.is_err(), is_kept, "a window of {window}");
        assert!(is_kept || (UNREAD..2 * UNREAD).contains(&asked.elapsed()), "after {:?}", asked.elapsed());
    }
}
