//! A server of files with faults, which counts what it is asked for.
#![allow(dead_code, unreachable_pub, reason = "each test uses a part")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed step of a test is a failed test")]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// How ranges are answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ranges {
    /// As the standard has it.
    Standard,
    /// With status 200 and `Content-Range`, and without a look at `If-Match`: as rclone does.
    Status200,
    /// Not at all: everything is sent.
    Ignored,
}

/// A file and its faults.
#[derive(Debug, Clone)]
pub struct Served {
    pub content: Arc<Vec<u8>>,
    pub etag: Option<String>,
    pub ranges: Ranges,
    /// Status of every answer instead.
    pub status: Option<u16>,
    /// `Location` of a redirect instead.
    pub redirect: Option<String>,
    /// Answers that are cut off after half of their body.
    pub cut: u64,
    /// After so many requests, the file is this one.
    pub then: Option<(u64, Box<Served>)>,
    /// Bytes per answer after which there is a pause.
    pub slow: Option<Duration>,
    pub closes: bool,
    /// Further fields of the head.
    pub fields: String,
}

impl Served {
    pub fn new(content: Vec<u8>) -> Self {
        let etag = Some(format!("\"{}-{}\"", content.len(), content.iter().map(|byte| u64::from(*byte)).sum::<u64>()));
        Self {
            content: Arc::new(content),
            etag,
            ranges: Ranges::Standard,
            status: None,
            redirect: None,
            cut: 0,
            then: None,
            slow: None,
            closes: false,
            fields: String::new(),
        }
    }
}

/// A running server.
#[derive(Clone)]
pub struct Server {
    pub address: SocketAddr,
    state: Arc<State>,
}

struct State {
    files: Mutex<BTreeMap<String, Served>>,
    requests: Mutex<Vec<String>>,
    bytes: AtomicU64,
}

impl Server {
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(State { files: Mutex::default(), requests: Mutex::default(), bytes: AtomicU64::new(0) });
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let state = Arc::clone(&shared);
                thread::spawn(move || serve(&state, &stream));
            }
        });
        Self { address, state }
    }

    pub fn put(&self, path: &str, served: Served) {
        self.state.files.lock().unwrap().insert(path.to_owned(), served);
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Heads of the requests so far.
    pub fn requests(&self) -> Vec<String> {
        self.state.requests.lock().unwrap().clone()
    }

    /// Bytes of bodies so far.
    pub fn bytes(&self) -> u64 {
        self.state.bytes.load(Ordering::SeqCst)
    }
}

fn serve(state: &State, stream: &TcpStream) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    loop {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if reader.read_line(&mut head).unwrap_or(0) == 0 {
                return;
            }
        }
        let path = head.split(' ').nth(1).unwrap().to_owned();
        state.requests.lock().unwrap().push(head.clone());
        let served = next(state, &path);
        let keeps = answer(state, stream, served, &head);
        if !keeps {
            let _ = stream.shutdown(std::net::Shutdown::Both);
            return;
        }
    }
}

/// The file at a path for this request.
fn next(state: &State, path: &str) -> Option<Served> {
    let mut files = state.files.lock().unwrap();
    let file = files.get_mut(path)?;
    if let Some((left, then)) = &mut file.then {
        if *left == 0 {
            *file = (**then).clone();
        } else {
            *left -= 1;
        }
    }
    let served = file.clone();
    file.cut = file.cut.saturating_sub(1);
    Some(served)
}

fn field<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        key.eq_ignore_ascii_case(name).then(|| value.trim())
    })
}

/// Answers; returns whether the connection stays.
fn answer(state: &State, mut stream: &TcpStream, served: Option<Served>, head: &str) -> bool {
    let plain = |status: u16, more: &str| format!("HTTP/1.1 {status} x\r\ncontent-length: 0\r\n{more}\r\n");
    let Some(served) = served else { return stream.write_all(plain(404, "").as_bytes()).is_ok() };
    if let Some(location) = &served.redirect {
        return stream.write_all(plain(302, &format!("location: {location}\r\n")).as_bytes()).is_ok();
    }
    if let Some(status) = served.status {
        return stream.write_all(plain(status, &served.fields).as_bytes()).is_ok();
    }
    let matches = served.ranges == Ranges::Status200
        || field(head, "if-match").is_none_or(|etag| Some(etag) == served.etag.as_deref());
    if !matches {
        return stream.write_all(plain(412, "").as_bytes()).is_ok();
    }
    let size = served.content.len();
    let range = field(head, "range").filter(|_| served.ranges != Ranges::Ignored).map(|text| {
        let (first, last) = text.strip_prefix("bytes=").unwrap().split_once('-').unwrap();
        (first.parse::<usize>().unwrap(), last.parse::<usize>().unwrap().min(size.saturating_sub(1)))
    });
    if range.is_some_and(|(first, _)| first >= size) {
        return stream.write_all(plain(416, &format!("content-range: bytes */{size}\r\n")).as_bytes()).is_ok();
    }
    let body = range.map_or(&served.content[..], |(first, last)| &served.content[first..=last]);
    let mut text = String::from(match range {
        Some(_) if served.ranges == Ranges::Standard => "HTTP/1.1 206 Partial Content\r\n",
        _ => "HTTP/1.1 200 OK\r\n",
    });
    if let Some((first, last)) = range {
        text += &format!("content-range: bytes {first}-{last}/{size}\r\n");
    }
    if let Some(etag) = &served.etag {
        text += &format!("etag: {etag}\r\n");
    }
    if served.closes {
        text += "connection: close\r\n";
    }
    text += &format!("content-length: {}\r\n{}\r\n", body.len(), served.fields);
    if stream.write_all(text.as_bytes()).is_err() {
        return false;
    }
    let sent = if served.cut > 0 { body.len() / 2 } else { body.len() };
    for piece in body[..sent].chunks(256 << 10) {
        if let Some(pause) = served.slow {
            thread::sleep(pause);
        }
        if stream.write_all(piece).is_err() {
            return false;
        }
        state.bytes.fetch_add(piece.len() as u64, Ordering::SeqCst);
    }
    served.cut == 0 && !served.closes
}

/// Content that is the same nowhere, by a number.
pub fn content(number: u32, size: usize) -> Vec<u8> {
    let mut state = u64::from(number).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    (0..size)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()[0]
        })
        .collect()
}
