//! Environments: which Python, with which packages, a model runs in.
//!
//! Two threads: [`Planner`] finds out quickly which environment a snapshot needs and whether it is there; the builder
//! makes one at a time. Both take bounded queues of jobs and answer with events. What always holds: an environment with
//! a record is complete, root's, and never changes; equal inputs have one environment.

mod build;
mod hashes;
mod interpreter;
mod key;
mod package;
mod record;
mod sandboxed;
mod tree;
mod verdict;

pub(super) use build::Plan as BuildPlan;
pub(super) use interpreter::find as find_interpreter;
pub(super) use package::{ENGINE, INSIDE, Package};
pub(super) use record::Record;
pub(super) use sandboxed::{GROUPS, Sandboxes};

use super::Settings;
use super::command;
use super::event::{Event, Events};
use build::Builder;
use interpreter::{Interpreter, InterpreterError, Question};
use key::Inputs;
use nix::unistd::{Gid, Uid, chown};
use omni_config::PythonVersion;
use omni_config::node::{BUILDER_UID, Python};
use omni_ipc::id::{EnvironmentKey, SnapshotDigest};
use omni_log::Kind;
use sandboxed::Errand;
use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::Receiver;

/// The largest `requirements.txt` or `overrides.txt`, in bytes.
const REQUIREMENTS_MAX: u64 = 256 * 1024;
/// Variables of the launcher's own environment that a build gets, beside those that begin with `UV_`.
const PASSED_ON: [&str; 10] = [
    "ALL_PROXY",
    "HTTPS_PROXY",
    "HTTP_PROXY",
    "NO_PROXY",
    "SSL_CERT_DIR",
    "SSL_CERT_FILE",
    "all_proxy",
    "https_proxy",
    "http_proxy",
    "no_proxy",
];
/// Of those that begin with `UV_`: what says where packages come from and how they are fetched.
const UV_PASSED_ON: [&str; 11] = [
    "UV_DEFAULT_INDEX",
    "UV_EXTRA_INDEX_URL",
    "UV_FIND_LINKS",
    "UV_HTTP_RETRIES",
    "UV_HTTP_TIMEOUT",
    "UV_INDEX",
    "UV_INDEX_STRATEGY",
    "UV_INDEX_URL",
    "UV_INSECURE_HOST",
    "UV_NATIVE_TLS",
    "UV_SYSTEM_CERTS",
];

/// An environment that cannot be had.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Failure {
    /// For the model's author: the builder's own words, where it is the builder that failed.
    pub(super) message: String,
    /// Trying again leads to the same.
    pub(super) permanent: bool,
}

impl Failure {
    fn permanent(message: impl Into<String>) -> Self {
        Self { message: message.into(), permanent: true }
    }

    fn passing(message: impl Into<String>) -> Self {
        Self { message: message.into(), permanent: false }
    }
}

/// What a snapshot needs.
#[derive(Debug)]
pub(super) enum Plan {
    /// It is there.
    Ready(EnvironmentKey),
    /// It must be built.
    Build(Box<BuildPlan>),
}

/// A question to the planner.
#[derive(Debug)]
pub(super) struct PlanJob {
    pub(super) model: String,
    pub(super) snapshot: SnapshotDigest,
    pub(super) dir: PathBuf,
    pub(super) python: String,
    pub(super) interpreter: Option<String>,
    /// The manifest wants a hash for each package.
    pub(super) require_hashes: bool,
}

/// The environments on disk.
pub(super) struct Environments {
    dir: PathBuf,
}

impl Environments {
    /// Makes the folders below the cache directory and removes what a build did not finish.
    pub(super) fn open(cache_dir: &Path) -> io::Result<Self> {
        let dir = cache_dir.join("environments");
        fs::create_dir_all(&dir)?;
        let cache = cache_dir.join("uv");
        fs::create_dir_all(&cache)?;
        chown(&cache, Some(Uid::from_raw(BUILDER_UID)), Some(Gid::from_raw(BUILDER_UID)))?;
        for entry in fs::read_dir(&dir)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let unfinished = EnvironmentKey::parse(&name).is_ok_and(|key| !record::path(&dir, &key).exists());
            if unfinished {
                fs::remove_dir_all(entry.path())?;
            }
        }
        for entry in fs::read_dir(cache_dir)? {
            let entry = entry?;
            if entry.file_name().to_string_lossy().starts_with(build::SCRATCH) {
                fs::remove_dir_all(entry.path())?;
            }
        }
        Ok(Self { dir })
    }

    /// How to use an environment; `None` when it is not there.
    pub(super) fn record(&self, key: &EnvironmentKey) -> Option<Record> {
        record::read(&self.dir, key)
    }
}

/// Finds out which environment a snapshot needs.
pub(super) struct Planner {
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
    pub(super) fn new(settings: &Settings, package: Arc<Package>, sandboxes: Sandboxes) -> Self {
        Self {
            environments: settings.cache_dir.join("environments"),
            python: settings.config.python.clone(),
            index: index(&uv_settings(&settings.config.python, std::env::vars())),
            package,
            sandboxes,
            source_uid: settings.source_uid(),
            known: HashMap::new(),
        }
    }

    /// Answers jobs until the main loop is gone.
    pub(super) fn run(mut self, jobs: &Receiver<PlanJob>, events: &Events) {
        for job in jobs {
            let plan = self.plan(&job);
            if !events.tell(Event::Planned { snapshot: job.snapshot, plan }) {
                return;
            }
        }
    }

    fn plan(&mut self, job: &PlanJob) -> Result<Plan, Failure> {
        let interpreter = self.interpreter(job)?;
        self.compile(job, &interpreter)?;
        let (requirements, overrides) = match job.interpreter {
            Some(_) => (None, None),
            None => (
                text(&job.dir, "requirements.txt")?.filter(|text| key::requires(text)),
                text(&job.dir, "overrides.txt")?,
            ),
        };
        let overrides = overrides.filter(|_| requirements.is_some());
        // A manifest can ask for more than the node does, never for less.
        let require_hashes = job.require_hashes || self.python.require_hashes;
        if require_hashes && let Some(lacking) = requirements.as_deref().and_then(hashes::lacking) {
            return Err(Failure::permanent(lacking));
        }
        let own_files = [&requirements, &overrides].into_iter().flatten().any(|text| key::refers_to_files(text));
        let inputs = Inputs {
            interpreter: &interpreter.parts(),
            requirements: requirements.as_deref(),
            overrides: overrides.as_deref(),
            directory: own_files.then_some(&job.snapshot),
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
                let binds = dirs.iter().map(|dir| sandboxed::shown(dir, false)).collect();
                let (uid, tmp_bytes) = (self.source_uid, interpreter::TMP_BYTES);
                let errand = Errand { argv, binds, env: Vec::new(), cwd: "/", uid, network: false, tmp_bytes };
                self.sandboxes.run("interpreter", errand, interpreter::PATIENCE, &mut |_| ())
            }),
            None => {
                let version: PythonVersion = job.python.parse().map_err(|error| {
                    Failure::permanent(format!("`python` in [runtime] of omni.toml, `{}`: {error}", job.python))
                })?;
                self.own(version)
            }
        };
        let found = found.map_err(|error| Failure::permanent(omni_log::chain(&error)))?;
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

    /// An environment that somebody else made has a record too: `Start` looks nowhere else.
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

/// Builds environments, one after the other, until the main loop is gone.
pub(super) fn build_all(settings: &Settings, sandboxes: Sandboxes, jobs: &Receiver<Box<BuildPlan>>, events: &Events) {
    let uv = find_uv(&settings.config.python, settings.program_dir.as_deref());
    let builder = Builder {
        cache_dir: settings.cache_dir.clone(),
        environments: settings.cache_dir.join("environments"),
        uv_version: uv.as_deref().and_then(version),
        uv,
        python: settings.config.python.clone(),
        settings: uv_settings(&settings.config.python, std::env::vars()),
        source_uid: settings.source_uid(),
        sandboxes,
    };
    for plan in jobs {
        let key = plan.key.clone();
        tracing::info!(environment = %key, model = plan.model, "building an environment");
        let result = builder.build(&plan, &mut |line| {
            // A main loop that is gone is noticed below.
            let _ = events.tell(Event::BuildLine { key: key.clone(), line: line.to_owned() });
        });
        match &result {
            Ok(()) => tracing::info!(environment = %key, model = plan.model, "the environment is built"),
            Err(Failure { message, permanent }) => {
                let (message_id, model) = (Kind::EnvironmentFailed.id(), &plan.model);
                tracing::warn!(
                    message_id, environment = %key, model, permanent, reason = message, "the environment cannot be built"
                );
            }
        }
        if !events.tell(Event::Built { key, result }) {
            return;
        }
    }
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

/// The node's own uv: named, beside this program, or in PATH.
pub(super) fn find_uv(python: &Python, beside: Option<&Path>) -> Option<PathBuf> {
    let search = std::env::var_os("PATH").unwrap_or_default();
    let places = beside.map(Path::to_owned).into_iter().chain(std::env::split_paths(&search)).map(|dir| dir.join("uv"));
    let candidate = python.uv.clone().or_else(|| places.into_iter().find(|path| path.is_file()))?;
    fs::canonicalize(candidate).ok()
}

/// What the program calls itself, "uv 0.13.8".
pub(super) fn version(program: &Path) -> Option<String> {
    let mut ask = std::process::Command::new(program);
    ask.arg("--version").env_clear().current_dir("/");
    let finished = command::run(ask, b"", std::time::Duration::from_secs(10), |_| Ok(()), |_| ()).ok()?;
    finished.tail.lines().next().map(str::to_owned)
}

/// What uv is told by its environment. The node's configuration wins over the launcher's own.
fn uv_settings(python: &Python, own: impl Iterator<Item = (String, String)>) -> Vec<(String, String)> {
    let passed_on = |name: &str| PASSED_ON.contains(&name) || UV_PASSED_ON.contains(&name);
    let mut settings: Vec<(String, String)> = own.filter(|(name, _)| passed_on(name)).collect();
    settings.sort_unstable();
    let mut set = |names: &[&str], value: String| {
        if !value.is_empty() {
            settings.retain(|(name, _)| !names.contains(&name.as_str()));
            settings.push((names[0].to_owned(), value));
        }
    };
    set(&["UV_DEFAULT_INDEX", "UV_INDEX_URL"], python.index_url.clone().unwrap_or_default());
    set(&["UV_INDEX", "UV_EXTRA_INDEX_URL"], python.extra_index_url.join(" "));
    set(&["UV_FIND_LINKS"], python.find_links.join(","));
    settings.push(("UV_PYTHON_DOWNLOADS".to_owned(), "never".to_owned()));
    settings
}

/// Of the settings, those that decide what is installed.
fn index(settings: &[(String, String)]) -> Vec<String> {
    let decides = |name: &str| name.contains("INDEX") || name == "UV_FIND_LINKS";
    settings.iter().filter(|(name, _)| decides(name)).map(|(name, value)| format!("{name}={value}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_fetching_needs_is_passed_on_and_the_configuration_wins() {
        let own = [
            "HOME=/root",
            "AWS_SECRET_ACCESS_KEY=x",
            "UV_PUBLISH_TOKEN=x",
            "HTTPS_PROXY=p",
            "UV_INDEX_URL=own",
            "UV_HTTP_TIMEOUT=9",
        ];
        let own = || {
            own.iter().filter_map(|text| text.split_once('=')).map(|(name, value)| (name.to_owned(), value.to_owned()))
        };
        let shown = |python: &Python| -> Vec<String> {
            uv_settings(python, own()).into_iter().map(|(name, value)| format!("{name}={value}")).collect()
        };
        let plain = Python::default();
        assert_eq!(
            shown(&plain),
            ["HTTPS_PROXY=p", "UV_HTTP_TIMEOUT=9", "UV_INDEX_URL=own", "UV_PYTHON_DOWNLOADS=never"]
        );
        assert_eq!(index(&uv_settings(&plain, own())), ["UV_INDEX_URL=own"]);
        let configured = Python {
            index_url: Some("https://mirror".into()),
            extra_index_url: vec!["https://a".into(), "https://b".into()],
            find_links: vec!["/wheels".into()],
            ..Python::default()
        };
        assert_eq!(
            index(&uv_settings(&configured, own())),
            ["UV_DEFAULT_INDEX=https://mirror", "UV_INDEX=https://a https://b", "UV_FIND_LINKS=/wheels"]
        );
    }
}
