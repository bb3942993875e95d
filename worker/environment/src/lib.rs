//! Python environments: the interpreter and packages that a model runs with.
//!
//! A thread, the [`Planner`], finds out quickly which environment a snapshot needs and whether it is there; it takes a
//! bounded queue of jobs and answers through a function. A [`Builder`] makes environments, each in a thread of its own;
//! the [`queue`] decides which ones, and when.
//!
//! Invariants: an environment with a record is complete, root's, and never changes; equal inputs have one environment.
#![forbid(unsafe_code)]

mod build;
mod command;
mod hashes;
mod interpreter;
mod key;
mod package;
mod plan;
pub mod queue;
mod record;
mod removal;
mod room;
mod sandboxed_command;
mod scratch;
mod tree;
mod uv;
mod verdict;

pub use build::Builder;
pub use command::{CommandError, Finished};
pub use interpreter::find as find_interpreter;
pub use package::{ENGINE, INSIDE, Package};
pub use plan::{Ended, Plan as BuildPlan};
pub use record::Record;
pub use room::{check as check_room, reserve as reserved_room};
pub use sandboxed_command::{GROUPS, SandboxedCommand, SandboxedCommandError, Sandboxes, processors};
pub use uv::{find as find_uv, version};

use interpreter::{Interpreter, InterpreterError, Question};
use key::Inputs;
use nix::unistd::{Gid, Uid, chown};
use omni_config::node::{BUILDER_UID, Python};
use omni_config::requirements::{names_packages_alone, requires, statements};
use omni_config::{Foreign, PythonVersion};
use omni_log::Kind;
use omni_node_protocol::id::{EnvironmentKey, SnapshotDigest};
use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::Receiver;

/// Settings of the node that environments are made with.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Where environments and packages are.
    pub cache_dir: PathBuf,
    /// The node's configuration of builds.
    pub python: Python,
    /// The user of foreign code.
    pub source_uid: u32,
    /// Where the node's programs are, and perhaps `uv`.
    pub program_dir: Option<PathBuf>,
}

/// The largest `requirements.txt` or `overrides.txt`, in bytes.
const REQUIREMENTS_MAX: u64 = 256 * 1024;
/// An environment that cannot be had.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// For the model's author: the builder's own words, where it is the builder that failed.
    pub message: String,
    /// Trying again leads to the same.
    pub permanent: bool,
}

impl Failure {
    fn permanent(message: impl Into<String>) -> Self {
        Self { message: message.into(), permanent: true }
    }

    fn passing(message: impl Into<String>) -> Self {
        Self { message: message.into(), permanent: false }
    }
}

/// Plan for a snapshot.
#[derive(Debug)]
pub enum Plan {
    /// The environment is there.
    Ready(EnvironmentKey),
    /// The environment must be built.
    Build(Box<BuildPlan>),
}

/// Interpreters that are remembered, and not asked again.
const KNOWN: usize = 64;

/// A question to the planner.
#[derive(Debug, Clone)]
pub struct PlanJob {
    /// The model that asks.
    pub model: String,
    /// Content to plan for.
    pub snapshot: SnapshotDigest,
    /// The snapshot's directory.
    pub dir: PathBuf,
    /// Python release, "3.11".
    pub python: String,
    /// An existing environment's interpreter, instead of a new environment.
    pub interpreter: Option<String>,
    /// The manifest wants a hash for each package.
    pub require_hashes: bool,
}

/// The environments on disk.
pub struct Environments {
    dir: PathBuf,
}

impl Environments {
    /// Makes the folders below the cache directory.
    pub fn open(cache_dir: &Path) -> io::Result<Self> {
        let dir = cache_dir.join("environments");
        fs::create_dir_all(&dir)?;
        let cache = cache_dir.join("uv");
        fs::create_dir_all(&cache)?;
        chown(&cache, Some(Uid::from_raw(BUILDER_UID)), Some(Gid::from_raw(BUILDER_UID)))?;
        clear_leftovers(cache_dir);
        Ok(Self { dir })
    }

    /// How to use an environment; `None` when it is not there.
    pub fn record(&self, key: &EnvironmentKey) -> Option<Record> {
        record::read(&self.dir, key)
    }
}

/// Removes leftovers of builds of an earlier launcher: moved aside at once, and deleted from the disk in their own
/// time. Foreign code has written them: a leftover that cannot be removed is no reason to stop serving.
fn clear_leftovers(cache_dir: &Path) {
    let environments = cache_dir.join("environments");
    let is_unfinished =
        |name: &str| EnvironmentKey::parse(name).is_ok_and(|key| !record::path(&environments, &key).exists());
    let mut left = entries(&environments, &|name| is_unfinished(name) || name.starts_with(removal::ASIDE));
    left.extend(entries(cache_dir, &|name| name.starts_with(scratch::SCRATCH) || name.starts_with(removal::ASIDE)));
    removal::discard(&left);
}

fn entries(dir: &Path, is_left: &dyn Fn(&str) -> bool) -> Vec<PathBuf> {
    match fs::read_dir(dir) {
        Ok(entries) => {
            let left = entries.flatten().filter(|entry| is_left(&entry.file_name().to_string_lossy()));
            left.map(|entry| entry.path()).collect()
        }
        Err(error) => {
            tracing::warn!(dir = %dir.display(), %error, "leftovers of builds cannot be looked for");
            Vec::new()
        }
    }
}

/// Finds out which environment a snapshot needs.
pub struct Planner {
    environments: PathBuf,
    python: Python,
    index: Vec<String>,
    package: Arc<Package>,
    sandboxes: Sandboxes,
    /// The user of foreign code.
    source_uid: u32,
    known: HashMap<String, Interpreter>,
}

impl Planner {
    /// A planner for this node.
    pub fn new(settings: &Settings, package: Arc<Package>, sandboxes: Sandboxes) -> Self {
        Self {
            environments: settings.cache_dir.join("environments"),
            python: settings.python.clone(),
            index: uv::index(&uv::settings(&settings.python, std::env::vars())),
            package,
            sandboxes,
            source_uid: settings.source_uid,
            known: HashMap::new(),
        }
    }

    /// Answers jobs, by `answer`, until that returns `false`: no receiver is left.
    pub fn run(mut self, jobs: &Receiver<PlanJob>, answer: impl Fn(PlanJob, Result<Plan, Failure>) -> bool) {
        for job in jobs {
            let plan = self.plan(&job);
            if !answer(job, plan) {
                return;
            }
        }
    }

    fn plan(&mut self, job: &PlanJob) -> Result<Plan, Failure> {
        let interpreter = self.interpreter(job)?;
        self.compile(job, &interpreter)?;
        let (requirements, overrides) = match job.interpreter {
            Some(_) => (None, None),
            None => {
                (text(&job.dir, "requirements.txt")?.filter(|text| requires(text)), text(&job.dir, "overrides.txt")?)
            }
        };
        let overrides = overrides.filter(|_| requirements.is_some());
        // A manifest can ask for more than the node does, never for less.
        let require_hashes = job.require_hashes || self.python.require_hashes;
        if require_hashes && let Some(lacking) = requirements.as_deref().and_then(hashes::lacking) {
            return Err(Failure::permanent(lacking));
        }
        let given = || [&requirements, &overrides].into_iter().flatten();
        let is_alone = given().all(|text| names_packages_alone(text));
        // A line that uv cannot read refers to nothing: uv says so at once, in a place for wheels.
        let own_files = !is_alone && given().all(|text| statements(text).all(|statement| statement.is_ok()));
        let inputs = Inputs {
            interpreter: &interpreter.parts(),
            requirements: requirements.as_deref(),
            overrides: overrides.as_deref(),
            directory: (!is_alone).then_some(&job.snapshot),
            index: &self.index,
            require_hashes,
        };
        let key = inputs.key().map_err(|error| Failure::passing(error.to_string()))?;
        if record::read(&self.environments, &key).is_some() {
            return Ok(Plan::Ready(key));
        }
        if let Some(python) = &job.interpreter {
            return self.existing(key, python.into(), interpreter);
        }
        let (model, snapshot) = (job.model.clone(), job.dir.clone());
        Ok(Plan::Build(Box::new(BuildPlan {
            key,
            model,
            snapshot,
            interpreter,
            requirements,
            overrides,
            own_files,
            require_hashes,
        })))
    }

    fn interpreter(&mut self, job: &PlanJob) -> Result<Interpreter, Failure> {
        let name = job.interpreter.as_ref().unwrap_or(&job.python);
        if let Some(known) = self.known.get(name).filter(|known| known.is_current()) {
            return Ok(known.clone());
        }
        let found = match &job.interpreter {
            Some(path) => interpreter::existing(Path::new(path), |question| {
                let Question { argv, shown: dirs } = question;
                let binds = dirs.iter().map(|dir| sandboxed_command::shown(dir, false)).collect();
                let (uid, tmp_bytes) = (self.source_uid, interpreter::TMP_BYTES);
                let command =
                    SandboxedCommand { argv, binds, env: Vec::new(), cwd: "/", uid, network: false, tmp_bytes };
                self.sandboxes.run("interpreter", command, interpreter::PATIENCE, &mut |_| (), || Ok(()))
            }),
            None => {
                let version: PythonVersion = job.python.parse().map_err(|error| {
                    Failure::permanent(format!("`python` in [runtime] of omni.toml, `{}`: {error}", job.python))
                })?;
                self.own(version)
            }
        };
        let found = found.map_err(|error| Failure::permanent(omni_log::chain(&error)))?;
        // A single interpreter has any number of names.
        if self.known.len() >= KNOWN {
            self.known.clear();
        }
        self.known.insert(name.clone(), found.clone());
        Ok(found)
    }

    fn own(&self, version: PythonVersion) -> Result<Interpreter, InterpreterError> {
        find_interpreter(version, &self.python.interpreters, &std::env::var_os("PATH").unwrap_or_default())
    }

    /// Bytecode of the package omni is root's, and for all models: only the node's own interpreters make it. Where none is
    /// like the one that a manifest names, engines compile the package as they start, each for itself.
    fn compile(&self, job: &PlanJob, interpreter: &Interpreter) -> Result<(), Failure> {
        let like_it = || self.own(interpreter.release()?).ok().filter(|own| own.tag == interpreter.tag);
        let compiler = if job.interpreter.is_some() { like_it() } else { Some(interpreter.clone()) };
        let compiled = compiler.map_or(Ok(()), |own| self.package.compile(&own));
        compiled.map_err(|error| Failure::passing(omni_log::chain(&error)))
    }

    /// Records an existing environment, not made by this node: `Start` reads records only.
    fn existing(&self, key: EnvironmentKey, python: PathBuf, interpreter: Interpreter) -> Result<Plan, Failure> {
        let mounts = interpreter.mounts();
        let record = Record {
            python,
            mounts,
            interpreter,
            requirements: None,
            overrides: None,
            packages: Vec::new(),
            builder: None,
            built_unix: 0,
        };
        record::write(&self.environments, &key, &record)
            .map_err(|error| Failure::passing(format!("the node cannot record the environment: {error}")))?;
        Ok(Plan::Ready(key))
    }
}

impl Builder {
    /// A builder for this node.
    pub fn new(settings: &Settings, sandboxes: Sandboxes) -> Self {
        let uv = find_uv(&settings.python, settings.program_dir.as_deref());
        Self {
            cache_dir: settings.cache_dir.clone(),
            environments: settings.cache_dir.join("environments"),
            uv_version: uv.as_deref().and_then(version),
            uv,
            python: settings.python.clone(),
            settings: uv::settings(&settings.python, std::env::vars()),
            source_uid: settings.source_uid,
            sandboxes,
        }
    }
}

/// Says in the log how a build ended.
pub fn log_end(plan: &BuildPlan, ended: &Ended) {
    let (environment, model) = (&plan.key, &plan.model);
    let (message, permanent) = match ended {
        Ended::Built => return tracing::info!(%environment, model, "the environment is built"),
        Ended::NeedsSource => return tracing::info!(%environment, model, "the environment must be built from source"),
        Ended::Cancelled => return tracing::info!(%environment, model, "the build was ended: no model waits for it"),
        Ended::TimedOut(message) => (message, false),
        Ended::Failed(Failure { message, permanent }) => (message, *permanent),
    };
    let (message_id, reason) = (Kind::EnvironmentFailed.id(), Foreign(message).to_string());
    tracing::warn!(message_id, %environment, model, permanent, reason, "the environment cannot be built");
}

fn text(dir: &Path, name: &str) -> Result<Option<String>, Failure> {
    let path = dir.join(name);
    match path.symlink_metadata() {
        Err(_) => return Ok(None),
        Ok(found) if !found.is_file() => {
            return Err(Failure::permanent(format!("`{name}` must be a file, not a link")));
        }
        Ok(found) if found.len() > REQUIREMENTS_MAX => {
            return Err(Failure::permanent(format!("`{name}` has more than {REQUIREMENTS_MAX} bytes: shorten it")));
        }
        Ok(_) => {}
    }
    let bytes = fs::read(&path).map_err(|error| Failure::passing(format!("the node cannot read `{name}`: {error}")))?;
    String::from_utf8(bytes).map(Some).map_err(|_| Failure::permanent(format!("`{name}` is not UTF-8 text")))
}
