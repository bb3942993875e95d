//! What a test stands on: a simulated card, an account, the worker's socket, clients, and shims that have connected.

use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket};
use omni_cuda_card::{Card, Settings};
use omni_gpu_wire::account::{FILE_BYTES, Use, sum};
use omni_gpu_wire::control::{Kind, ORDER_BYTES, Order, REPORT_BYTES, Report, Verb};
use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Longer than anything here takes on a machine that is busy.
const PATIENCE: Duration = Duration::from_secs(60);
pub(crate) const MIB: u64 = 1 << 20;
/// Drivers that differ in how memory is prefetched: by ordinal, by location, in batches.
pub(crate) const DRIVERS: [u32; 3] = [12_010, 12_090, 13_050];

pub(crate) struct Node {
    dir: TempDir,
    pub(crate) card: Card,
    worker: Option<UnixListener>,
}

impl Node {
    pub(crate) fn new(driver: u32) -> Self {
        Self::with(Settings { driver, ..Settings::numbered(0) })
    }

    pub(crate) fn with(settings: Settings) -> Self {
        let dir = TempDir::new().unwrap();
        let card = Card::create(&dir.path().join("dev"), &[settings]).unwrap().remove(0);
        omni_cuda_card::driver_dir(&library("libcuda_sim.so"), &dir.path().join("driver")).unwrap();
        fs::write(dir.path().join("account"), vec![0; FILE_BYTES]).unwrap();
        let mut node = Self { dir, card, worker: None };
        node.begin_worker();
        node
    }

    /// Listens, in place of the worker that was.
    pub(crate) fn begin_worker(&mut self) {
        self.end_worker();
        let path = self.dir.path().join("control");
        let socket = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_NONBLOCK, None).unwrap();
        bind(socket.as_raw_fd(), &UnixAddr::new(&path).unwrap()).unwrap();
        listen(&socket, Backlog::new(64).unwrap()).unwrap();
        self.worker = Some(socket.into());
    }

    pub(crate) fn end_worker(&mut self) {
        self.worker = None;
        let _ = fs::remove_file(self.dir.path().join("control"));
    }

    pub(crate) fn start(&self) -> Client {
        let driver = self.dir.path().join("driver");
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["client", "--exact", "--ignored", "--nocapture", "--test-threads=1"]);
        command.env("LD_PRELOAD", library("libomni_cuda.so")).env("LD_LIBRARY_PATH", &driver);
        command.env("OMNI_CUDA_SIM", self.dir.path().join("dev")).env("OMNI_GPU_DRIVER", &driver);
        command.env("OMNI_GPU_MODE", "unified").env("OMNI_GPU_ACCOUNT", self.dir.path().join("account"));
        command.env("OMNI_GPU_CONTROL", self.dir.path().join("control"));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (to, from) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Client { child, to, from }
    }

    /// The next shim that has said hello, if one does so at once.
    pub(crate) fn try_accept(&self) -> Option<(Shim, Report)> {
        let socket = match self.worker.as_ref().unwrap().accept() {
            Ok((socket, _)) => socket,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return None,
            Err(error) => panic!("{error}"),
        };
        socket.set_nonblocking(false).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut shim = Shim { socket, number: 0 };
        let hello = shim.hear().expect("it says hello");
        assert_eq!((hello.kind, hello.number, hello.moved, hello.error), (Kind::Hello, 0, 0, 0));
        Some((shim, hello))
    }

    pub(crate) fn accept(&self) -> (Shim, Report) {
        until("a shim connects", || self.try_accept())
    }

    /// What the living say in the account, as the worker would read it.
    pub(crate) fn used(&self) -> Use {
        sum(&fs::read(self.dir.path().join("account")).unwrap(), |slot| is_alive(slot.pid))
    }
}

/// A client, killed when dropped.
pub(crate) struct Client {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Client {
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn tell(&mut self, command: &str) {
        writeln!(self.to, "{command}").unwrap();
    }

    pub(crate) fn answer(&mut self) -> u64 {
        loop {
            let mut line = String::new();
            assert!(self.from.read_line(&mut line).unwrap() > 0, "the client has ended");
            if let Some((_, said)) = line.split_once("client: ") {
                return said.trim_end().parse().unwrap();
            }
        }
    }

    pub(crate) fn ask(&mut self, command: &str) -> u64 {
        self.tell(command);
        self.answer()
    }

    /// A client with a context and ranges of this many bytes.
    pub(crate) fn holding(node: &Node, ranges: &[u64]) -> (Self, Vec<u64>) {
        let mut client = node.start();
        client.ask("begin");
        let addresses = ranges.iter().map(|bytes| client.ask(&format!("take {bytes}"))).collect();
        (client, addresses)
    }

    /// Waits for its own end, which must be a good one.
    pub(crate) fn end(mut self) {
        let status = until("the client ends", || self.child.try_wait().unwrap());
        assert!(status.success(), "{status}");
    }

    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A connection of a shim.
pub(crate) struct Shim {
    socket: UnixStream,
    number: u64,
}

impl Shim {
    pub(crate) fn send(&mut self, verb: Verb) {
        self.number += 1;
        let packet: [u8; ORDER_BYTES] = Order { number: self.number, verb }.to_bytes();
        self.send_bytes(&packet);
    }

    pub(crate) fn send_bytes(&mut self, packet: &[u8]) {
        self.socket.write_all(packet).unwrap();
    }

    /// The next report; `None` at the end of the connection.
    pub(crate) fn hear(&mut self) -> Option<Report> {
        let mut packet = [0; REPORT_BYTES + 1];
        match self.socket.read(&mut packet) {
            Ok(0) => None,
            Ok(length) => Some(Report::from_bytes(&packet[..length]).expect("a report")),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => None,
            Err(error) => panic!("{error}"),
        }
    }

    /// Has an order carried out.
    pub(crate) fn order(&mut self, verb: Verb) -> Report {
        self.send(verb);
        let report = self.hear().expect("an answer");
        assert_eq!((report.kind, report.number), (Kind::Done, self.number));
        report
    }

    pub(crate) fn evict(&mut self, bytes: u64) -> Report {
        self.order(Verb::Evict { bytes })
    }
}

/// Waits for something that happens.
pub(crate) fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + PATIENCE;
    while Instant::now() < end {
        if let Some(found) = look() {
            return found;
        }
        thread::sleep(Duration::from_millis(1));
    }
    panic!("{what}: not within {PATIENCE:?}");
}

fn is_alive(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.starts_with(" Z"))
}

/// What `cargo build` has made, beside this program.
fn library(name: &str) -> PathBuf {
    let program = std::env::current_exe().unwrap();
    let library = program.parent().and_then(Path::parent).unwrap().join(name);
    assert!(library.exists(), "{}: run `cargo build -p omni-cuda -p omni-cuda-sim` first", library.display());
    library
}
