//! Preparation of a test's node before it runs: folders, configuration, models, the scheduler's command line.

use crate::fault::Programs;
use crate::leftovers::Marks;
use crate::{Disk, Node};
use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
use nix::unistd::Pid;
use omni_cuda_card::{Card, Settings};
use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::{env, process};
use tempfile::TempDir;

static COUNT: AtomicU32 = AtomicU32::new(0);
/// In the environment: the Python of all models, on a machine that lacks the one they have by default.
const PYTHON: &str = "OMNI_TEST_PYTHON";
/// For a node without a service manager, whose sockets would be used whatever is configured.
const ANY_PORTS: &[&str] = &["--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"];

/// The Python of models that say nothing of it.
#[must_use]
pub fn python() -> String {
    env::var(PYTHON).unwrap_or_else(|_| "3.11".to_owned())
}

/// A node to be started: its models and its configuration. Models can also be published later, on the running node.
#[derive(Debug)]
pub struct NodeBuilder {
    folder: TempDir,
    /// The models folder's name in it.
    pub(crate) models: String,
    pub(crate) name: String,
    config: String,
    held: Option<[TcpListener; 2]>,
    environment: Vec<(String, String)>,
    programs: Option<PathBuf>,
    single: Option<String>,
    pub(crate) disk: Option<Disk>,
    pub(crate) cards: Vec<Card>,
}

impl NodeBuilder {
    pub(crate) fn new() -> Self {
        let name = format!("omni-t{}-{}", process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let folder = tempfile::Builder::new().prefix(&name).tempdir().expect("a temporary folder");
        // The scheduler gives up root and must still reach what is below.
        fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
        for part in ["models", "state", "cache"] {
            fs::create_dir(folder.path().join(part)).unwrap();
        }
        Self {
            folder,
            models: "models".to_owned(),
            name,
            config: String::new(),
            held: None,
            environment: Vec::new(),
            programs: None,
            single: None,
            disk: None,
            cards: Vec::new(),
        }
    }

    /// Adds lines to the node's configuration, below its `[node]` section.
    #[must_use]
    pub fn config(mut self, toml: &str) -> Self {
        self.config.push_str(toml);
        self
    }

    /// Gives the node simulated cards and the simulated driver; `toml` goes into the `[gpu]` section of its
    /// configuration. [`Node::cards`] are they.
    #[must_use]
    pub fn gpus(mut self, cards: &[Settings], toml: &str) -> Self {
        let (devices, driver) = (self.path("devices"), self.path("driver"));
        self.cards = omni_cuda_card::create(&devices, cards).expect("simulated cards");
        omni_cuda_card::driver_dir(&program("libcuda_sim.so"), &driver).expect("the simulated driver");
        let places = format!("driver-dir = \"{}\"\ndevice-dir = \"{}\"", driver.display(), devices.display());
        self.config(&format!("\n[gpu]\n{places}\n{toml}\n"))
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

    /// Binds the listeners here and hands them over to each scheduler, as a service manager does: connections wait
    /// while there is no scheduler.
    #[must_use]
    pub fn hold_listeners(mut self) -> Self {
        self.held = Some([(); 2].map(|()| TcpListener::bind("127.0.0.1:0").expect("a port")));
        self
    }

    /// Gives schedulers an environment variable. With [`Self::hold_listeners`], `WATCHDOG_PID` is the scheduler's own.
    #[must_use]
    pub fn environment(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Puts one of the node's folders, `state` or `cache`, on a separate disk: [`Node::disk`].
    #[must_use]
    pub fn on_disk(mut self, part: &str, bytes: u64, inodes: u64) -> Self {
        self.disk = Some(Disk::new(self.path(part), bytes, inodes));
        self
    }

    /// Runs other programs than this build's.
    #[must_use]
    pub fn programs(mut self, programs: &Programs) -> Self {
        self.programs = Some(programs.folder().to_owned());
        self
    }

    /// Has it serve only what is there below the models folder.
    #[must_use]
    pub fn single(mut self, directory: &str) -> Self {
        self.single = Some(directory.to_owned());
        self
    }

    /// Starts it and waits until it is ready.
    ///
    /// # Panics
    /// When it ends instead, with its log.
    #[must_use]
    pub fn start(self) -> Node {
        let mut node = self.begin();
        node.await_ready();
        node
    }

    /// As [`Self::start`], without waiting.
    #[must_use]
    pub fn begin(self) -> Node {
        self.write_config(&self.config);
        let scheduler = self.spawn(&self.path("log"));
        Node::begun(self, scheduler)
    }

    /// The models folder.
    #[must_use]
    pub fn folder(&self) -> PathBuf {
        self.path(&self.models)
    }

    pub(crate) fn write_config(&self, toml: &str) {
        let node = format!("[node]\ncgroup-parent = \"{}\"\n{toml}", self.name);
        fs::write(self.path("node.toml"), node).unwrap();
    }

    pub(crate) fn spawn(&self, log: &Path) -> Child {
        let log = File::options().create(true).append(true).open(log).unwrap();
        let (flag, models) = match &self.single {
            None => ("--models", self.folder()),
            Some(directory) => ("--model", self.folder().join(directory)),
        };
        self.command(&log)
            .arg("--config")
            .arg(self.path("node.toml"))
            .arg(flag)
            .arg(models)
            .arg("--state-dir")
            .arg(self.path("state"))
            .arg("--cache-dir")
            .arg(self.path("cache"))
            .arg("--runtime-dir")
            .arg(self.runtime_dir())
            .args(if self.held.is_none() { ANY_PORTS } else { &[] })
            .stderr(log)
            .spawn()
            .expect("omni-scheduler starts")
    }

    /// The scheduler with its standard input and output, the listeners that are held for it, and its cards.
    pub(crate) fn command(&self, log: &File) -> Command {
        let mut command = self.listening(log);
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        if !self.cards.is_empty() {
            command.env(omni_cuda_card::DIRECTORY, self.path("devices"));
        }
        command
    }

    fn listening(&self, log: &File) -> Command {
        let own = |folder: &PathBuf| folder.join("omni-scheduler");
        let scheduler = self.programs.as_ref().map_or_else(|| program("omni-scheduler"), own);
        let Some(held) = &self.held else {
            let mut command = Command::new(scheduler);
            command.stdin(Stdio::null()).stdout(log.try_clone().unwrap());
            return command;
        };
        let [data, admin] = held.each_ref().map(|listener| OwnedFd::from(listener.try_clone().unwrap()));
        let script = "export LISTEN_PID=$$ WATCHDOG_PID=$$; exec \"$0\" \"$@\" 3<&0 4<&1 </dev/null >&2";
        let mut command = Command::new("sh");
        command.args(["-c", script]).arg(scheduler).stdin(data).stdout(admin);
        command.env("LISTEN_FDS", "2").env("LISTEN_FDNAMES", "data:admin");
        command
    }

    /// The first of the node's processes whose command line, arguments ended by NUL, is this.
    pub(crate) fn process(&self, is: impl Fn(&str) -> bool) -> Option<Pid> {
        let line = |pid: &i32| fs::read_to_string(format!("/proc/{pid}/cmdline")).is_ok_and(|line| is(&line));
        self.marks().processes().into_iter().find(line).map(Pid::from_raw)
    }

    pub(crate) fn publish(&self, model: &str, files: &[(&str, &str)]) {
        let target = self.folder().join(model);
        let parent = target.parent().expect("below the models folder").to_owned();
        fs::create_dir_all(&parent).unwrap();
        let fresh = parent.join(format!(".new-{}", COUNT.fetch_add(1, Ordering::Relaxed)));
        for (name, content) in files {
            let file = fresh.join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, content).unwrap();
        }
        if let Ok(version) = env::var(PYTHON) {
            let manifest = fresh.join("omni.toml");
            let own = fs::read_to_string(&manifest).unwrap_or_default();
            fs::write(manifest, format!("{own}\n[runtime]\npython = \"{version}\"\n")).unwrap();
        }
        if target.exists() {
            renameat2(AT_FDCWD, &fresh, AT_FDCWD, &target, RenameFlags::RENAME_EXCHANGE).expect("exchanged");
            fs::remove_dir_all(fresh).unwrap();
        } else {
            fs::rename(&fresh, &target).unwrap();
        }
    }

    pub(crate) fn unpublish(&self, model: &str) {
        let target = self.folder().join(model);
        let gone = target.with_file_name(format!(".old-{}", COUNT.fetch_add(1, Ordering::Relaxed)));
        fs::rename(&target, &gone).unwrap();
        fs::remove_dir_all(gone).unwrap();
    }

    pub(crate) fn path(&self, part: &str) -> PathBuf {
        self.folder.path().join(part)
    }

    /// Short, for its sockets' names have at most 107 bytes.
    pub(crate) fn runtime_dir(&self) -> PathBuf {
        Path::new("/run").join(&self.name)
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    pub(crate) fn marks(&self) -> Marks {
        Marks { folders: vec![self.folder.path().to_owned(), self.runtime_dir()], cgroup: self.name.clone() }
    }
}

/// A program or library of this build, or of the folder in `OMNI_BIN`.
///
/// # Panics
///
/// When it does not exist.
#[must_use]
pub fn program(name: &str) -> PathBuf {
    let beside = || env::current_exe().ok().and_then(|test| Some(test.parent()?.parent()?.to_owned()));
    let folder = env::var_os("OMNI_BIN").map(PathBuf::from).or_else(beside).expect("a folder of programs");
    let program = folder.join(name);
    assert!(program.exists(), "{} is not built: make test, or set OMNI_BIN", program.display());
    program
}
