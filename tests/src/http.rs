//! HTTP/1.1 by hand: a client that adds nothing, so that tests see and send exactly what is on the wire.

use crate::PATIENCE;
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};

/// Sends requests to one listener, each on a separate connection.
#[derive(Debug, Clone, Copy)]
pub struct Client {
    address: SocketAddr,
}

/// A whole answer.
#[derive(Debug, Clone)]
pub struct Answer {
    /// The status code.
    pub status: u16,
    headers: Vec<(String, String)>,
    /// The body with its framing removed.
    pub body: Vec<u8>,
}

/// An answer whose body is read as it arrives, from a socket or a TLS stream.
#[derive(Debug)]
pub struct Stream<R = TcpStream> {
    /// The status code.
    pub status: u16,
    headers: Vec<(String, String)>,
    reader: BufReader<R>,
}

impl Client {
    /// A client of the listener at this address.
    #[must_use]
    pub fn new(address: SocketAddr) -> Self {
        Self { address }
    }

    /// A connection for bytes of the test's own.
    ///
    /// # Panics
    /// When the listener refuses it.
    #[must_use]
    pub fn connect(&self) -> TcpStream {
        let connection = TcpStream::connect_timeout(&self.address, PATIENCE).expect("a connection to the node");
        connection.set_read_timeout(Some(PATIENCE)).unwrap();
        connection.set_write_timeout(Some(PATIENCE)).unwrap();
        connection
    }

    /// `GET`, whole.
    #[must_use]
    pub fn get(&self, path: &str) -> Answer {
        self.request("GET", path, &[], b"")
    }

    /// `POST` of a JSON value, whole.
    #[must_use]
    pub fn post(&self, path: &str, body: &Value) -> Answer {
        self.request("POST", path, &[("content-type", "application/json")], body.to_string().as_bytes())
    }

    /// Sends a request to a model and reads the whole answer.
    #[must_use]
    pub fn run(&self, model: &str, body: &Value) -> Answer {
        self.stream(model, body).whole()
    }

    /// Sends a request to a model; returns when the head of the answer is there.
    #[must_use]
    pub fn stream(&self, model: &str, body: &Value) -> Stream {
        let (path, body) = (format!("/ai/run/{model}"), body.to_string());
        self.open("POST", &path, &[("content-type", "application/json")], body.as_bytes())
    }

    /// Sends a request to a model without waiting for the answer: [`Stream::read`] reads it, dropping the connection
    /// hangs up.
    ///
    /// # Panics
    ///
    /// When it cannot be sent.
    #[must_use]
    pub fn send(&self, model: &str, body: &Value) -> BufReader<TcpStream> {
        self.send_to(&format!("/ai/run/{model}"), body)
    }

    /// Request with a body of JSON to a path, whose answer is not awaited.
    #[must_use]
    pub fn send_to(&self, path: &str, body: &Value) -> BufReader<TcpStream> {
        let mut connection = self.connect();
        let body = body.to_string();
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        connection.write_all(format!("{head}{body}").as_bytes()).expect("the request is sent");
        BufReader::new(connection)
    }

    /// Any request, whole.
    #[must_use]
    pub fn request(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        self.open(method, path, headers, body).whole()
    }

    /// Any request; returns when the head of the answer is there.
    ///
    /// # Panics
    /// When no answer comes.
    #[must_use]
    pub fn open(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Stream {
        let mut connection = self.connect();
        let extra: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {}\r\n{extra}\r\n",
            body.len()
        );
        connection.write_all(head.as_bytes()).expect("the head is sent");
        // A refusal may come, and the connection close, before a large body is sent: the answer is still to be read.
        let _ = connection.write_all(body);
        Stream::read(BufReader::new(connection))
    }

    /// Sends a request in these pieces, as a client that sends every byte before it reads one; returns when the head of
    /// the answer is there. A client that cannot send is a failed test.
    ///
    /// # Panics
    ///
    /// When the node closes before all is sent, or no answer comes.
    #[must_use]
    pub fn write_all_then_read(&self, pieces: &[&[u8]]) -> Stream {
        let mut connection = self.connect();
        for piece in pieces {
            connection.write_all(piece).expect("the node takes all that is sent");
        }
        Stream::read(BufReader::new(connection))
    }

    /// Sends bytes, then reads until the node closes. `end` closes our side first, as a client that hangs up does.
    #[must_use]
    pub fn raw(&self, bytes: &[u8], end: bool) -> Vec<u8> {
        let mut connection = self.connect();
        let _ = connection.write_all(bytes);
        if end {
            let _ = connection.shutdown(Shutdown::Write);
        }
        let mut answer = Vec::new();
        // A reset is a way to close, too.
        let _ = connection.read_to_end(&mut answer);
        answer
    }
}

impl Answer {
    /// The header's value.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        find(&self.headers, name)
    }

    /// The body as JSON.
    ///
    /// # Panics
    /// When it is none.
    #[must_use]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    /// The body as text.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The code of the only error in the envelope.
    #[must_use]
    pub fn error_code(&self) -> Option<u64> {
        self.json()["errors"][0]["code"].as_u64()
    }
}

impl<R: Read> Stream<R> {
    /// The answer that comes next on a connection; returns when its head is there.
    ///
    /// # Panics
    /// When no answer comes.
    #[must_use]
    pub fn read(mut reader: BufReader<R>) -> Self {
        let mut lines: Vec<String> = Vec::new();
        loop {
            let mut line = String::new();
            let read = reader.read_line(&mut line).expect("the head of an answer");
            assert!(read > 0, "the connection ended in the head, after {lines:?}");
            let line = line.trim_end().to_owned();
            match line.as_str() {
                // An interim answer (100 Continue) is not the answer.
                "" if lines.len() == 1 && lines[0].contains(" 100 ") => {
                    lines.clear();
                }
                "" => break,
                _ => lines.push(line),
            }
        }
        let status = lines[0].split(' ').nth(1).and_then(|code| code.parse().ok());
        let header = |line: &String| {
            line.split_once(':').map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        };
        let headers = lines[1..].iter().filter_map(header).collect();
        Self { status: status.unwrap_or_else(|| panic!("no status in {:?}", lines[0])), headers, reader }
    }

    /// The header's value.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        find(&self.headers, name)
    }

    /// The next piece of a chunked body; `None` at its proper end.
    ///
    /// # Errors
    /// When the connection ended before the body did.
    pub fn chunk(&mut self) -> std::io::Result<Option<Vec<u8>>> {
        let mut size = String::new();
        self.reader.read_line(&mut size)?;
        let length = usize::from_str_radix(size.trim(), 16).map_err(|_| std::io::ErrorKind::UnexpectedEof)?;
        let mut data = vec![0; length + 2];
        self.reader.read_exact(&mut data)?;
        data.truncate(length);
        Ok((length > 0).then_some(data))
    }

    /// The rest of the answer.
    ///
    /// # Panics
    /// When it is cut off.
    #[must_use]
    pub fn whole(self) -> Answer {
        self.whole_then().0
    }

    /// The rest of the answer, and the connection for what follows it.
    ///
    /// # Panics
    /// When it is cut off.
    #[must_use]
    pub fn whole_then(mut self) -> (Answer, BufReader<R>) {
        let mut body = Vec::new();
        if self.header("transfer-encoding").is_some_and(|coding| coding.contains("chunked")) {
            while let Some(chunk) = self.chunk().expect("a whole chunked body") {
                body.extend(chunk);
            }
        } else if let Some(length) = self.header("content-length").and_then(|length| length.parse().ok()) {
            body.resize(length, 0);
            self.reader.read_exact(&mut body).expect("a whole body");
        } else {
            self.reader.read_to_end(&mut body).expect("a body");
        }
        (Answer { status: self.status, headers: self.headers, body }, self.reader)
    }

    /// The texts of server-sent events until the body ends, however it ends.
    #[must_use]
    pub fn events(mut self) -> Vec<String> {
        let mut text = Vec::new();
        while let Ok(Some(chunk)) = self.chunk() {
            text.extend(chunk);
        }
        let text = String::from_utf8(text).expect("events are text");
        text.split("\n\n").filter_map(|event| event.strip_prefix("data: ").map(str::to_owned)).collect()
    }
}

fn find<'a>(headers: &'a [(String, String)], name: &str) -> Option<&'a str> {
    headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::thread;

    /// Answers one request with these bytes.
    fn answering(answer: &'static str) -> Client {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = Client::new(listener.local_addr().unwrap());
        thread::spawn(move || {
            let (mut connection, _) = listener.accept().unwrap();
            let mut head = BufReader::new(connection.try_clone().unwrap()).lines();
            while head.next().is_some_and(|line| !line.unwrap().is_empty()) {}
            connection.write_all(answer.as_bytes()).unwrap();
        });
        client
    }

    #[test]
    fn framings() {
        let fixed = answering("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nX-A: b\r\nContent-Length: 2\r\n\r\nhi!")
            .get("/");
        assert_eq!((fixed.status, fixed.header("x-a"), fixed.text().as_str()), (200, Some("b"), "hi"));
        let chunked =
            answering("HTTP/1.1 404 Not Found\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhi\r\n1\r\n!\r\n0\r\n\r\n")
                .get("/");
        assert_eq!((chunked.status, chunked.text().as_str()), (404, "hi!"));
        let closed = answering("HTTP/1.1 200 OK\r\n\r\nall").get("/");
        assert_eq!(closed.text(), "all");
    }

    #[test]
    fn a_cut_stream_is_not_taken_for_a_whole_one() {
        let cut = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n9\r\ndata: a\n\n\r\n";
        let mut stream = answering(cut).open("GET", "/", &[], b"");
        assert_eq!(stream.chunk().unwrap().as_deref(), Some(&b"data: a\n\n"[..]));
        stream.chunk().unwrap_err();
        assert_eq!(answering(cut).open("GET", "/", &[], b"").events(), ["a"]);
    }
}
