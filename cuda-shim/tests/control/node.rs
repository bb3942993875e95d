//! Fixture: a simulated card, an account, the worker's socket, clients, and connected shims.

use crate::instance::{self, Instance, PATIENCE};
use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket};
use omni_cuda_card::Settings;
use omni_gpu_protocol::control::{COMMAND_BYTES, Command, CommandPacket, REPORT_BYTES, Report, ReportKind};
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

/// Drivers that differ in how memory is prefetched: by ordinal, by location, in batches.
pub(crate) const DRIVERS: [u32; 3] = [12_010, 12_090, 13_050];

pub(crate) struct Node {
    pub(crate) instance: Instance,
    worker: Option<UnixListener>,
}

impl Node {
    pub(crate) fn new(driver: u32) -> Self {
        Self::with(Settings { driver, ..Settings::numbered(0) })
    }

    pub(crate) fn with(settings: Settings) -> Self {
        let mut node = Self { instance: Instance::with(settings, "unified", None), worker: None };
        node.begin_worker();
        node
    }

    fn control(&self) -> PathBuf {
        self.instance.dir.path().join("control")
    }

    /// Listens again, in place of the previous worker.
    pub(crate) fn begin_worker(&mut self) {
        self.end_worker();
        let socket = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_NONBLOCK, None).unwrap();
        bind(socket.as_raw_fd(), &UnixAddr::new(&self.control()).unwrap()).unwrap();
        listen(&socket, Backlog::new(64).unwrap()).unwrap();
        self.worker = Some(socket.into());
    }

    pub(crate) fn end_worker(&mut self) {
        self.worker = None;
        let _ = fs::remove_file(self.control());
    }

    pub(crate) fn start(&self) -> Client {
        Client(self.instance.start_with("", &[("OMNI_GPU_CONTROL", self.control().to_str().unwrap())]))
    }

    /// Next shim that has said hello, if one does so at once.
    pub(crate) fn try_accept(&self) -> Option<(Shim, Report)> {
        let socket = match self.worker.as_ref().unwrap().accept() {
            Ok((socket, _)) => socket,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return None,
            Err(error) => panic!("{error}"),
        };
        socket.set_nonblocking(false).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut shim = Shim { socket, number: 0 };
        let hello = shim.receive().expect("it says hello");
        assert_eq!((hello.kind, hello.number, hello.moved, hello.error), (ReportKind::Hello, 0, 0, 0));
        Some((shim, hello))
    }

    pub(crate) fn accept(&self) -> (Shim, Report) {
        until("a shim connects", || self.try_accept())
    }
}

/// Client that answers each command with a number.
pub(crate) struct Client(instance::Client);

impl Client {
    pub(crate) fn pid(&self) -> u32 {
        self.0.pid()
    }

    pub(crate) fn tell(&mut self, command: &str) {
        self.0.tell(command);
    }

    pub(crate) fn answer(&mut self) -> u64 {
        self.0.line().expect("the client has not ended").parse().unwrap()
    }

    pub(crate) fn ask(&mut self, command: &str) -> u64 {
        self.tell(command);
        self.answer()
    }

    /// Client with a context and ranges of this many bytes.
    pub(crate) fn holding(node: &Node, ranges: &[u64]) -> (Self, Vec<u64>) {
        let mut client = node.start();
        client.ask("begin");
        let addresses = ranges.iter().map(|bytes| client.ask(&format!("take {bytes}"))).collect();
        (client, addresses)
    }

    /// Waits for its end, which must be a success.
    pub(crate) fn end(mut self) {
        let status = until("the client ends", || self.0.child.try_wait().unwrap());
        assert!(status.success(), "{status}");
    }

    pub(crate) fn kill(self) {
        self.0.kill();
    }
}

/// Connection of a shim.
pub(crate) struct Shim {
    socket: UnixStream,
    number: u64,
}

impl Shim {
    pub(crate) fn send(&mut self, command: Command) {
        let packet = self.next(command);
        self.send_bytes(&packet);
    }

    /// Sends a command to a shim that may have closed the connection.
    pub(crate) fn try_send(&mut self, command: Command) {
        let packet = self.next(command);
        match self.socket.write_all(&packet) {
            Ok(()) => {}
            Err(error) => assert_eq!(error.kind(), ErrorKind::BrokenPipe),
        }
    }

    fn next(&mut self, command: Command) -> [u8; COMMAND_BYTES] {
        self.number += 1;
        CommandPacket { number: self.number, command }.to_bytes()
    }

    pub(crate) fn send_bytes(&mut self, packet: &[u8]) {
        self.socket.write_all(packet).unwrap();
    }

    /// Next report; `None` at the end of the connection.
    pub(crate) fn receive(&mut self) -> Option<Report> {
        let mut packet = [0; REPORT_BYTES + 1];
        match self.socket.read(&mut packet) {
            Ok(0) => None,
            Ok(length) => Some(Report::from_bytes(&packet[..length]).expect("a report")),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => None,
            Err(error) => panic!("{error}"),
        }
    }

    /// Sends a command and waits for its report.
    pub(crate) fn carry_out(&mut self, command: Command) -> Report {
        self.send(command);
        let report = self.receive().expect("an answer");
        assert_eq!((report.kind, report.number), (ReportKind::Done, self.number));
        report
    }

    pub(crate) fn evict(&mut self, bytes: u64) -> Report {
        self.carry_out(Command::Evict { bytes })
    }
}

/// Polls until `look` finds something.
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
