//! A launcher in folders of its own, and the scheduler's side of its socket.

use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, setsockopt, socket, sockopt};
use nix::sys::time::{TimeVal, TimeValLike};
use nix::unistd::Pid;
use omni_engine_protocol::packet::{PacketError, recv_packet_no_fds, send_packet};
use omni_node_protocol::exit::ExitCause;
use omni_node_protocol::id::{EnvironmentKey, InstanceId, SnapshotDigest};
use omni_node_protocol::launcher::{EngineSpec, FromLauncher, PROTOCOL, StartSpec, ToLauncher};
use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Longer than anything here takes on a loaded machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// Folders, and the launcher that runs in them.
pub(crate) struct Node {
    pub(crate) dir: TempDir,
    /// Where the launcher's program is, if not where it was built.
    pub(crate) programs: Option<PathBuf>,
    parent: String,
    launcher: Option<Child>,
}

impl Node {
    /// Starts a launcher on an empty models folder.
    pub(crate) fn start() -> Self {
        let mut node = Self::stopped();
        node.run(&[]);
        node
    }

    /// The folders alone.
    pub(crate) fn stopped() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let dir = tempfile::Builder::new().prefix("omni-l").tempdir_in("/run").unwrap();
        let parent = format!("omni-launcher-test-{}-{number}", std::process::id());
        fs::create_dir(dir.path().join("models")).unwrap();
        let node = Self { dir, programs: None, parent, launcher: None };
        node.configure("");
        node
    }

    /// Writes the configuration: the tests' control group, and `more`.
    pub(crate) fn configure(&self, more: &str) {
        let uv = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.omni/tools/bin/uv");
        let uv = fs::canonicalize(uv).expect("uv is in .omni/tools/bin: run `make setup`");
        let text = format!("[node]\ncgroup-parent = {:?}\n[python]\nuv = {uv:?}\n{more}", self.parent);
        fs::write(self.path("node.toml"), text).unwrap();
    }

    /// Starts the launcher; it is there when its socket listens.
    pub(crate) fn run(&mut self, more: &[&str]) {
        let mut child = self.command(more).spawn().unwrap();
        self.wait_for("the launcher to listen", || {
            assert!(child.try_wait().unwrap().is_none(), "the launcher ended");
            self.try_connect().is_some()
        });
        self.launcher = Some(child);
    }

    /// The launcher's command line.
    pub(crate) fn command(&self, more: &[&str]) -> Command {
        self.command_for(0, more)
    }

    /// The same, for a scheduler of this user.
    pub(crate) fn command_for(&self, uid: u32, more: &[&str]) -> Command {
        let built = Path::new(env!("CARGO_BIN_EXE_omni-launcher"));
        let moved = self.programs.as_ref().map(|dir| dir.join("omni-launcher"));
        let mut command = Command::new(moved.as_deref().unwrap_or(built));
        command.args(["--scheduler-uid", &uid.to_string()]).arg("--config").arg(self.path("node.toml")).args(more);
        for (flag, dir) in
            [("--models", "models"), ("--state-dir", "state"), ("--cache-dir", "cache"), ("--runtime-dir", "run")]
        {
            command.arg(flag).arg(self.path(dir));
        }
        command.stdin(Stdio::null());
        command
    }

    pub(crate) fn path(&self, below: &str) -> PathBuf {
        self.dir.path().join(below)
    }

    /// Writes a file of a model, with its directories.
    pub(crate) fn write(&self, path: &str, text: &str) {
        let path = self.path("models").join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// Writes a model in a hidden directory and renames it into place.
    pub(crate) fn publish(&self, name: &str, files: &[(&str, &str)]) {
        for (file, text) in files {
            self.write(&format!(".new/{file}"), text);
        }
        let place = self.path("models").join(name);
        fs::create_dir_all(place.parent().unwrap()).unwrap();
        fs::rename(self.path("models/.new"), place).unwrap();
    }

    pub(crate) fn launcher_pid(&self) -> Pid {
        Pid::from_raw(self.launcher.as_ref().unwrap().id().cast_signed())
    }

    /// Ends the launcher by a signal and waits for it.
    pub(crate) fn end(&mut self, signal: Signal) -> std::process::ExitStatus {
        kill(self.launcher_pid(), signal).unwrap();
        self.launcher.take().unwrap().wait().unwrap()
    }

    /// Waits for the launcher to end by itself.
    pub(crate) fn wait_end(&mut self) -> std::process::ExitStatus {
        self.launcher.take().unwrap().wait().unwrap()
    }

    fn try_connect(&self) -> Option<OwnedFd> {
        let fd = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None).unwrap();
        let address = UnixAddr::new(&self.path("run/launcher.sock")).unwrap();
        connect(fd.as_raw_fd(), &address).ok().map(|()| fd)
    }

    /// Connects as a scheduler and says hello.
    pub(crate) fn connect(&self) -> Scheduler {
        self.try_connect_scheduler().expect("the launcher listens")
    }

    /// The same, when a launcher listens.
    pub(crate) fn try_connect_scheduler(&self) -> Option<Scheduler> {
        let socket = self.try_connect()?;
        setsockopt(&socket, sockopt::ReceiveTimeout, &TimeVal::seconds(PATIENCE.as_secs().cast_signed())).unwrap();
        let scheduler = Scheduler { socket };
        scheduler.say(&ToLauncher::Hello { protocol: PROTOCOL, oldest: None });
        assert_eq!(scheduler.hear(), FromLauncher::Welcome { protocol: PROTOCOL });
        let serves = scheduler.hear();
        assert!(matches!(serves, FromLauncher::Serves(_)), "{serves:?}");
        Some(scheduler)
    }

    /// Waits for a condition, bounded.
    pub(crate) fn wait_for(&self, what: &str, mut condition: impl FnMut() -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !condition() {
            assert!(Instant::now() < deadline, "waited in vain for {what}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Parent group of this node, in all hierarchies where it is.
    fn parents(&self) -> Vec<PathBuf> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let points = mounts.lines().filter(|line| line.contains(" - cgroup")).filter_map(|line| line.split(' ').nth(4));
        points.map(|point| Path::new(point).join(&self.parent)).filter(|dir| dir.exists()).collect()
    }

    /// Directories of control groups below the parent.
    pub(crate) fn groups(&self) -> Vec<PathBuf> {
        let below = |dir: PathBuf| fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
        self.parents().into_iter().flat_map(below).filter(|path| path.is_dir()).collect()
    }

    /// Files in the folder of instances.
    pub(crate) fn traces(&self) -> Vec<String> {
        let dir = fs::read_dir(self.path("run/instances")).unwrap();
        dir.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(mut child) = self.launcher.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        // Leftovers of a failed test go here; a test that passed has shown that there are none.
        for group in self.groups() {
            for part in ["model", "worker"] {
                let procs = fs::read_to_string(group.join(part).join("cgroup.procs")).unwrap_or_default();
                for pid in procs.lines().filter_map(|line| line.parse().ok()) {
                    let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
                }
            }
        }
        for group in self.groups() {
            for part in ["model", "worker", ""] {
                let deadline = Instant::now() + Duration::from_secs(5);
                while group.join(part).exists()
                    && fs::remove_dir(group.join(part)).is_err()
                    && Instant::now() < deadline
                {
                    std::thread::sleep(Duration::from_millis(5));
                }
            }
        }
        for parent in self.parents() {
            let _ = fs::remove_dir(parent);
        }
    }
}

/// A scheduler, as far as the launcher can tell.
pub(crate) struct Scheduler {
    socket: OwnedFd,
}

impl Scheduler {
    pub(crate) fn say(&self, message: &ToLauncher) {
        send_packet(&self.socket, message, &[]).unwrap();
    }

    /// Sends bytes that are no message.
    pub(crate) fn send_raw(&self, bytes: &[u8]) {
        nix::sys::socket::send(self.socket.as_raw_fd(), bytes, nix::sys::socket::MsgFlags::empty()).unwrap();
    }

    pub(crate) fn hear(&self) -> FromLauncher {
        recv_packet_no_fds(&self.socket).expect("a message in time")
    }

    /// Waits for the end of the connection; messages before it are passed over. False: it goes on.
    pub(crate) fn is_closed(&self) -> bool {
        loop {
            match recv_packet_no_fds::<FromLauncher>(&self.socket) {
                Ok(_) => {}
                Err(error) => return matches!(error, PacketError::Closed),
            }
        }
    }

    /// Messages up to one that fits, which is the last.
    pub(crate) fn hear_until(&self, fits: impl Fn(&FromLauncher) -> bool) -> Vec<FromLauncher> {
        let mut heard = Vec::new();
        loop {
            let message = self.hear();
            let last = fits(&message);
            heard.push(message);
            if last {
                return heard;
            }
        }
    }

    /// Waits for the snapshot of a model.
    pub(crate) fn snapshot_of(&self, model: &str) -> SnapshotDigest {
        let heard = self.hear_until(|message| matches!(message, FromLauncher::Model { name, .. } if name == model));
        match heard.into_iter().next_back() {
            Some(FromLauncher::Model { snapshot, .. }) => snapshot,
            other => panic!("{other:?}"),
        }
    }

    /// Asks for an environment and waits for it, or for why there is none.
    pub(crate) fn prepare(&self, model: &str, snapshot: &SnapshotDigest) -> Result<EnvironmentKey, (String, bool)> {
        self.prepare_with(model, snapshot, None).1
    }

    /// The same with an interpreter of the manifest; also the lines of progress.
    pub(crate) fn prepare_with(
        &self,
        model: &str,
        snapshot: &SnapshotDigest,
        interpreter: Option<&str>,
    ) -> (Vec<String>, Result<EnvironmentKey, (String, bool)>) {
        self.say(&ToLauncher::Prepare {
            model: model.to_owned(),
            snapshot: snapshot.clone(),
            python: "3.11".to_owned(),
            interpreter: interpreter.map(str::to_owned),
            require_hashes: false,
            weights: None,
        });
        let mut lines = Vec::new();
        loop {
            match self.hear() {
                FromLauncher::Progress { line, .. } => lines.push(line),
                FromLauncher::Prepared { snapshot: of, environment } if of == *snapshot => {
                    return (lines, Ok(environment));
                }
                FromLauncher::PrepareFailed { snapshot: of, message, permanent, .. } if of == *snapshot => {
                    return (lines, Err((message, permanent)));
                }
                _ => {}
            }
        }
    }

    /// Starts an instance and waits until its worker listens.
    pub(crate) fn start(&self, spec: StartSpec) -> Result<i32, String> {
        let id = spec.instance.clone();
        self.say(&ToLauncher::Start(Box::new(spec)));
        loop {
            match self.hear() {
                FromLauncher::Started { instance, worker_pid } if instance == id => return Ok(worker_pid),
                FromLauncher::StartFailed { instance, message } if instance == id => return Err(message),
                _ => {}
            }
        }
    }

    /// Waits for the end of an instance.
    pub(crate) fn gone(&self, id: &InstanceId) -> ExitCause {
        let heard =
            self.hear_until(|message| matches!(message, FromLauncher::WorkerGone { instance, .. } if instance == id));
        match heard.into_iter().next_back() {
            Some(FromLauncher::WorkerGone { cause, .. }) => cause,
            other => panic!("{other:?}"),
        }
    }
}

/// A start request with sensible numbers.
pub(crate) fn request(id: &str, model: &str, snapshot: &SnapshotDigest, environment: &EnvironmentKey) -> StartSpec {
    StartSpec {
        instance: InstanceId::parse(id).unwrap(),
        model: model.to_owned(),
        snapshot: snapshot.clone(),
        engine: EngineSpec::Python {
            environment: environment.clone(),
            module: "model".to_owned(),
            function: "handle_request".to_owned(),
        },
        memory_bytes: 256 << 20,
        cpu_millis: 1000,
        pids: 64,
        tmp_bytes: 16 << 20,
        cache_bytes: 0,
        concurrency: 1,
        batches: false,
        host_network: false,
        env: std::collections::BTreeMap::new(),
        log_lines_per_second: 100,
        gpu: None,
        zygote: None,
        weights: None,
        note: "note".to_owned(),
    }
}
