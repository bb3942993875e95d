//! Set-up of a test's node, before and while it runs: folders, configuration, models, the scheduler's command line.

use crate::Disk;
use crate::leftovers::Marks;
use crate::program::{given_python, program};
use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
use nix::unistd::Pid;
use omni_cuda_card::Card;
use std::fs::{self, File, Permissions};
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{self, Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use tempfile::TempDir;

static COUNT: AtomicU32 = AtomicU32::new(0);
/// For a node without a service manager, whose sockets would be used whatever is configured.
const ANY_PORTS: &[&str] = &["--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"];

/// Set-up of one node. Its folder is removed with it.
#[derive(Debug)]
pub(crate) struct NodeSetup {
    folder: TempDir,
    /// The models folder's name in it.
    pub(crate) models: String,
    pub(crate) name: String,
    /// Listeners that are bound here, for the schedulers.
    pub(crate) held: Option<[TcpListener; 2]>,
    /// Environment variables of the schedulers.
    pub(crate) environment: Vec<(String, String)>,
    /// Folder of programs other than this build's.
    pub(crate) programs: Option<PathBuf>,
    /// Directory of the only model, below the models folder.
    pub(crate) single: Option<String>,
    pub(crate) disk: Option<Disk>,
    pub(crate) cards: Vec<Card>,
}

impl NodeSetup {
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
            held: None,
            environment: Vec::new(),
            programs: None,
            single: None,
            disk: None,
            cards: Vec::new(),
        }
    }

    /// The models folder.
    pub(crate) fn folder(&self) -> PathBuf {
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

    pub(crate) fn publish(&self, model: &str, files: &[(&str, impl AsRef<[u8]>)]) {
        let target = self.folder().join(model);
        let parent = target.parent().expect("below the models folder").to_owned();
        fs::create_dir_all(&parent).unwrap();
        let fresh = parent.join(format!(".new-{}", COUNT.fetch_add(1, Ordering::Relaxed)));
        for (name, content) in files {
            let file = fresh.join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, content).unwrap();
        }
        if let Some(version) = given_python() {
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
