//! Server's side of a delivery, for tests of what is delivered.

use std::io::{BufRead, BufReader, Read};
use std::net::TcpStream;

/// Receives a request: its head in small letters, and its body; `None` if it breaks off.
#[must_use]
pub fn receive(connection: &TcpStream) -> Option<(String, Vec<u8>)> {
    let mut reader = BufReader::new(connection);
    let (mut head, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
        if line == "\r\n" {
            break;
        }
        let lower = line.to_ascii_lowercase();
        if let Some(told) = lower.strip_prefix("content-length: ") {
            length = told.trim().parse().ok()?;
        }
        head.push_str(&lower);
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some((head, body))
}
