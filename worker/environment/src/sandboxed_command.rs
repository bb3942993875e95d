//! Foreign programs of the launcher: each in a sandbox, and in control groups that are gone when it is.

use super::Settings;
use super::queue;
use crate::command::{self, CommandError, Finished};
use omni_cgroup::{Driver, GroupName, Limits, Part};
use omni_process::SealedProgram;
use omni_sandbox::{Bind, SandboxSpec};
use omni_worker_spec::{BuildSpec, WorkerSpec};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Beginning of the names of their control groups.
pub const GROUPS: &str = "build-";

/// Means of making sandboxes on this node.
#[derive(Clone)]
pub struct Sandboxes {
    driver: Arc<dyn Driver>,
    worker: Arc<SealedProgram>,
    limits: Limits,
}

/// Command to run in a sandbox: program, files, user.
pub struct SandboxedCommand {
    /// Absolute path of the program inside, then its arguments.
    pub argv: Vec<String>,
    /// Beside what a sandbox always has.
    pub binds: Vec<Bind>,
    /// Beside what every command gets.
    pub env: Vec<(String, String)>,
    /// Working directory.
    pub cwd: &'static str,
    /// User and group.
    pub uid: u32,
    /// Access to the host's network.
    pub network: bool,
    /// Size of `/tmp` and of `/dev/shm`.
    pub tmp_bytes: u64,
}

/// A command did not come to its end.
#[derive(Debug, thiserror::Error)]
pub enum SandboxedCommandError {
    /// No control group.
    #[error("cannot make its control group")]
    Cgroup(#[from] omni_cgroup::Error),
    /// No specification.
    #[error("cannot write its sandbox")]
    Spec(#[from] serde_json::Error),
    /// The command did not end by itself.
    #[error(transparent)]
    Run(#[from] CommandError),
}

impl Sandboxes {
    /// Sandboxes with the bounds of a build.
    pub fn new(settings: &Settings, driver: Arc<dyn Driver>, worker: Arc<SealedProgram>) -> Self {
        let python = &settings.python;
        let limits = Limits {
            memory_bytes: Some(python.build_memory.bytes()),
            pids: Some(python.build_pids),
            cpu_millis: Some(queue::cpu_millis(python.build_cpus, processors())),
        };
        Self { driver, worker, limits }
    }

    /// Sandboxes with other bounds.
    #[must_use]
    pub fn with_limits(&self, limits: Limits) -> Self {
        Self { limits, ..self.clone() }
    }

    /// Runs a command. No process that it started is left when this returns; `name` is that of its groups, behind
    /// [`GROUPS`], and must be unique meanwhile.
    ///
    /// # Errors
    /// It could not be run, took longer than `limit`, or `may_go_on` ended it.
    pub fn run(
        &self,
        name: &str,
        command: SandboxedCommand,
        limit: Duration,
        line: &mut dyn FnMut(&str),
        may_go_on: impl Fn() -> Result<(), String>,
    ) -> Result<Finished, SandboxedCommandError> {
        let SandboxedCommand { argv, binds, mut env, cwd, uid, network, tmp_bytes } = command;
        env.extend(
            [("PATH", "/usr/local/bin:/usr/bin:/bin"), ("HOME", "/tmp/home"), ("LANG", "C.UTF-8")]
                .map(|(k, v)| (k.into(), v.into())),
        );
        let sandbox = SandboxSpec {
            hostname: "build".to_owned(),
            uid,
            gid: uid,
            binds,
            devices: Vec::new(),
            cache: None,
            weights: None,
            tmp_bytes,
            host_network: network,
            env,
            argv,
            cwd: cwd.into(),
        };
        let name = format!("{GROUPS}{name}");
        let run = || {
            let worker = self.driver.create(&GroupName::new(&name, Part::Worker)?, &Limits::default())?;
            let cgroup = self.driver.create(&GroupName::new(&name, Part::Model)?, &self.limits)?;
            let spec = serde_json::to_vec(&WorkerSpec::Build(Box::new(BuildSpec { cgroup, sandbox })))?;
            let join = |pid: nix::unistd::Pid| self.driver.enter(&worker, pid.as_raw()).map_err(io::Error::other);
            Ok(command::run(self.worker.command(), &spec, limit, join, &mut *line, &may_go_on)?)
        };
        let result = run();
        if let Err(error) = self.driver.destroy(&name) {
            tracing::warn!(build = name, error = omni_log::chain(&error), "the control group of a build is left");
        }
        result
    }
}

/// Processors that this process may use.
pub fn processors() -> u32 {
    std::thread::available_parallelism().map_or(1, |count| u32::try_from(count.get()).unwrap_or(u32::MAX))
}

/// A directory or file of the host at the same path inside.
pub(super) fn shown(path: &Path, writable: bool) -> Bind {
    Bind { source: path.to_owned(), target: path.to_owned(), writable }
}
