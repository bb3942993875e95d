//! Worker and scheduler of an engine that runs in this process.

use crate::tiny;
use nix::sys::socket::MsgFlags;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, send, socketpair};
use omni_engine::tenant;
use omni_engine_protocol::control::{Boot, EngineBoot, FromEngine, HandlerMode, ToEngine};
use omni_engine_protocol::frame::{CancelReason, Header, Kind, RequestHead, RequestKind};
use omni_engine_protocol::metrics;
use omni_engine_protocol::packet::{recv_packet_no_fds, send_packet};
use omni_engine_protocol::reader::{Frame, FrameReader};
use omni_kernels::{Backend, StepPlan};
use omni_kernels_cpu::CpuBackend;
use omni_kernels_fake::Stepped;
use serde_json::Value;
use std::collections::HashMap;
use std::io::Write;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc::Receiver;
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Template of the node, whose calls are those of Hermes.
const TEMPLATE: &str = "{{ tools | tojson }}<tool_call></tool_call>{% for m in messages %}{{ m.content }}{% endfor %}";

/// Writes a model and its template into a folder.
pub(crate) fn write_model(folder: &Path) -> PathBuf {
    std::fs::write(folder.join("chat_template.jinja"), TEMPLATE).unwrap();
    tiny::bytes(&folder.join("tiny.gguf"), tiny::TINY, 0)
}

/// Engine, seen from its worker.
pub(crate) struct Engine {
    control: OwnedFd,
    thread: JoinHandle<i32>,
    pub(crate) mode: HandlerMode,
    _folder: tempfile::TempDir,
}

/// Connection, seen from its scheduler.
pub(crate) struct Connection {
    data: UnixStream,
    reader: FrameReader<UnixStream>,
    cancel: OwnedFd,
    last_id: u64,
    answers: HashMap<u64, Answer>,
    metrics: HashMap<String, f64>,
    pub(crate) gives_credit: bool,
}

/// Answer to a request, so far as it has come.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) chunks: Vec<(u8, Vec<u8>)>,
    pub(crate) last: Frame,
}

fn boot(folder: &Path, batches: bool) -> Boot {
    Boot {
        model: "tiny".to_owned(),
        instance: "i".to_owned(),
        engine: EngineBoot::Native,
        model_dir: folder.display().to_string(),
        cache_dir: folder.display().to_string(),
        weights_dir: None,
        device: "cpu".to_owned(),
        concurrency: 8,
        batches,
    }
}

fn spawn(
    folder: &Path,
    batches: bool,
    run: impl FnOnce(&OwnedFd) -> i32 + Send + 'static,
) -> (OwnedFd, JoinHandle<i32>) {
    let (ours, theirs) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC).unwrap();
    let thread = thread::spawn(move || run(&theirs));
    send_packet(&ours, &ToEngine::Boot(boot(folder, batches)), &[]).unwrap();
    (ours, thread)
}

impl Engine {
    pub(crate) fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        write_model(folder.path());
        Self::run(folder, tenant::run_on)
    }

    /// Engine with a draft model in its folder, which is the model itself.
    pub(crate) fn with_draft() -> Self {
        let folder = tempfile::tempdir().unwrap();
        write_model(folder.path());
        let draft = folder.path().join("draft");
        std::fs::create_dir(&draft).unwrap();
        write_model(&draft);
        Self::run(folder, tenant::run_on)
    }

    /// Engine whose steps wait until the other end of the channel is dropped, and count as hung then.
    pub(crate) fn hanging(gate: Receiver<()>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        write_model(folder.path());
        let hung = Some(Duration::from_millis(100));
        Self::run(folder, move |control| {
            tenant::run_with(control, hung, |inner| {
                Stepped::new(inner, move |inner: &mut CpuBackend, plan: &StepPlan| {
                    let _ = gate.recv();
                    inner.step(plan)
                })
            })
        })
    }

    fn run(folder: tempfile::TempDir, run: impl FnOnce(&OwnedFd) -> i32 + Send + 'static) -> Self {
        let (control, thread) = spawn(folder.path(), false, run);
        let told: FromEngine = recv_packet_no_fds(&control).unwrap();
        let FromEngine::Ready { mode } = told else { panic!("{told:?}") };
        Self { control, thread, mode, _folder: folder }
    }

    /// Words and exit code of an engine that cannot start.
    pub(crate) fn fail(folder: &Path, batches: bool) -> (FromEngine, i32) {
        let (control, thread) = spawn(folder, batches, tenant::run_on);
        (recv_packet_no_fds(&control).unwrap(), thread.join().unwrap())
    }

    pub(crate) fn attach(&self) -> Connection {
        let (data, theirs) = UnixStream::pair().unwrap();
        let (cancel, their_cancel) =
            socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC).unwrap();
        send_packet(&self.control, &ToEngine::Attach, &[theirs.as_raw_fd(), their_cancel.as_raw_fd()]).unwrap();
        Connection {
            reader: FrameReader::new(data.try_clone().unwrap()),
            data,
            cancel,
            last_id: 0,
            answers: HashMap::new(),
            metrics: HashMap::new(),
            gives_credit: true,
        }
    }

    /// Ends the connection and the engine, and returns the exit code.
    pub(crate) fn stop(self, connection: Connection) -> i32 {
        drop(connection);
        send_packet(&self.control, &ToEngine::Stop, &[]).unwrap();
        self.thread.join().unwrap()
    }
}

impl Connection {
    /// Sends a request and waits for its answer.
    pub(crate) fn ask(&mut self, kind: RequestKind, body: &Value) -> Answer {
        let id = self.send(kind, body);
        self.collect(&[id]).remove(&id).unwrap()
    }

    pub(crate) fn send(&mut self, kind: RequestKind, body: &Value) -> u64 {
        self.last_id += 1;
        let head = RequestHead { kind: Some(kind), timeout_ms: 60_000, ..RequestHead::default() };
        let head = serde_json::to_vec(&head).unwrap();
        let length = u32::try_from(head.len()).unwrap().to_le_bytes();
        let payload = [&length[..], &head, &serde_json::to_vec(body).unwrap()].concat();
        self.frame(Kind::Request, self.last_id, &payload);
        self.last_id
    }

    pub(crate) fn cancel(&self, id: u64) {
        let header = Header { length: 0, kind: Kind::Cancel, flags: 0, code: CancelReason::ClientGone as u16, id };
        send(self.cancel.as_raw_fd(), &header.encode(), MsgFlags::empty()).unwrap();
    }

    /// Waits for the last frames of requests.
    pub(crate) fn collect(&mut self, ids: &[u64]) -> HashMap<u64, Answer> {
        let is_whole = |answer: &Answer| matches!(answer.last.header.kind, Kind::End | Kind::Error | Kind::Response);
        while !ids.iter().all(|id| self.answers.get(id).is_some_and(is_whole)) {
            self.read();
        }
        ids.iter().map(|id| (*id, self.answers.remove(id).unwrap())).collect()
    }

    /// Waits for the first chunk of an answer.
    pub(crate) fn await_chunk(&mut self, id: u64) {
        while self.answers.get(&id).is_none_or(|answer| answer.chunks.is_empty()) {
            self.read();
        }
    }

    /// Waits until the engine reports this value.
    pub(crate) fn await_metric(&mut self, name: &str, value: f64) {
        while self.metrics.get(name) != Some(&value) {
            self.read();
        }
    }

    /// Bytes of the chunks that have come for a request, as they are counted.
    pub(crate) fn received(&self, id: u64) -> usize {
        self.answers[&id].chunks.iter().map(|(_, bytes)| bytes.len() + 16).sum()
    }

    /// Asks how the engine is.
    pub(crate) fn check(&mut self) -> String {
        self.last_id += 1;
        let id = self.last_id;
        self.frame(Kind::Check, id, b"");
        while self.answers.get(&id).is_none_or(|answer| answer.last.header.kind != Kind::Health) {
            self.read();
        }
        String::from_utf8(self.answers.remove(&id).unwrap().last.payload).unwrap()
    }

    fn read(&mut self) {
        let frame = self.reader.read().unwrap().expect("the engine has closed the connection");
        if frame.header.kind == Kind::Metrics {
            let reported = metrics::parse(&frame.payload).unwrap();
            self.metrics = reported.into_iter().map(|metric| (metric.name, metric.value)).collect();
            return;
        }
        let id = frame.header.id;
        if frame.header.kind == Kind::Chunk && self.gives_credit {
            let cost = frame.header.length + 16;
            self.frame(Kind::Credit, id, &cost.to_le_bytes());
        }
        let chunk = (frame.header.kind == Kind::Chunk).then(|| (frame.header.flags, frame.payload.clone()));
        match self.answers.get_mut(&id) {
            Some(answer) => answer.last = frame,
            None => {
                self.answers.insert(id, Answer { chunks: Vec::new(), last: frame });
            }
        }
        if let Some(chunk) = chunk {
            self.answers.get_mut(&id).unwrap().chunks.push(chunk);
        }
    }

    fn frame(&mut self, kind: Kind, id: u64, payload: &[u8]) {
        let length = u32::try_from(payload.len()).unwrap();
        let header = Header { length, kind, flags: 0, code: 0, id };
        self.data.write_all(&[&header.encode()[..], payload].concat()).unwrap();
    }
}
