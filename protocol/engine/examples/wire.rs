//! Benchmark of the Python engine on its data connection, beside a plain loop that does the same work.
//!
//! `cargo run --release -p omni-engine-protocol --example wire -- ENGINE [PLAIN_LOOP] [ROUNDS]`, where ENGINE is
//! `worker/python/omni/_engine/main.py` and `PLAIN_LOOP` a script that connects to the Unix socket named by its first
//! argument and exchanges frames of `u32 length, u32 id, u8 kind` (`e` echo, `s` stream; answers `r`, `c`, `.`). Runs
//! are interleaved: every round measures each case once. Printed are medians of the rounds: per second of wall time,
//! and microseconds of the Python process's own processor time per item, which neighbours disturb less.

#![allow(clippy::unwrap_used, reason = "a benchmark stops at the first surprise")]

use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use omni_engine_protocol::control::{Boot, EngineBoot, FromEngine, ToEngine};
use omni_engine_protocol::frame::{HEADER, Header, INITIAL_CREDIT, Kind, flags};
use omni_engine_protocol::packet::{recv_packet, send_packet};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Instant;

const ECHO: &str = "
import os
def handle_request(request, context):
    return {'text': request.body.json['text'], 'pid': os.getpid()}
";
const STREAM: &str = "
def handle_request(request, context):
    for i in range(request.body.json['n']):
        yield f'token {i}'
";

/// Protocol of a process.
#[derive(Clone, Copy, PartialEq)]
enum Speech {
    Ours,
    Plain,
}

struct Server {
    speech: Speech,
    child: Child,
    data: UnixStream,
    buffer: Vec<u8>,
    next: u64,
    consumed: BTreeMap<u64, u32>,
    _keep: Vec<OwnedFd>,
    _dir: tempfile::TempDir,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn pair(kind: SockType) -> (OwnedFd, OwnedFd) {
    socketpair(AddressFamily::Unix, kind, None, SockFlag::SOCK_CLOEXEC).unwrap()
}

fn ours(engine: &Path, code: &str, concurrency: u32) -> Server {
    let dir = tempfile::tempdir().unwrap();
    let code = if concurrency > 1 { code.replace("def handle", "async def handle") } else { code.to_owned() };
    std::fs::write(dir.path().join("model.py"), code).unwrap();
    let (control, theirs) = pair(SockType::SeqPacket);
    let script = format!("exec python3 {} 3<&{}", engine.display(), theirs.as_raw_fd());
    nix::fcntl::fcntl(&theirs, nix::fcntl::FcntlArg::F_SETFD(nix::fcntl::FdFlag::empty())).unwrap();
    let child = Command::new("bash").args(["-c", &script]).spawn().unwrap();
    drop(theirs);
    let path = dir.path().to_str().unwrap().to_owned();
    let boot = Boot {
        model: "bench".into(),
        instance: "0123456789ab".into(),
        engine: EngineBoot::Python { module: "model".into(), function: "handle_request".into() },
        model_dir: path.clone(),
        cache_dir: path,
        weights_dir: None,
        device: "cpu".into(),
        concurrency,
        batches: false,
    };
    send_packet(&control, &ToEngine::Boot(boot), &[]).unwrap();
    let (ready, _) = recv_packet::<FromEngine>(&control).unwrap();
    assert!(matches!(ready, FromEngine::Ready { .. }), "{ready:?}");
    let (data, their_data) = pair(SockType::Stream);
    let (cancel, their_cancel) = pair(SockType::SeqPacket);
    send_packet(&control, &ToEngine::Attach, &[their_data.as_raw_fd(), their_cancel.as_raw_fd()]).unwrap();
    let keep = vec![control, cancel];
    Server {
        speech: Speech::Ours,
        child,
        data: data.into(),
        buffer: Vec::new(),
        next: 1,
        consumed: BTreeMap::new(),
        _keep: keep,
        _dir: dir,
    }
}

fn plain(script: &Path) -> Server {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s");
    let listener = UnixListener::bind(&socket).unwrap();
    let child = Command::new("python3").arg(script).arg(&socket).spawn().unwrap();
    let (data, _) = listener.accept().unwrap();
    Server {
        speech: Speech::Plain,
        child,
        data,
        buffer: Vec::new(),
        next: 1,
        consumed: BTreeMap::new(),
        _keep: Vec::new(),
        _dir: dir,
    }
}

impl Server {
    fn ask(&mut self, kind: u8, body: &[u8]) {
        let id = self.next;
        self.next += 1;
        let mut out = Vec::with_capacity(512);
        match self.speech {
            Speech::Ours => {
                let head = br#"{"id":"0190163d-8694-739b-aea5-966c26f8ad91","method":"POST","timeout_ms":60000,"headers":[["content-type","application/json"],["user-agent","bench"]]}"#;
                let length = u32::try_from(4 + head.len() + body.len()).unwrap();
                out.extend(Header { length, kind: Kind::Request, flags: 0, code: 0, id }.encode());
                out.extend(u32::try_from(head.len()).unwrap().to_le_bytes());
                out.extend(head);
            }
            Speech::Plain => {
                out.extend(u32::try_from(body.len()).unwrap().to_le_bytes());
                out.extend(u32::try_from(id).unwrap().to_le_bytes());
                out.push(kind);
            }
        }
        out.extend(body);
        self.data.write_all(&out).unwrap();
    }

    /// Reads once; returns how many answers or chunks came, and how many requests ended.
    fn read(&mut self) -> (usize, usize) {
        let mut piece = [0_u8; 65536];
        let count = self.data.read(&mut piece).unwrap();
        assert!(count > 0, "the process ended");
        self.buffer.extend(&piece[..count]);
        let (mut at, mut items, mut ends) = (0, 0, 0);
        let size = if self.speech == Speech::Ours { HEADER } else { 9 };
        while let Some(head) = self.buffer.get(at..at + size) {
            let length = u32::from_le_bytes(head[..4].try_into().unwrap());
            if self.buffer.len() < at + size + length as usize {
                break;
            }
            let (item, end) = match self.speech {
                Speech::Ours => {
                    let header = Header::decode(head.try_into().unwrap()).unwrap();
                    if header.kind == Kind::Chunk {
                        *self.consumed.entry(header.id).or_insert(0) += length + 16;
                    }
                    assert!(header.kind != Kind::Error);
                    if header.kind == Kind::End {
                        self.consumed.remove(&header.id);
                    }
                    (header.kind != Kind::Stream, matches!(header.kind, Kind::Response | Kind::End))
                }
                Speech::Plain => (true, matches!(head[8], b'r' | b'.')),
            };
            items += usize::from(item);
            ends += usize::from(end);
            at += size + length as usize;
        }
        self.buffer.drain(..at);
        // A quarter of the window at a time, as a scheduler does: the engine reads credit only when it has none.
        for (&id, length) in self.consumed.iter_mut().filter(|(_, length)| **length as usize > INITIAL_CREDIT / 4) {
            let header = Header { length: 4, kind: Kind::Credit, flags: flags::JSON, code: 0, id };
            self.data.write_all(&[&header.encode()[..], &length.to_le_bytes()].concat()).unwrap();
            *length = 0;
        }
        (items, ends)
    }

    fn cpu_us(&self) -> f64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/schedstat", self.child.id())).unwrap();
        stat.split_whitespace().next().unwrap().parse::<f64>().unwrap() / 1000.0
    }

    /// `total` requests, `flight` of them at a time; returns items a second and processor time per item.
    fn run(&mut self, kind: u8, body: &[u8], total: usize, flight: usize) -> (f64, f64) {
        let (cpu, start) = (self.cpu_us(), Instant::now());
        let (mut asked, mut ended, mut items) = (0, 0, 0);
        while ended < total {
            while asked < total && asked - ended < flight {
                self.ask(kind, body);
                asked += 1;
            }
            let (more, ends) = self.read();
            items += more;
            ended += ends;
        }
        let items = u32::try_from(items).map(f64::from).unwrap();
        (items / start.elapsed().as_secs_f64(), (self.cpu_us() - cpu) / items)
    }
}

/// Rates and processor times, one of each per round.
type Figures = (Vec<f64>, Vec<f64>);

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let mut args = std::env::args().skip(1);
    let engine = PathBuf::from(args.next().unwrap());
    let peer = args.next().filter(|path| !path.is_empty()).map(PathBuf::from);
    let rounds: usize = args.next().map_or(5, |text| text.parse().unwrap());
    let text = format!("{{\"text\":\"{}\"}}", "lorem ipsum ".repeat(22));
    let one_stream = br#"{"n":20000}"#.as_slice();
    let many_streams = br#"{"n":200}"#.as_slice();
    let echo = text.as_bytes();
    let cases = [
        ("echo, 1 in flight", b'e', echo, 20_000, 1),
        ("echo, 16 in flight", b'e', echo, 60_000, 16),
        ("chunks, 1 stream", b's', one_stream, 5, 1),
        ("chunks, 64 streams", b's', many_streams, 512, 64),
    ];
    let mut servers: Vec<(&str, Server, Server)> = vec![
        ("def", ours(&engine, ECHO, 1), ours(&engine, STREAM, 1)),
        ("async def", ours(&engine, ECHO, 64), ours(&engine, STREAM, 64)),
    ];
    if let Some(script) = &peer {
        servers.push(("plain loop", plain(script), plain(script)));
    }
    let mut figures: BTreeMap<(usize, &str), Figures> = BTreeMap::new();
    for round in 0..=rounds {
        for (at, (_, kind, body, total, flight)) in cases.iter().enumerate() {
            for (name, echo_server, stream_server) in &mut servers {
                let server = if *kind == b'e' { echo_server } else { stream_server };
                let (rate, cpu) = server.run(*kind, body, *total, *flight);
                if round > 0 {
                    let entry = figures.entry((at, *name)).or_default();
                    entry.0.push(rate);
                    entry.1.push(cpu);
                }
            }
        }
    }
    println!("| case | handler | per second | Python CPU, us |\n| --- | --- | --- | --- |");
    for ((at, name), (mut rates, mut cpus)) in figures {
        println!("| {} | {name} | {:.0} | {:.2} |", cases[at].0, median(&mut rates), median(&mut cpus));
    }
}
