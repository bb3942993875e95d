//! Tests of the connection, with the engine played by the test.

use super::*;
use omni_engine_protocol::frame::flags;
use omni_engine_protocol::packet::MAX_FDS;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream as StdStream;

async fn ready(connection: &DataConnection) {
    std::future::poll_fn(|context| connection.poll_ready(context, true)).await;
}

fn request_of(bytes: &[u8]) -> (Header, Vec<u8>) {
    let header = Header::decode(bytes.first_chunk().unwrap()).unwrap();
    (header, bytes[HEADER..HEADER + header.length as usize].to_vec())
}

#[tokio::test]
async fn requests_small_and_large_arrive_whole_and_in_order() {
    let (mut connection, ends) = DataConnection::pair().unwrap();
    let large = Bytes::from(vec![7_u8; 3 * 1024 * 1024]);
    connection.send_request(1, flags::JSON, b"{}", Bytes::from_static(b"small"), None);
    connection.send_request(2, flags::BYTES, b"{\"a\":1}", large.clone(), None);
    connection.send_credit(2, 99);
    let model = std::thread::spawn(move || {
        let mut model = StdStream::from(ends.data);
        let mut got = vec![0; HEADER * 3 + 4 + 2 + 5 + 4 + 7 + 3 * 1024 * 1024 + 4];
        model.read_exact(&mut got).unwrap();
        got
    });
    while connection.wants_write() {
        ready(&connection).await;
        connection.flush().unwrap();
    }
    let got = model.join().unwrap();
    let (first, payload) = request_of(&got);
    assert_eq!((first.id, payload.as_slice()), (1, &b"\x02\0\0\0{}small"[..]));
    let (second, payload) = request_of(&got[HEADER + first.length as usize..]);
    assert_eq!((second.id, second.flags, payload.len()), (2, flags::BYTES, 4 + 7 + large.len()));
    assert_eq!(&got[got.len() - 4..], 99_u32.to_le_bytes());
}

#[tokio::test]
async fn requests_without_a_written_byte_are_known() {
    let (mut connection, ends) = DataConnection::pair().unwrap();
    let large = Bytes::from(vec![7_u8; 3 * 1024 * 1024]);
    connection.send_request(1, flags::BYTES, b"{}", Bytes::new(), None);
    connection.send_credit(1, 5);
    connection.send_request(2, flags::BYTES, b"{}", large.clone(), None);
    connection.send_request(3, flags::BYTES, b"{}", large, None);
    connection.send_request(4, flags::BYTES, b"{}", Bytes::new(), None);
    assert_eq!(connection.unsent().collect::<Vec<_>>(), [1, 2, 3, 4]);
    ready(&connection).await;
    connection.flush().unwrap(); // the socket is full in the middle of the second
    assert_eq!(connection.unsent().collect::<Vec<_>>(), [3, 4]);
    let model = std::thread::spawn(move || io::copy(&mut StdStream::from(ends.data), &mut io::sink()));
    while connection.wants_write() {
        ready(&connection).await;
        connection.flush().unwrap();
    }
    assert_eq!(connection.unsent().count(), 0);
    drop(connection);
    model.join().unwrap().unwrap();
}

#[tokio::test]
async fn a_descriptor_travels_with_its_own_frame() {
    let (mut connection, ends) = DataConnection::pair().unwrap();
    let (ours, theirs) = StdStream::pair().unwrap();
    connection.send_request(1, 0, b"{}", Bytes::new(), None);
    connection.send_request(2, flags::BODY_STREAM, b"{}", Bytes::new(), Some(theirs.into()));
    connection.send_request(3, 0, b"{}", Bytes::new(), None);
    while connection.wants_write() {
        ready(&connection).await;
        connection.flush().unwrap();
    }
    let mut buffer = vec![0; 4096];
    let mut fds = Vec::new();
    let mut got = 0;
    while got < 3 * (HEADER + 6) {
        let mut iov = [io::IoSliceMut::new(&mut buffer[got..])];
        let mut space = nix::cmsg_space!([std::os::fd::RawFd; MAX_FDS]);
        let message = nix::sys::socket::recvmsg::<SockaddrStorage>(
            ends.data.as_raw_fd(),
            &mut iov,
            Some(&mut space),
            MsgFlags::MSG_CMSG_CLOEXEC,
        )
        .unwrap();
        for control in message.cmsgs().unwrap() {
            if let nix::sys::socket::ControlMessageOwned::ScmRights(raw) = control {
                fds.extend(raw);
            }
        }
        got += message.bytes;
    }
    assert_eq!(fds.len(), 1);
    nix::unistd::close(fds[0]).unwrap();
    drop(ours);
}

#[tokio::test]
async fn input_is_split_into_frames_and_garbage_is_refused() {
    let (mut connection, ends) = DataConnection::pair().unwrap();
    let mut model = StdStream::from(ends.data);
    let header = Header { length: 3, kind: Kind::Response, flags: 0, code: 200, id: 9 };
    model.write_all(&header.encode()).unwrap();
    model.write_all(b"42").unwrap();
    ready(&connection).await;
    connection.fill().unwrap();
    assert!(connection.next_frame().unwrap().is_none());
    model.write_all(b"1").unwrap();
    ready(&connection).await;
    connection.fill().unwrap();
    assert_eq!(connection.next_frame().unwrap().unwrap(), (header, Bytes::from_static(b"421")));
    let huge = Header { length: u32::MAX, kind: Kind::Response, flags: 0, code: 200, id: 9 };
    model.write_all(&huge.encode()).unwrap();
    ready(&connection).await;
    connection.fill().unwrap();
    assert!(matches!(
        connection.next_frame(),
        Err(ConnectionError::Violation(ProtocolViolation::Frame(FrameError::TooLong { .. })))
    ));
    drop(model);
    loop {
        ready(&connection).await;
        match connection.fill() {
            Ok(_) => {}
            Err(ConnectionError::Closed) => break,
            Err(other) => panic!("{other}"),
        }
    }
}

#[tokio::test]
async fn a_large_answer_is_announced_once_and_can_be_dropped_as_it_arrives() {
    let (mut connection, ends) = DataConnection::pair().unwrap();
    let mut model = StdStream::from(ends.data);
    let header = |kind, length| Header { length, kind, flags: 0, code: 200, id: 9 };
    let large = header(Kind::Response, 100_000);
    for drops in [false, true] {
        for small in [header(Kind::Response, 65536), header(Kind::Chunk, 100_000)] {
            model.write_all(&small.encode()).unwrap();
            ready(&connection).await;
            connection.fill().unwrap();
            assert_eq!(connection.large_answer().unwrap(), None, "{small:?}");
            model.write_all(&vec![1; small.length as usize]).unwrap();
            while connection.next_frame().unwrap().is_none() {
                ready(&connection).await;
                connection.fill().unwrap();
            }
        }
        model.write_all(&large.encode()).unwrap();
        ready(&connection).await;
        connection.fill().unwrap();
        assert_eq!(connection.large_answer().unwrap(), Some(large));
        assert_eq!(connection.large_answer().unwrap(), None, "once");
        if drops {
            connection.drop_frame();
        }
        assert_eq!(connection.dropped(), None, "none of it has come");
        model.write_all(&vec![2; 100_000]).unwrap();
        model.write_all(&header(Kind::Response, 1).encode()).unwrap();
        model.write_all(b"3").unwrap();
        let (mut lengths, mut skipped) = (Vec::new(), Vec::new());
        while lengths.last() != Some(&1) {
            ready(&connection).await;
            connection.fill().unwrap();
            skipped.extend(connection.dropped());
            assert_eq!(connection.large_answer().unwrap(), None);
            while let Some((_, payload)) = connection.next_frame().unwrap() {
                lengths.push(payload.len());
            }
        }
        let (seen, gone) = if drops { (vec![1], vec![9]) } else { (vec![100_000, 1], Vec::new()) };
        assert_eq!((lengths, skipped), (seen, gone));
    }
}
