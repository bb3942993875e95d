//! A node for a single test: separate folders, ports and control groups, started as an operator starts one, and gone
//! without a trace when the test ends.

mod failing;
mod restarts;
mod zygotes;

use crate::leftovers::Marks;
use crate::process::{is_alive, parent};
use crate::program::program;
use crate::setup::NodeSetup;
use crate::{Client, Disk, PATIENCE, wait_for};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use omni_control_api::{Instance, Model, Models};
use omni_cuda_card::Card;
use serde_json::Value;
use std::ffi::OsStr;
use std::fs;
use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// A running node.
///
/// Dropping it stops it and panics when it ended badly or left anything on the machine.
#[derive(Debug)]
pub struct Node {
    setup: NodeSetup,
    /// The one that was started here.
    scheduler: Child,
    /// The process that has taken over, which is not our child.
    successor: Option<Pid>,
    listeners: Option<Listeners>,
    ended: bool,
}

#[derive(Debug)]
struct Listeners {
    data: SocketAddr,
    admin: SocketAddr,
}

/// Output of a command, and its exit code.
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
    /// A node whose scheduler has begun to start.
    pub(crate) fn begun(setup: NodeSetup, scheduler: Child) -> Self {
        Self { setup, scheduler, successor: None, listeners: None, ended: false }
    }

    /// Where the data listener is, for clients that are programs of their own.
    #[must_use]
    pub fn data_address(&self) -> SocketAddr {
        self.listeners().data
    }

    /// Sends requests to the data listener.
    #[must_use]
    pub fn http(&self) -> Client {
        Client::new(self.data_address())
    }

    /// Where the admin listener is.
    #[must_use]
    pub fn admin_address(&self) -> SocketAddr {
        self.listeners().admin
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

    /// Log lines about a model, and all warnings and errors.
    #[must_use]
    pub fn log_about(&self, model: &str) -> String {
        let (log, named) = (self.log(), format!("\"model\":\"{model}\""));
        let told = log.lines().filter(|line| line.contains(&named) || !line.contains("\"level\":\"INFO\""));
        told.collect::<Vec<_>>().join("\n")
    }

    /// The scheduler's process id.
    #[must_use]
    pub fn pid(&self) -> Pid {
        self.successor.unwrap_or(Pid::from_raw(self.scheduler.id().cast_signed()))
    }

    /// Has a new process of the scheduler's program take over, while the old one may still finish what it has.
    ///
    /// # Panics
    /// When none does.
    pub fn upgrade(&mut self) -> Pid {
        let said = self.omnictl(["upgrade", "-o", "json"]);
        let answer: Value = serde_json::from_str(&said.stdout).unwrap_or_else(|_| panic!("{said:?}\n{}", self.log()));
        let pid = answer["pid"].as_i64().and_then(|pid| pid.try_into().ok()).expect("a process id");
        self.succeeded(Pid::from_raw(pid))
    }

    /// Adopts the process that serves by now.
    pub fn succeeded(&mut self, by: Pid) -> Pid {
        *self.successor.insert(by)
    }

    /// Changes the node's configuration, for the next process that reads it: lines below its `[node]` section.
    pub fn configure(&self, toml: &str) {
        self.setup.write_config(toml);
    }

    /// The first of its processes whose command line, arguments ended by NUL, is this.
    pub(crate) fn process(&self, is: impl Fn(&str) -> bool) -> Option<Pid> {
        self.setup.process(is)
    }

    /// Simulated cards, as [`crate::NodeBuilder::gpus`] made them.
    #[must_use]
    pub fn cards(&self) -> &[Card] {
        &self.setup.cards
    }

    /// The disk that [`crate::NodeBuilder::on_disk`] made.
    ///
    /// # Panics
    /// When it made none.
    #[must_use]
    pub fn disk(&self) -> &Disk {
        self.setup.disk.as_ref().expect("a disk")
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

    /// A model's oldest instance; `None` when it has none.
    #[must_use]
    pub fn instance(&self, model: &str) -> Option<Instance> {
        self.model(model).instances.into_iter().next()
    }

    /// The process id of the engine of a model's oldest instance; `None` when it has none.
    #[must_use]
    pub fn engine(&self, model: &str) -> Option<Pid> {
        self.instance(model).and_then(|instance| instance.pid).map(Pid::from_raw)
    }

    /// Requests to a model over an API (`run`, `openai`, `anthropic`) that ended as ok, error, refused, cancelled.
    #[must_use]
    pub fn outcomes(&self, model: &str, api: &str) -> [u64; 4] {
        let metrics = self.admin().get("/metrics").text();
        ["ok", "error", "refused", "cancelled"].map(|outcome| {
            let name = format!("omni_requests_total{{model=\"{model}\",api=\"{api}\",outcome=\"{outcome}\"}}");
            value_of(&metrics, &name).map_or(0, |count| count as u64)
        })
    }

    /// Value of a metric, by its name and labels as they are written; `None` if there is none.
    #[must_use]
    pub fn metric(&self, name: &str) -> Option<f64> {
        value_of(&self.admin().get("/metrics").text(), name)
    }

    /// Where the worker of an instance listens.
    #[must_use]
    pub fn worker_socket(&self, instance: &str) -> PathBuf {
        self.control_socket().with_file_name(format!("instances/{instance}.sock"))
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

    /// All processes of this node.
    #[must_use]
    pub fn processes(&self) -> Vec<Pid> {
        self.setup.marks().processes().into_iter().map(Pid::from_raw).collect()
    }

    /// Returns true if a text names one of this node's folders.
    pub(crate) fn is_named(&self, text: &str) -> bool {
        self.setup.marks().names(text)
    }

    /// Resources of this node by the kernel: processes, mounts, control groups, loop devices, one line each.
    #[must_use]
    pub fn found(&self) -> Vec<String> {
        self.setup.marks().found()
    }

    /// The models folder.
    #[must_use]
    pub fn folder(&self) -> PathBuf {
        self.setup.folder()
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

    /// Waits until the node knows of a model that was published.
    pub fn await_seen(&self, model: &str) {
        wait_for(model, PATIENCE, || self.models().iter().any(|known| known.name == model).then_some(()));
    }

    /// Waits until a model answers a request with this word.
    ///
    /// # Panics
    ///
    /// When it does not.
    pub fn says(&self, model: &str, word: &str) {
        wait_for(&format!("{model} to say {word}"), PATIENCE, || {
            (self.http().run(model, &Value::Null).json()["result"] == word).then_some(())
        });
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

    /// Waits until a scheduler that was started is ready.
    ///
    /// # Panics
    /// When it ends instead.
    pub fn await_ready(&mut self) {
        self.await_listeners();
        wait_for("the models to be seen", PATIENCE, || (self.admin().get("/readyz").status == 200).then_some(()));
    }

    /// Waits until a scheduler that was started listens.
    ///
    /// # Panics
    /// When it ends instead.
    pub fn await_listeners(&mut self) {
        // The scheduler writes this file once it listens, and is ready once it knows every model in the folder.
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
    }

    fn end(&mut self) {
        self.ended = true;
        let _ = kill(self.pid(), Signal::SIGTERM);
        let status = self.wait(PATIENCE);
        if status.is_none() {
            let _ = kill(self.pid(), Signal::SIGKILL);
            let _ = self.scheduler.kill();
            let _ = self.scheduler.wait();
        }
        self.setup.disk = None;
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

    /// Waits for the end of the scheduler; returns the exit status of the one that was started here: only that one is
    /// our child.
    fn wait(&mut self, limit: Duration) -> Option<ExitStatus> {
        let end = Instant::now() + limit;
        loop {
            if self.successor.is_some_and(is_alive) && Instant::now() < end {
                thread::sleep(Duration::from_millis(5));
                continue;
            }
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

fn value_of(metrics: &str, name: &str) -> Option<f64> {
    metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
}

/// Leftovers after the kernel has had the time to take processes apart; `help` is called until then.
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
