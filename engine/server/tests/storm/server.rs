//! The program under the storm, in a process of its own.

use crate::tiny;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Running program, which ends when it is dropped.
pub(crate) struct Server {
    process: Child,
    address: SocketAddr,
    _folder: tempfile::TempDir,
}

/// Numbers of the program at a moment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Numbers {
    pub(crate) free: u64,
    pub(crate) cached: u64,
    used: u64,
    used_by_drafts: u64,
    running: u64,
    waiting: u64,
    queued_bytes: u64,
    bodies: u64,
    pub(crate) drafted: u64,
    /// Memory of the process, in bytes.
    pub(crate) resident: u64,
}

impl Numbers {
    pub(crate) fn is_idle(&self) -> bool {
        self.used + self.used_by_drafts + self.running + self.waiting + self.queued_bytes + self.bodies == 0
    }
}

impl Server {
    /// Starts the program with a model that is its own draft model, and few blocks.
    pub(crate) fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let model = tiny::bytes(&folder.path().join("tiny.gguf"), tiny::TINY, 0);
        let mut process = Command::new(env!("CARGO_BIN_EXE_omni-engine"))
            .arg("serve")
            .arg(&model)
            .arg("--draft")
            .arg(&model)
            .args(["--listen", "127.0.0.1:0", "--memory", "8MiB", "--sequences", "16", "--threads", "1"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.split("http://").nth(1).and_then(|rest| rest.split('/').next());
        let address = address.unwrap_or_else(|| panic!("{line}")).parse().unwrap();
        Self { process, address, _folder: folder }
    }

    /// Sends a request, and leaves the connection open behind it.
    pub(crate) fn open(&self, path: &str, body: Option<&str>) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let (method, body) = body.map_or(("GET", ""), |body| ("POST", body));
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n\r\n{body}",
            self.address,
            body.len()
        );
        stream.write_all(head.as_bytes()).unwrap();
        stream
    }

    pub(crate) fn numbers(&self) -> Numbers {
        let mut text = String::new();
        self.open("/metrics", None).read_to_string(&mut text).unwrap();
        let value = |name: &str| {
            let line =
                text.lines().find_map(|line| line.strip_prefix("omni_engine_")?.strip_prefix(name)?.strip_prefix(' '));
            line.unwrap_or_else(|| panic!("{name}: {text}")).trim().parse::<f64>().unwrap() as u64
        };
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process.id())).unwrap();
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB"));
        Numbers {
            free: value("kv_blocks_free"),
            cached: value("kv_blocks_cached"),
            used: value("kv_blocks_used"),
            used_by_drafts: value("kv_blocks_used_by_drafts"),
            running: value("running_sequences"),
            waiting: value("waiting_sequences"),
            queued_bytes: value("queued_bytes"),
            bodies: value("bodies_held_bytes"),
            drafted: value("drafted_tokens_total"),
            resident: resident.unwrap().parse::<u64>().unwrap() << 10,
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
