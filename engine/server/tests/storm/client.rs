//! Clients of the storm: some read their answers to the end, others hang up somewhere.

use crate::server::Server;
use serde_json::{Value, json};
use std::io::{ErrorKind, Read};
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

/// Clients at a time.
const CLIENTS: usize = 24;

/// Point at which a client hangs up.
#[derive(Debug, Clone, Copy)]
enum End {
    /// The answer is read to its end.
    Read,
    /// Behind the request.
    AtOnce,
    /// After so many microseconds.
    After(u64),
    /// After so many bytes of the answer.
    Bytes(usize),
}

/// Sends that many requests. Returns how many were answered to their end, and how many were cancelled.
pub(crate) fn storm(server: &Server, seed: u64, requests: usize) -> (usize, usize) {
    let (next, ended, cancelled) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
    thread::scope(|scope| {
        for client in 0..CLIENTS {
            let (next, ended, cancelled) = (&next, &ended, &cancelled);
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(seed * 1000 + client as u64);
                while next.fetch_add(1, Ordering::Relaxed) < requests {
                    let count = if ask(server, &mut random) { ended } else { cancelled };
                    count.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    (ended.into_inner(), cancelled.into_inner())
}

/// Sends a request. Returns true if its answer was read to the end.
fn ask(server: &Server, random: &mut fastrand::Rng) -> bool {
    let body = body(random);
    let end = match random.u8(..8) {
        0..4 => End::Read,
        4 => End::AtOnce,
        5 => End::After(random.u64(..30_000)),
        _ => End::Bytes(random.usize(1..4000)),
    };
    let mut stream = server.open("/v1/completions", Some(&body.to_string()));
    match end {
        End::Read => {}
        End::AtOnce => return false,
        End::After(micros) => {
            thread::sleep(Duration::from_micros(micros));
            return false;
        }
        End::Bytes(bytes) => {
            read(&mut stream, bytes);
            return false;
        }
    }
    let answer = String::from_utf8(read(&mut stream, usize::MAX)).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{body}: {answer}");
    let has_end =
        if body["stream"] == true { answer.contains("data: [DONE]") } else { answer.contains("finish_reason") };
    assert!(has_end, "{body}: {answer}");
    true
}

/// Request of any form.
fn body(random: &mut fastrand::Rng) -> Value {
    // Many share a prefix.
    let shared = "all work and no play makes a dull test ".repeat(random.usize(..5));
    let own: String = (0..random.usize(..60)).map(|_| random.alphanumeric()).collect();
    let mut body = json!({
        "model": "tiny",
        "prompt": format!("{shared}{own}"),
        "max_tokens": random.u32(1..60),
        "stream": random.bool(),
        "seed": random.u32(..),
        "temperature": random.choice([0.0, 0.7, 1.0]).unwrap(),
    });
    let mut add = |one_in: u8, name: &str, value: Value| {
        if random.u8(..one_in) == 0 {
            body[name] = value;
        }
    };
    add(2, "ignore_eos", true.into());
    add(4, "n", 3.into());
    add(4, "stop", json!(["e", "\n"]));
    add(8, "logprobs", 2.into());
    add(8, "echo", true.into());
    add(8, "presence_penalty", 0.5.into());
    add(16, "max_tokens", 200.into());
    add(64, "prompt", json!(["one", "two", "three"]));
    body
}

/// Reads bytes, at most so many.
fn read(stream: &mut TcpStream, most: usize) -> Vec<u8> {
    let (mut bytes, mut part) = (Vec::new(), [0; 4096]);
    while bytes.len() < most {
        let room = part.len().min(most - bytes.len());
        match stream.read(&mut part[..room]) {
            Ok(0) => break,
            Ok(read) => bytes.extend_from_slice(&part[..read]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => panic!("{error}"),
        }
    }
    bytes
}
