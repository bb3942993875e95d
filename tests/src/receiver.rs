//! HTTP server of a test: what the node delivers, with the answers that the test gives.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

/// Server that takes one request on each connection, until it is dropped.
#[derive(Debug)]
pub struct Receiver {
    address: SocketAddr,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Receiver {
    /// A server whose `answer` gets the number of the connection, head and body of each request, and makes the response.
    ///
    /// # Panics
    /// When no port is free.
    #[must_use]
    pub fn start(mut answer: impl FnMut(usize, &str, &str) -> String + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("the listener's address");
        let ends = Arc::<AtomicBool>::default();
        let over = Arc::clone(&ends);
        let thread = thread::spawn(move || {
            for (number, connection) in listener.incoming().enumerate() {
                if over.load(Ordering::Relaxed) {
                    return;
                }
                let mut connection = connection.expect("a connection");
                let Some((head, body)) = receive(&mut BufReader::new(&connection)) else { continue };
                let _ = connection.write_all(answer(number, &head, &body).as_bytes()); // the scheduler may be gone
            }
        });
        Self { address, ends, thread: Some(thread) }
    }

    /// Address that it listens on.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(self.address);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Head and body of a request; `None` if it breaks off.
fn receive(reader: &mut impl BufRead) -> Option<(String, String)> {
    let (mut head, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
        if line == "\r\n" {
            break;
        }
        let lower = line.to_ascii_lowercase();
        length = lower.strip_prefix("content-length: ").map_or(length, |value| value.trim().parse().unwrap());
        head.push_str(&line);
    }
    let mut body = String::new();
    reader.take(length).read_to_string(&mut body).ok()?;
    (body.len() as u64 == length).then_some((head, body))
}
