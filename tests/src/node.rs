//! A node of a test's own: own folders, ports and control groups, started as an operator starts one, and gone without
//! a trace when the test ends.

use crate::leftovers::Marks;
use crate::process::parent;
use crate::{Client, PATIENCE, wait_for};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use omni_api::{Model, Models};
use serde_json::Value;
use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use std::{env, process, thread};
use tempfile::TempDir;

static COUNT: AtomicU32 = AtomicU32::new(0);

/// What a node will serve and how. Models can also be published later, on the running node.
#[derive(Debug)]
pub struct NodeBuilder {
    folder: TempDir,
    name: String,
    config: String,
    held: Option<[TcpListener; 2]>,
}

/// A running node.
///
/// Dropping it stops it and panics when it ended badly or left anything on the machine.
#[derive(Debug)]
pub struct Node {
    setup: NodeBuilder,
    scheduler: Child,
    listeners: Option<Listeners>,
    ended: bool,
}

#[derive(Debug)]
struct Listeners {
    data: SocketAddr,
    admin: SocketAddr,
}

/// What a command printed and how it ended.
#[derive(Debug)]
pub struct Output {
    /// The exit code; 128 and the signal's number when a signal ended it.
    pub code: i32,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl Node {
    /// A node without models and with default configuration.
    #[must_use]
    pub fn builder() -> NodeBuilder {
        let name = format!("omni-t{}-{}", process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let folder = tempfile::Builder::new().prefix(&name).tempdir().expect("a temporary folder");
        // The scheduler gives up root and must still reach what is below.
        fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
        for part in ["models", "state", "cache"] {
            fs::create_dir(folder.path().join(part)).unwrap();
        }
        NodeBuilder { folder, name, config: String::new(), held: None }
    }

    /// Where the data listener is, for clients that are programs of their own.
    #[must_use]
    pub fn data_address(&self) -> SocketAddr {
        self.listeners().data
    }

    /// Client connections that the scheduler has open now, on both listeners.
    #[must_use]
    pub fn connections(&self) -> usize {
        let Listeners { data, admin } = self.listeners();
        let table = fs::read_to_string("/proc/net/tcp").expect("the kernel's list");
        let ours = |line: &&str| {
            let mut fields = line.split_whitespace().skip(1);
            let (Some(local), Some(_), Some(state)) = (fields.next(), fields.next(), fields.next()) else {
                return false;
            };
            let port = local.rsplit(':').next().and_then(|port| u16::from_str_radix(port, 16).ok());
            let inode = fields.nth(5);
            // Listening, and those that only the kernel remembers, do not count.
            [Some(data.port()), Some(admin.port())].contains(&port) && state != "0A" && inode != Some("0")
        };
        table.lines().skip(1).filter(ours).count()
    }

    /// Sends requests to the data listener.
    #[must_use]
    pub fn http(&self) -> Client {
        Client::new(self.data_address())
    }

    /// Sends requests to the admin listener.
    #[must_use]
    pub fn admin(&self) -> Client {
        Client::new(self.listeners().admin)
    }

    /// Where `omnictl` reaches the node.
    #[must_use]
    pub fn control_socket(&self) -> PathBuf {
        self.setup.runtime_dir().join("control.sock")
    }

    /// `omnictl` for this node, to be started by the test.
    #[must_use]
    pub fn omnictl_command(&self) -> Command {
        let mut command = Command::new(program("omnictl"));
        command.arg("--socket").arg(self.control_socket()).stdin(Stdio::null());
        command
    }

    /// Runs `omnictl` against this node.
    pub fn omnictl(&self, arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Output {
        let output = self.omnictl_command().args(arguments).output().expect("omnictl runs");
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        let code = output.status.code().or(output.status.signal().map(|signal| 128 + signal)).expect("an end");
        Output { code, stdout: text(output.stdout), stderr: text(output.stderr) }
    }

    /// Everything that the node has logged: scheduler, launcher and workers.
    #[must_use]
    pub fn log(&self) -> String {
        self.setup.log()
    }

    /// The scheduler's process id.
    #[must_use]
    pub fn pid(&self) -> Pid {
        Pid::from_raw(self.scheduler.id().cast_signed())
    }

    /// The launcher's process id; `None` while there is none.
    #[must_use]
    pub fn launcher(&self) -> Option<Pid> {
        // Its keeper runs the same program with another argument.
        self.setup.process(|line| line.contains("omni-launcher\0") && line.contains("\0--kept\0"))
    }

    /// How a model is.
    ///
    /// # Panics
    /// When the node does not say.
    #[must_use]
    pub fn model(&self, name: &str) -> Model {
        let said = self.omnictl(["status", name, "-o", "json"]);
        serde_json::from_str(&said.stdout).unwrap_or_else(|error| panic!("{error}: {said:?}"))
    }

    /// The process id of a model's engine; `None` when it has none.
    #[must_use]
    pub fn engine(&self, model: &str) -> Option<Pid> {
        self.model(model).instance.and_then(|instance| instance.pid).map(Pid::from_raw)
    }

    /// The process id of the worker that keeps this engine: the parent of process 1 of its sandbox.
    #[must_use]
    pub fn worker(&self, engine: Pid) -> Option<Pid> {
        parent(parent(engine)?)
    }

    /// Names of the files that the node has for its running instances.
    #[must_use]
    pub fn traces(&self) -> Vec<String> {
        let entries = fs::read_dir(self.setup.runtime_dir().join("instances")).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    }

    /// What the kernel has of this node: processes, mounts, control groups, loop devices, one line each.
    #[must_use]
    pub fn found(&self) -> Vec<String> {
        self.setup.marks().found()
    }

    /// The models folder.
    #[must_use]
    pub fn folder(&self) -> PathBuf {
        self.setup.path("models")
    }

    /// How all models are.
    ///
    /// # Panics
    /// When the node does not say.
    #[must_use]
    pub fn models(&self) -> Vec<Model> {
        let said = self.omnictl(["list", "-o", "json"]);
        serde_json::from_str::<Models>(&said.stdout).unwrap_or_else(|error| panic!("{error}: {said:?}")).models
    }

    /// Puts a model into the models folder by one rename, replacing an older one.
    pub fn publish(&self, model: &str, files: &[(&str, &str)]) {
        self.setup.publish(model, files);
    }

    /// Takes a model out of the models folder by one rename.
    pub fn unpublish(&self, model: &str) {
        self.setup.unpublish(model);
    }

    /// Ends the scheduler with SIGKILL, as a crash would; models go on. [`Node::start_again`] brings a successor.
    pub fn crash(&mut self) {
        self.scheduler.kill().expect("killed");
        self.scheduler.wait().expect("reaped");
    }

    /// Waits for the end of the scheduler after a signal of the test's own.
    ///
    /// # Panics
    /// When it does not end.
    pub fn wait_for_end(&mut self) -> ExitStatus {
        self.wait(PATIENCE).unwrap_or_else(|| panic!("{} did not end\n{}", self.setup.name, self.log()))
    }

    /// Starts a scheduler on the same folders, after [`Node::crash`].
    pub fn start_again(&mut self) {
        self.scheduler = self.setup.spawn(&self.setup.path("log"));
        self.await_ready();
    }

    /// Starts a second scheduler on the same folders and waits for its end.
    ///
    /// # Panics
    /// When it serves instead.
    #[must_use]
    pub fn rival(&self) -> Output {
        let log = self.setup.path("rival.log");
        let mut rival = self.setup.spawn(&log);
        let ended = wait_for("the second scheduler to end", PATIENCE, || rival.try_wait().expect("our child"));
        let code = ended.code().unwrap_or(128);
        Output { code, stdout: String::new(), stderr: fs::read_to_string(log).unwrap_or_default() }
    }

    /// Stops the node with SIGTERM and proves that it ended well and that nothing is left.
    ///
    /// # Panics
    /// When that is not so.
    pub fn stop(mut self) {
        self.end();
    }

    fn listeners(&self) -> &Listeners {
        self.listeners.as_ref().expect("a started node")
    }

    /// The scheduler writes this file once it listens, and is ready once it knows every model in the folder.
    fn await_ready(&mut self) {
        let file = self.setup.runtime_dir().join("node.json");
        let pid = self.scheduler.id();
        let ready = wait_for("the node to be ready", PATIENCE, || {
            let node = fs::read_to_string(&file).ok().and_then(|text| serde_json::from_str::<Value>(&text).ok());
            // A predecessor's file names another process.
            match node.filter(|node| node["pid"].as_u64() == Some(pid.into())) {
                Some(node) => Some(Ok(node)),
                None => self.scheduler.try_wait().expect("our child").map(Err),
            }
        });
        let node = ready.unwrap_or_else(|status| panic!("the node ended at its start with {status}"));
        let address = |key: &str| node[key].as_str().and_then(|text| text.parse().ok()).expect("an address");
        self.listeners = Some(Listeners { data: address("listen"), admin: address("admin_listen") });
        wait_for("the models to be seen", PATIENCE, || (self.admin().get("/readyz").status == 200).then_some(()));
    }

    fn end(&mut self) {
        self.ended = true;
        let _ = kill(self.pid(), Signal::SIGTERM);
        let status = self.wait(PATIENCE);
        if status.is_none() {
            let _ = self.scheduler.kill();
            let _ = self.scheduler.wait();
        }
        let marks = self.setup.marks();
        let left = settle(&marks, |_| {});
        let log = self.log();
        settle(&marks, Marks::sweep);
        let _ = fs::remove_dir_all(self.setup.runtime_dir());
        let ended = &self.setup.name;
        if thread::panicking() {
            eprintln!("--- log of {ended}\n{log}");
            return;
        }
        let status = status.unwrap_or_else(|| panic!("{ended} did not end {PATIENCE:?} after SIGTERM\n{log}"));
        assert!(status.success(), "{ended} ended with {status}\n{log}");
        assert!(left.is_empty(), "{ended} left behind:\n{}\n{log}", left.join("\n"));
    }

    fn wait(&mut self, limit: Duration) -> Option<ExitStatus> {
        let end = Instant::now() + limit;
        loop {
            match self.scheduler.try_wait().expect("our child") {
                Some(status) => return Some(status),
                None if Instant::now() > end => return None,
                None => thread::sleep(Duration::from_millis(5)),
            }
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // `stop` is followed by this, too.
        if !self.ended {
            self.end();
        }
    }
}

impl NodeBuilder {
    /// Adds lines to the node's configuration, below its own `[node]` section.
    #[must_use]
    pub fn config(mut self, toml: &str) -> Self {
        self.config.push_str(toml);
        self
    }

    /// Adds a model from texts.
    #[must_use]
    pub fn model(self, name: &str, files: &[(&str, &str)]) -> Self {
        self.publish(name, files);
        self
    }

    /// Adds one of the project's example models.
    #[must_use]
    pub fn example(self, name: &str) -> Self {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models").join(name);
        let files = fs::read_dir(&source).unwrap_or_else(|error| panic!("{}: {error}", source.display()));
        let text = |path: PathBuf| {
            let name = path.file_name().and_then(OsStr::to_str).expect("a name").to_owned();
            fs::read_to_string(path).ok().map(|text| (name, text))
        };
        let files: Vec<(String, String)> = files.filter_map(|entry| text(entry.unwrap().path())).collect();
        self.publish(name, &files.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect::<Vec<_>>());
        self
    }

    /// Binds the listeners here and hands them over to each scheduler, as a service manager does: what connects while
    /// there is none waits.
    #[must_use]
    pub fn hold_listeners(mut self) -> Self {
        self.held = Some([(); 2].map(|()| TcpListener::bind("127.0.0.1:0").expect("a port")));
        self
    }

    /// Starts it and waits until it is ready.
    ///
    /// # Panics
    /// When it ends instead, with its log.
    #[must_use]
    pub fn start(self) -> Node {
        let node = format!("[node]\ncgroup-parent = \"{}\"\n{}", self.name, self.config);
        fs::write(self.path("node.toml"), node).unwrap();
        let scheduler = self.spawn(&self.path("log"));
        let mut node = Node { setup: self, scheduler, listeners: None, ended: false };
        node.await_ready();
        node
    }

    fn spawn(&self, log: &Path) -> Child {
        let log = File::options().create(true).append(true).open(log).unwrap();
        self.command(&log)
            .arg("--config")
            .arg(self.path("node.toml"))
            .arg("--models")
            .arg(self.path("models"))
            .arg("--state-dir")
            .arg(self.path("state"))
            .arg("--cache-dir")
            .arg(self.path("cache"))
            .arg("--runtime-dir")
            .arg(self.runtime_dir())
            .args(["--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"])
            .stderr(log)
            .spawn()
            .expect("omni-scheduler starts")
    }

    /// The scheduler with its standard input and output, and the listeners that are held for it.
    fn command(&self, log: &File) -> Command {
        let scheduler = program("omni-scheduler");
        let Some(held) = &self.held else {
            let mut command = Command::new(scheduler);
            command.stdin(Stdio::null()).stdout(log.try_clone().unwrap());
            return command;
        };
        let [data, admin] = held.each_ref().map(|listener| OwnedFd::from(listener.try_clone().unwrap()));
        let script = "export LISTEN_PID=$$; exec \"$0\" \"$@\" 3<&0 4<&1 </dev/null >&2";
        let mut command = Command::new("sh");
        command.args(["-c", script]).arg(scheduler).stdin(data).stdout(admin);
        command.env("LISTEN_FDS", "2").env("LISTEN_FDNAMES", "data:admin");
        command
    }

    /// The first of the node's processes whose command line, arguments ended by NUL, is this.
    fn process(&self, is: impl Fn(&str) -> bool) -> Option<Pid> {
        let line = |pid: &i32| fs::read_to_string(format!("/proc/{pid}/cmdline")).is_ok_and(|line| is(&line));
        self.marks().processes().into_iter().find(line).map(Pid::from_raw)
    }

    fn publish(&self, model: &str, files: &[(&str, &str)]) {
        let target = self.path("models").join(model);
        let parent = target.parent().expect("below the models folder").to_owned();
        fs::create_dir_all(&parent).unwrap();
        let fresh = parent.join(format!(".new-{}", COUNT.fetch_add(1, Ordering::Relaxed)));
        for (name, content) in files {
            let file = fresh.join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, content).unwrap();
        }
        if target.exists() {
            self.unpublish(model);
        }
        fs::rename(&fresh, &target).unwrap();
    }

    fn unpublish(&self, model: &str) {
        let target = self.path("models").join(model);
        let gone = target.with_file_name(format!(".old-{}", COUNT.fetch_add(1, Ordering::Relaxed)));
        fs::rename(&target, &gone).unwrap();
        fs::remove_dir_all(gone).unwrap();
    }

    fn path(&self, part: &str) -> PathBuf {
        self.folder.path().join(part)
    }

    /// Short, for its sockets' names have at most 107 bytes.
    fn runtime_dir(&self) -> PathBuf {
        Path::new("/run").join(&self.name)
    }

    fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    fn marks(&self) -> Marks {
        Marks { folders: vec![self.folder.path().to_owned(), self.runtime_dir()], cgroup: self.name.clone() }
    }
}

/// A program of this build, or of the folder in `OMNI_BIN`.
fn program(name: &str) -> PathBuf {
    let beside = || env::current_exe().ok().and_then(|test| Some(test.parent()?.parent()?.to_owned()));
    let folder = env::var_os("OMNI_BIN").map(PathBuf::from).or_else(beside).expect("a folder of programs");
    let program = folder.join(name);
    assert!(program.exists(), "{} is not built: make test, or set OMNI_BIN", program.display());
    program
}

/// What is left once the kernel has had the time to take processes apart; `help` is called until then.
fn settle(marks: &Marks, help: impl Fn(&Marks)) -> Vec<String> {
    let end = Instant::now() + Duration::from_secs(10);
    loop {
        let left = marks.found();
        if left.is_empty() || Instant::now() > end {
            return left;
        }
        help(marks);
        thread::sleep(Duration::from_millis(20));
    }
}
