//! The worker under test: real control groups, a real `omni-worker`, a small Python engine, and the test as scheduler.
//!
//! Everything that a test makes is gone when its [`Host`] is dropped, and the drop asserts that.
#![allow(dead_code, unreachable_pub, unused_imports, reason = "each test program uses a part")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a helper of tests fails the test")]

mod python;
mod setup;
mod zygote;

pub use python::python;
use python::{argv, package};
use setup::MODEL;
pub use setup::{Setup, body, model};
pub use zygote::Zygote;

use nix::sys::signal::Signal;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, setsockopt, socket, sockopt};
use nix::sys::time::{TimeVal, TimeValLike};
use nix::unistd::Pid;
use omni_cgroup::{CgroupPaths, Cgroupfs, Driver, GroupName, Limits, Part};
use omni_engine_protocol::control::{Boot, EngineBoot};
use omni_engine_protocol::packet::{recv_packet, send_packet};
use omni_node_protocol::exit::ExitCause;
use omni_node_protocol::id::{InstanceId, SnapshotDigest};
use omni_node_protocol::instance::{FromWorker, LogLine, PROTOCOL, ToWorker, Welcome};
use omni_node_protocol::launcher::GpuSpec;
use omni_sandbox::{Bind, Cache, SandboxSpec};
use omni_worker_spec::{BuildSpec, Gpu, InstanceSpec, WorkerSpec, ZygoteSocket};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Longest wait for anything: far above what is usual, so that only a hang reaches it.
pub const PATIENCE: Duration = Duration::from_secs(30);
pub const MIB: u64 = 1024 * 1024;
const ENGINE: &str = include_str!("engine.py");

/// How often a property is tried: `few`, or `many` in `make soak`.
pub fn rounds(few: u32, many: u32) -> u32 {
    if std::env::var_os("OMNI_SOAK").is_some() { many } else { few }
}

/// Machine with its own groups and folder.
pub struct Host {
    pub dir: tempfile::TempDir,
    driver: Cgroupfs,
    counter: AtomicU32,
}

pub struct Instance {
    pub worker: Child,
    pub spec: InstanceSpec,
    name: GroupName,
    driver: Cgroupfs,
}

impl Host {
    pub fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let dir = tempfile::Builder::new().prefix("omni-w").tempdir().unwrap();
        // Models are other users: they must be able to reach what is bound from here.
        fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let driver = Cgroupfs::detect(&format!("omni-test-worker-{}-{number}", std::process::id())).unwrap();
        Self { dir, driver, counter: AtomicU32::new(0) }
    }

    fn group(&self, memory_bytes: u64, pids: u32) -> (u32, GroupName, CgroupPaths) {
        let number = self.counter.fetch_add(1, Ordering::Relaxed);
        let name = GroupName::new(&format!("{number:012x}"), Part::Model).unwrap();
        let limits = Limits { memory_bytes: Some(memory_bytes), pids: Some(pids), cpu_millis: None };
        (number, name.clone(), self.driver.create(&name, &limits).unwrap())
    }

    /// Starts an instance and waits until its worker listens.
    pub fn start(&self, setup: Setup) -> Instance {
        let (number, name, cgroup) = self.group(setup.memory_bytes + setup.unseen_bytes, setup.pids);
        let model = self.dir.path().join(format!("model{number}"));
        fs::create_dir(&model).unwrap();
        let body = if setup.real { "model.py" } else { "body.py" };
        fs::write(model.join("engine.py"), ENGINE).unwrap();
        fs::write(model.join(body), &setup.body).unwrap();
        let uid = setup.uid.unwrap_or(3_000_000 + std::process::id() % 100_000 * 10 + number % 10);
        let mut binds = vec![Bind { source: model, target: "/model".into(), writable: false }];
        binds.extend(python().bind());
        if setup.real {
            binds.push(package());
        }
        binds.extend(setup.binds);
        let mut env = vec![("PATH".into(), "/usr/bin:/bin".into()), ("HOME".into(), "/tmp/home".into())];
        env.extend(setup.env);
        let boot = Boot { weights_dir: setup.weights.as_ref().map(|_| "/weights".into()), ..boot() };
        let spec = InstanceSpec {
            instance: InstanceId::parse(&format!("{number:012x}")).unwrap(),
            model: "test".into(),
            snapshot: SnapshotDigest::parse(&"0".repeat(64)).unwrap(),
            note: "kept".into(),
            socket: self.dir.path().join(format!("{number}.sock")),
            exit_file: self.dir.path().join(format!("{number}.exit")),
            peer_uid: setup.peer_uid,
            cgroup,
            memory_bytes: setup.memory_bytes,
            cpu_millis: 1000,
            log_lines_per_second: setup.log_lines_per_second,
            zygote: setup.zygote.map(|path| ZygoteSocket { path, patience_ms: 10_000 }),
            gpu: setup.gpu.map(|spec| Gpu { spec, control: self.dir.path().join(format!("{number}.gpu")) }),
            sandbox: SandboxSpec {
                hostname: "test".into(),
                uid,
                gid: uid,
                binds,
                devices: setup.devices,
                cache: setup.cache,
                weights: setup.weights,
                tmp_bytes: setup.tmp_bytes,
                host_network: setup.host_network,
                env,
                argv: argv(setup.real),
                cwd: "/model".into(),
            },
            boot,
        };
        let mut worker = spawn(&WorkerSpec::Instance(Box::new(spec.clone())));
        let mut line = String::new();
        let mut from_worker = BufReader::new(worker.stdout.take().unwrap());
        from_worker.read_line(&mut line).unwrap();
        assert_eq!(line, "listening\n");
        line.clear();
        assert_eq!(from_worker.read_line(&mut line).unwrap(), 0, "the worker lets go of its standard output");
        Instance { worker, spec, name, driver: self.driver.clone() }
    }

    /// Runs one command as a build step.
    pub fn build(&self, argv: &[&str], change: impl FnOnce(&mut SandboxSpec)) -> Output {
        let (number, name, cgroup) = self.group(256 * MIB, 64);
        let mut sandbox = SandboxSpec {
            hostname: "build".into(),
            uid: 3_900_000 + number,
            gid: 3_900_000 + number,
            binds: vec![],
            devices: vec![],
            cache: None,
            weights: None,
            tmp_bytes: 16 * MIB,
            host_network: true,
            env: vec![("PATH".into(), "/usr/bin:/bin".into())],
            argv: argv.iter().map(|arg| (*arg).to_owned()).collect(),
            cwd: "/".into(),
        };
        change(&mut sandbox);
        let worker = spawn(&WorkerSpec::Build(Box::new(BuildSpec { cgroup: cgroup.clone(), sandbox })));
        let output = worker.wait_with_output().unwrap();
        self.driver.remove(&cgroup).unwrap();
        self.driver.destroy(name.instance()).unwrap();
        output
    }

    /// A log as [`Scheduler::run`] collects it, from an instance that ends by itself.
    pub fn run(&self, setup: Setup) -> (Vec<serde_json::Value>, ExitCause) {
        let mut instance = self.start(setup);
        let (lines, cause) = instance.connect().run();
        instance.wait();
        let facts = lines.iter().filter_map(|line| serde_json::from_str(&line.text).ok()).collect();
        if !matches!(cause, ExitCause::Exited { code: 0 }) {
            eprintln!("{cause}: {:#?}", lines.iter().map(|line| &line.text).collect::<Vec<_>>());
        }
        (facts, cause)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let removed = self.driver.remove_parent();
        if std::thread::panicking() {
            return; // the failure is what matters
        }
        removed.unwrap();
        assert_eq!(self.driver.list().unwrap(), Vec::<String>::new(), "control groups are left");
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!mounts.contains(self.dir.path().to_str().unwrap()), "mounts are left");
    }
}

impl Instance {
    /// Connects as the scheduler and says hello.
    pub fn connect(&self) -> Scheduler {
        self.connect_after(0)
    }

    pub fn connect_after(&self, log_seen: u64) -> Scheduler {
        let socket = self.connect_silently();
        send_packet(&socket, &ToWorker::Hello { protocol: PROTOCOL, oldest: None, log_seen }, &[]).unwrap();
        match recv_packet(&socket).unwrap().0 {
            FromWorker::Welcome(welcome) => Scheduler { socket, lines: vec![], welcome },
            other => panic!("{other:?} before Welcome"),
        }
    }

    pub fn connect_silently(&self) -> OwnedFd {
        let socket = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None).unwrap();
        setsockopt(&socket, sockopt::ReceiveTimeout, &TimeVal::seconds(PATIENCE.as_secs() as i64)).unwrap();
        connect(socket.as_raw_fd(), &UnixAddr::new(&self.spec.socket).unwrap()).unwrap();
        socket
    }

    pub fn group_pids(&self) -> Vec<i32> {
        let procs = fs::read_to_string(self.spec.cgroup.memory().join("cgroup.procs")).unwrap();
        procs.lines().map(|line| line.parse().unwrap()).collect()
    }

    /// Waits for the worker's own end; everything of the instance must be gone then. The cause from the exit file.
    pub fn wait(&mut self) -> ExitCause {
        wait_until("the worker ends", || self.worker.try_wait().unwrap().is_some());
        assert!(self.worker.wait().unwrap().success());
        assert_eq!(self.group_pids(), Vec::<i32>::new());
        assert!(!self.spec.socket.exists(), "the socket is removed");
        serde_json::from_slice(&fs::read(&self.spec.exit_file).unwrap()).unwrap()
    }

    pub fn signal_worker(&self, signal: Signal) {
        nix::sys::signal::kill(Pid::from_raw(self.worker.id() as i32), signal).unwrap();
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        let _ = self.worker.kill();
        let _ = self.worker.wait();
        if let Err(error) = self.driver.destroy(self.name.instance()) {
            eprintln!("control group is left: {error}");
        }
    }
}

/// The test's end of an instance's socket.
pub struct Scheduler {
    pub socket: OwnedFd,
    /// Lines heard while something else was waited for.
    pub lines: Vec<LogLine>,
    pub welcome: Welcome,
}

impl Scheduler {
    pub fn send(&self, message: &ToWorker) {
        send_packet(&self.socket, message, &[]).unwrap();
    }

    pub fn send_fds(&self, message: &ToWorker, fds: &[RawFd]) {
        send_packet(&self.socket, message, fds).unwrap();
    }

    /// The next message that is neither a log line nor the word that the engine's process is there.
    pub fn next(&mut self) -> FromWorker {
        loop {
            match recv_packet(&self.socket).unwrap().0 {
                FromWorker::Log(line) => self.lines.push(line),
                FromWorker::Welcome(welcome) => self.welcome = welcome,
                message => return message,
            }
        }
    }

    /// The next log line that the model wrote as JSON.
    pub fn fact(&mut self) -> serde_json::Value {
        loop {
            let line = if self.lines.is_empty() {
                match recv_packet(&self.socket).unwrap().0 {
                    FromWorker::Log(line) => line,
                    FromWorker::Welcome(welcome) => {
                        self.welcome = welcome;
                        continue;
                    }
                    other => panic!("{other:?} instead of a line"),
                }
            } else {
                self.lines.remove(0)
            };
            match serde_json::from_str(&line.text) {
                Ok(fact) => return fact,
                Err(_) => eprintln!("{line:?}"),
            }
        }
    }

    /// All lines and the end of an instance.
    pub fn run(mut self) -> (Vec<LogLine>, ExitCause) {
        loop {
            match self.next() {
                FromWorker::Exited(cause) => return (self.lines, cause),
                FromWorker::Ready { .. } | FromWorker::EngineFailed { .. } => {}
                other => panic!("unexpected {other:?}"),
            }
        }
    }

    /// Waits for the engine to be ready.
    pub fn ready(&mut self) {
        while self.welcome.ready.is_none() {
            if let FromWorker::Ready { mode } = self.next() {
                self.welcome.ready = Some(mode);
            }
        }
    }
}

fn boot() -> Boot {
    Boot {
        model: "test".into(),
        instance: "test".into(),
        engine: EngineBoot::Python { module: "model".into(), function: "handle_request".into() },
        model_dir: "/model".into(),
        cache_dir: "/cache".into(),
        weights_dir: None,
        device: "cpu".into(),
        concurrency: 1,
        batches: false,
    }
}

fn spawn(spec: &WorkerSpec) -> Child {
    let mut worker = Command::new(env!("CARGO_BIN_EXE_omni-worker"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(if matches!(spec, WorkerSpec::Build(_)) { Stdio::piped() } else { Stdio::inherit() })
        .spawn()
        .unwrap();
    worker.stdin.take().unwrap().write_all(&serde_json::to_vec(spec).unwrap()).unwrap();
    worker
}

/// Waits for a condition that has no descriptor to wait on.
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < end, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The value of a field of `/proc/<pid>/status`, as it is written.
pub fn status_field(pid: i32, field: &str) -> String {
    find_status_field(pid, field).unwrap()
}

/// The same, `None` when the process is not there any more: it can end before the file is opened and while it is read.
fn find_status_field(pid: i32, field: &str) -> Option<String> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(&format!("{field}:"))).unwrap();
    Some(line.trim().to_owned())
}

/// The process is not there any more, or only waits for its parent.
pub fn is_gone(pid: i32) -> bool {
    find_status_field(pid, "State").is_none_or(|state| state.starts_with('Z'))
}
