//! Client of HTTP/1.1 over a socket, a connection for each request.

use crate::fixture::Server;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Response.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Response {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    /// Events of a stream without its end, and whether it has one.
    pub(crate) fn events(&self) -> (Vec<Value>, bool) {
        let lines: Vec<&str> = self.body.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
        let is_done = lines.last() == Some(&"[DONE]");
        let events = lines.iter().filter(|line| **line != "[DONE]");
        (events.map(|line| serde_json::from_str(line).unwrap()).collect(), is_done)
    }
}

impl Server {
    /// Sends a request, and leaves the connection open behind it.
    pub(crate) async fn open(&self, path: &str, body: Option<&Value>) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let (method, body) = body.map_or(("GET", String::new()), |body| ("POST", body.to_string()));
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n\r\n{body}",
            self.address,
            body.len()
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        stream
    }

    /// Sends the head of a request whose body has so many bytes, and some of them.
    pub(crate) async fn begin(&self, length: usize, sent: usize) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let head = format!(
            "POST /v1/completions HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n",
            self.address
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.write_all(&vec![b' '; sent]).await.unwrap();
        stream
    }

    pub(crate) async fn get(&self, path: &str) -> Response {
        read(self.open(path, None).await).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Response {
        read(self.open(path, Some(body)).await).await
    }

    /// Value of a metric.
    pub(crate) async fn metric(&self, name: &str) -> u64 {
        let text = self.get("/metrics").await.body;
        let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("{name}: {text}"));
        line.trim().parse::<f64>().unwrap() as u64
    }
}

/// Reads a response to the end of its connection.
pub(crate) async fn read(mut stream: TcpStream) -> Response {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).await.unwrap();
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n").expect("a head");
    let head = String::from_utf8(bytes[..end].to_vec()).unwrap().to_lowercase();
    let body = &bytes[end + 4..];
    let body = if head.contains("transfer-encoding: chunked") { joined(body) } else { body.to_vec() };
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Response { status, head, body: String::from_utf8(body).unwrap() }
}

fn joined(mut rest: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    loop {
        let end = rest.windows(2).position(|window| window == b"\r\n").expect("the length of a chunk");
        let length = usize::from_str_radix(std::str::from_utf8(&rest[..end]).unwrap(), 16).unwrap();
        if length == 0 {
            return body;
        }
        body.extend_from_slice(&rest[end + 2..end + 2 + length]);
        rest = &rest[end + 4 + length..];
    }
}
