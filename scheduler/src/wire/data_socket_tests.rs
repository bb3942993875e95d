//! The socket, with the model's end in the test's hands.

use super::*;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream as StdStream;

async fn ready(socket: &DataSocket) {
    std::future::poll_fn(|context| socket.poll_ready(context)).await;
}

fn is_ready(socket: &DataSocket) -> bool {
    socket.poll_ready(&mut Context::from_waker(std::task::Waker::noop())).is_ready()
}

/// A turn of the runtime, which hears of what is ready.
async fn turn() {
    tokio::task::yield_now().await;
}

fn pair() -> (DataSocket, StdStream) {
    let (socket, model) = DataSocket::pair().unwrap();
    (socket, StdStream::from(model))
}

fn fill_up(socket: &mut DataSocket) -> usize {
    let piece = [7; 4096];
    let mut written = 0;
    loop {
        match socket.write(&[IoSlice::new(&piece)], None) {
            Ok(count) => written += count,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                return written;
            }
        }
    }
}

#[tokio::test]
async fn a_read_that_was_not_full_is_the_last_one() {
    let (socket, mut model) = pair();
    model.write_all(b"all of it").unwrap();
    ready(&socket).await;
    let mut into = BytesMut::with_capacity(64);
    assert_eq!(socket.read(&mut into).unwrap(), 9);
    assert!(!is_ready(&socket), "it is known to be empty");
    assert_eq!(socket.read(&mut into).unwrap_err().kind(), ErrorKind::WouldBlock);
    model.write_all(b" and more").unwrap();
    ready(&socket).await;
    assert_eq!(socket.read(&mut into).unwrap(), 9);
    assert_eq!(&into[..], b"all of it and more");
}

#[tokio::test]
async fn a_full_read_is_followed_by_another() {
    let (socket, mut model) = pair();
    model.write_all(&[1; 100]).unwrap();
    ready(&socket).await;
    let mut into = BytesMut::with_capacity(64);
    let room = into.capacity();
    assert_eq!(socket.read(&mut into).unwrap(), room);
    assert!(is_ready(&socket));
    into.reserve(100);
    assert_eq!(socket.read(&mut into).unwrap(), 100 - room);
}

#[tokio::test]
async fn descriptors_are_dropped_and_what_lies_behind_them_is_read() {
    let (socket, model) = pair();
    let sent = model.try_clone().unwrap();
    let rights = [sent.as_raw_fd()];
    let message = [ControlMessage::ScmRights(&rights)];
    sendmsg::<()>(model.as_raw_fd(), &[IoSlice::new(b"with")], &message, MsgFlags::empty(), None).unwrap();
    (&model).write_all(b"without").unwrap();
    ready(&socket).await;
    let mut into = BytesMut::with_capacity(64);
    assert_eq!(socket.read(&mut into).unwrap(), 4);
    assert!(is_ready(&socket), "more lies behind");
    assert_eq!(socket.read(&mut into).unwrap(), 7);
    drop((model, sent));
    ready(&socket).await;
    assert_eq!(socket.read(&mut into).unwrap(), 0, "no copy of the model's end is left");
}

#[tokio::test]
async fn who_reads_wakes_only_who_waits_for_room() {
    let (mut socket, mut model) = pair();
    assert_eq!(socket.write(&[IoSlice::new(b"small")], None).unwrap(), 5);
    assert!(!socket.waits_for_room());
    model.read_exact(&mut [0; 5]).unwrap();
    turn().await;
    assert!(!is_ready(&socket));

    let written = fill_up(&mut socket);
    assert!(socket.waits_for_room());
    turn().await;
    let _ = socket.write(&[IoSlice::new(b"x")], None);
    assert!(!is_ready(&socket), "the room is used up");
    let mut got = vec![0; written];
    model.read_exact(&mut got).unwrap();
    ready(&socket).await;
    assert_eq!(socket.write(&[IoSlice::new(b"rest")], None).unwrap(), 4);
    socket.is_written_out().unwrap();
    assert!(!socket.waits_for_room());
    model.read_exact(&mut [0; 4]).unwrap();
    turn().await;
    assert!(!is_ready(&socket));
    model.write_all(b"heard").unwrap();
    ready(&socket).await;
}

#[tokio::test]
async fn a_model_that_is_gone_is_an_end_and_an_error() {
    let (mut socket, model) = pair();
    (&model).write_all(b"last").unwrap();
    drop(model);
    ready(&socket).await;
    let mut into = BytesMut::with_capacity(64);
    assert_eq!(socket.read(&mut into).unwrap(), 4);
    assert!(is_ready(&socket), "an end is not forgotten");
    assert_eq!(socket.read(&mut into).unwrap(), 0);
    assert_eq!(socket.read_regardless(&mut into).unwrap(), 0);
    assert_eq!(socket.write(&[IoSlice::new(b"x")], None).unwrap_err().kind(), ErrorKind::BrokenPipe);
}
