//! Starts one instance: checks what the scheduler asks, makes the control groups, runs `omni-worker`.
//!
//! [`check`] is pure and runs in the main loop; [`Start::run`] takes milliseconds and runs in a thread of its own. What it
//! began and did not finish is removed by [`super::reap`], which needs the instance's id only.

use super::gpu::{GpuError, Gpus, Grant};
use super::records::{InstanceRecord, RecordedWorker};
use super::running::Running;
use super::runtime_dir::RuntimeDir;
use super::sandbox_paths::{CACHE, MODEL, NATIVE};
use super::settings::Settings;
use super::variables;
use nix::unistd::Pid;
use omni_cgroup::{CgroupPaths, Driver, GroupName, Limits, Part};
use omni_config::{GpuUuid, ModelName, NodeConfig};
use omni_engine_protocol::control::{Boot, EngineBoot};
use omni_environment::{ENGINE, INSIDE, Package, Record};
use omni_node_protocol::launcher::{EngineSpec, GpuMode, StartSpec, WeightsPlace};
use omni_process::SealedProgram;
use omni_process::pidfd;
use omni_sandbox::WEIGHTS;
use omni_sandbox::{Bind, Cache, SandboxSpec, Weights};
use omni_weights::Digest;
use omni_worker_spec::{Gpu, InstanceSpec, WorkerSpec, ZygoteSocket};
use std::io::{self, Read, Write};
use std::path::{Component, Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a worker may take until it listens. It does so before it makes the sandbox.
const LISTEN_WITHIN: Duration = Duration::from_secs(10);
/// Numbers above it are device files of no card (`nvidia-modeset` and `nvidiactl`).
const MINOR_MAX: u32 = 253;
/// Modules that a zygote imports.
const PRELOAD: usize = 256;
/// Arguments of a server's command, and bytes of one.
const ARGUMENTS: usize = 256;
const ARGUMENT: usize = 32 << 10;

/// Refused request: it asks for more than the node gives.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refused {
    #[error("`{0}` is not a model's name")]
    Name(String),
    #[error("{what} of {value} is not within {least} to {most}")]
    Bound { what: &'static str, value: u64, least: u64, most: u64 },
    #[error("`{0}` is not a card's uuid")]
    Card(String),
    #[error(
        "a model with a GPU has no zygote: what it preloads would be told of the card before its instance is there"
    )]
    GpuZygote,
    #[error("`{0}` is not an entry point or a module")]
    EntryPoint(String),
    #[error(
        "the server's command has from 1 to {ARGUMENTS} arguments of at most {ARGUMENT} bytes, without zero bytes: correct \
         `command` in [runtime] of its omni.toml"
    )]
    Command,
    #[error("`{0}` is not a name of an environment variable, or its value has a zero byte or is too long")]
    Env(String),
    #[error(
        "the model may not use the host's network: list it as `host-access` in [network] of the node's configuration, or \
         remove `access` in [network] of its omni.toml"
    )]
    HostNetwork,
    #[error(
        "the model may not have its weights in `{0}`, which is in no folder that the launcher knows as one for weights: list \
         one under `folders` in [weights] of the node's configuration, or correct `source` in [weights] of its omni.toml"
    )]
    Weights(String),
}

/// The listed folder that a path is in, and where in it. A scheduler can say any path: one that is not plain is in none.
pub(super) fn granted(path: &Path, config: &NodeConfig) -> Option<Weights> {
    let plain = path.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
    let (folder, below) = config.weights.granted(path).filter(|_| plain)?;
    Some(Weights { folder: folder.to_owned(), below: below.to_owned() })
}

/// Message about weights in a folder that the launcher's configuration does not list.
pub(super) fn not_granted(path: &Path) -> String {
    Refused::Weights(path.display().to_string()).to_string()
}

/// Checks every part of a request that can be checked by looking at it.
pub(super) fn check(spec: &StartSpec, config: &NodeConfig) -> Result<ModelName, Refused> {
    let name: ModelName = spec.model.parse().map_err(|_| Refused::Name(spec.model.chars().take(80).collect()))?;
    let mib = 1_u64 << 20;
    let bounds = [
        ("memory", spec.memory_bytes, 4 * mib, 1 << 50),
        ("processor time in thousandths", spec.cpu_millis.into(), 10, 10_000_000),
        ("processes", spec.pids.into(), 1, 1 << 22),
        ("/tmp", spec.tmp_bytes, 0, 1 << 50),
        ("the cache directory", spec.cache_bytes, 0, 1 << 50),
        ("concurrency", spec.concurrency.into(), 1, 1 << 16),
        ("log lines per second", spec.log_lines_per_second.into(), 1, 1_000_000),
        ("the note's length", spec.note.len() as u64, 0, 64 << 10),
    ];
    let gpu = spec.gpu.iter().flat_map(|gpu| {
        [
            ("GPU memory", gpu.limit_bytes, mib, 1 << 50),
            ("the number of a card's device file", gpu.minor.into(), 0, MINOR_MAX.into()),
        ]
    });
    let zygote = spec.zygote.iter().flat_map(|zygote| {
        [
            ("the zygote's memory", zygote.memory_bytes, 4 * mib, 1 << 50),
            ("the time of a start in milliseconds", zygote.startup_ms, 1, 1 << 40),
        ]
    });
    if let Some((what, value, least, most)) =
        bounds.into_iter().chain(gpu).chain(zygote).find(|(_, value, least, most)| !(least..=most).contains(&value))
    {
        return Err(Refused::Bound { what, value, least, most });
    }
    if let Some(gpu) = spec.gpu.as_ref().filter(|gpu| gpu.uuid.parse::<GpuUuid>().is_err()) {
        return Err(Refused::Card(gpu.uuid.chars().take(80).collect()));
    }
    let preload = spec.zygote.iter().flat_map(|zygote| &zygote.preload);
    if preload.clone().count() > PRELOAD {
        let value = preload.count() as u64;
        return Err(Refused::Bound { what: "modules to preload", value, least: 0, most: PRELOAD as u64 });
    }
    if spec.zygote.is_some() && spec.gpu.is_some() {
        return Err(Refused::GpuZygote);
    }
    let names = match &spec.engine {
        EngineSpec::Python { environment: _, module, function } => vec![module, function],
        EngineSpec::OpenAi { environment: _, command } => {
            check_command(command)?;
            Vec::new()
        }
        EngineSpec::Native { environment: _ } => Vec::new(),
    };
    for text in names.into_iter().chain(preload) {
        let identifier = |part: &str| !part.is_empty() && part.chars().all(|c| c.is_alphanumeric() || c == '_');
        if text.len() > 200 || !text.split('.').all(identifier) {
            return Err(Refused::EntryPoint(text.chars().take(80).collect()));
        }
    }
    let is_variable = |name: &str| {
        let begins = name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_');
        begins && name.len() <= 256 && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    };
    let bad =
        spec.env.iter().find(|(name, value)| !is_variable(name) || value.contains('\0') || value.len() > 32 << 10);
    if let Some((name, _)) = bad {
        return Err(Refused::Env(name.chars().take(80).collect()));
    }
    if let Some(WeightsPlace::Folder { path }) = &spec.weights
        && granted(path, config).is_none()
    {
        return Err(Refused::Weights(path.to_string_lossy().chars().take(80).collect()));
    }
    if spec.host_network && !config.allows_host_access(&name) {
        return Err(Refused::HostNetwork);
    }
    Ok(name)
}

/// Checks the command of a server, which runs inside the sandbox.
fn check_command(command: &[String]) -> Result<(), Refused> {
    let fits = |argument: &String| argument.len() <= ARGUMENT && !argument.contains('\0');
    let few = (1..=ARGUMENTS).contains(&command.len());
    (few && command.iter().all(fits)).then_some(()).ok_or(Refused::Command)
}

/// Resources of the node that every start uses.
#[derive(Clone)]
pub(super) struct StartContext {
    pub(super) settings: Arc<Settings>,
    pub(super) driver: Arc<dyn Driver>,
    pub(super) worker: Arc<SealedProgram>,
    pub(super) package: Arc<Package>,
    pub(super) gpus: Arc<Gpus>,
    /// Folder of the instances; of the zygotes for the start of one.
    pub(super) runtime_dir: RuntimeDir,
}

/// Checked request with all that its start needs.
#[derive(Clone)]
pub(super) struct Start {
    pub(super) spec: StartSpec,
    pub(super) name: ModelName,
    pub(super) uid: u32,
    pub(super) snapshot: PathBuf,
    pub(super) weights: Option<Weights>,
    /// The set that its weights are, if they are fetched ones.
    pub(super) set: Option<Digest>,
    pub(super) environment: Record,
    pub(super) context: StartContext,
    /// The socket of the zygote that it comes from.
    pub(super) zygote: Option<PathBuf>,
}

/// The step of a start that failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum StartError {
    #[error("cannot make the instance's control groups")]
    Cgroup(#[from] omni_cgroup::Error),
    #[error("cannot give the instance its GPU")]
    Gpu(#[from] GpuError),
    #[error("cannot write the worker's specification")]
    Spec(#[from] serde_json::Error),
    #[error("cannot start omni-worker")]
    Spawn(#[source] io::Error),
    #[error("cannot record the instance")]
    Record(#[source] io::Error),
    #[error("omni-worker did not listen within {LISTEN_WITHIN:?}")]
    Silent,
    #[error("omni-worker ended before it listened; its own words are in the node's log")]
    Ended,
}

impl Start {
    /// Runs the worker and waits until it listens.
    pub(super) fn run(&self) -> Result<Running, StartError> {
        let id = self.spec.instance.as_str();
        let control = self.context.runtime_dir.gpu_socket(&self.spec.instance);
        let grant = self.spec.gpu.as_ref().map(|gpu| self.context.gpus.grant(gpu, control)).transpose()?;
        let worker = self.context.driver.create(&GroupName::new(id, Part::Worker)?, &Limits::default())?;
        let cgroup = self.context.driver.create(&GroupName::new(id, Part::Model)?, &self.limits())?;
        let spec = serde_json::to_vec(&WorkerSpec::Instance(Box::new(self.instance(cgroup, grant))))?;

        let mut command = self.context.worker.command();
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(StartError::Spawn)?;
        let begun = self.begin(&mut child, &spec, &worker);
        if begun.is_err() {
            // Neither fails but for a process that has ended, and then nothing is left to do.
            let _ = child.kill().and_then(|()| child.wait());
        }
        begun
    }

    /// Limits over all processes of the instance.
    pub(super) fn limits(&self) -> Limits {
        Limits {
            memory_bytes: Some(group_memory(&self.spec)),
            pids: Some(self.spec.pids),
            cpu_millis: Some(self.spec.cpu_millis),
        }
    }

    /// Gives a new worker its specification and waits until it listens.
    fn begin(&self, child: &mut Child, spec: &[u8], group: &CgroupPaths) -> Result<Running, StartError> {
        let pid = Pid::from_raw(child.id().cast_signed());
        let pidfd = pidfd::open(pid).map_err(|errno| StartError::Spawn(errno.into()))?;
        // Only a worker with a record gets its specification; one without ends at the end of its input.
        let worker = RecordedWorker::of(pid).map_err(StartError::Record)?;
        let (model, snapshot, weights) = (self.spec.model.clone(), self.spec.snapshot.clone(), self.set.clone());
        let record = InstanceRecord { worker, uid: self.uid, model, snapshot, weights };
        self.context.runtime_dir.record(&self.spec.instance, &record).map_err(StartError::Record)?;
        child.stdin.take().map_or(Ok(()), |mut stdin| stdin.write_all(spec)).map_err(StartError::Spawn)?;
        // The kernel moves a process only after a grace period, of milliseconds: meanwhile the worker works. What it
        // clones joins the model's own group by itself, wherever the worker is.
        self.context.driver.enter(group, pid.as_raw())?;
        let mut stdout = child.stdout.take().ok_or(StartError::Ended)?;
        let deadline = Instant::now() + LISTEN_WITHIN;
        if !pidfd::readable_before(&stdout, deadline).map_err(|errno| StartError::Spawn(errno.into()))? {
            return Err(StartError::Silent);
        }
        let mut said = [0; 16];
        let read = stdout.read(&mut said).map_err(StartError::Spawn)?;
        if said.get(..read) != Some(b"listening\n") {
            return Err(StartError::Ended);
        }
        Ok(Running { pid, pidfd })
    }

    fn instance(&self, cgroup: CgroupPaths, grant: Option<Grant>) -> InstanceSpec {
        let spec = &self.spec;
        let control = self.context.runtime_dir.gpu_socket(&spec.instance);
        InstanceSpec {
            instance: spec.instance.clone(),
            model: spec.model.clone(),
            snapshot: spec.snapshot.clone(),
            note: spec.note.clone(),
            socket: self.context.runtime_dir.socket(&spec.instance),
            exit_file: self.context.runtime_dir.exit_file(&spec.instance),
            peer_uid: self.context.settings.scheduler_uid,
            cgroup,
            memory_bytes: spec.memory_bytes,
            cpu_millis: spec.cpu_millis,
            log_lines_per_second: spec.log_lines_per_second,
            zygote: self
                .zygote
                .clone()
                .zip(spec.zygote.as_ref())
                .map(|(path, zygote)| ZygoteSocket { path, patience_ms: zygote.startup_ms / 2 }),
            gpu: spec.gpu.clone().map(|spec| Gpu { spec, control }),
            sandbox: self.sandbox(grant),
            boot: Boot {
                model: spec.model.clone(),
                instance: spec.instance.to_string(),
                engine: boot(spec),
                model_dir: MODEL.to_owned(),
                cache_dir: CACHE.to_owned(),
                weights_dir: self.weights.as_ref().map(|_| WEIGHTS.to_owned()),
                // The one that CUDA_VISIBLE_DEVICES names.
                device: if spec.gpu.is_some() { "cuda:0" } else { "cpu" }.to_owned(),
                concurrency: spec.concurrency,
                batches: spec.batches,
            },
        }
    }

    pub(super) fn sandbox(&self, grant: Option<Grant>) -> SandboxSpec {
        let bind = |source: PathBuf, target: PathBuf| Bind { source, target, writable: false };
        let mut binds: Vec<Bind> = self.environment.mounts.iter().map(|dir| bind(dir.clone(), dir.clone())).collect();
        binds.push(bind(self.context.package.dir().to_owned(), INSIDE.into()));
        binds.push(bind(self.snapshot.clone(), MODEL.into()));
        if matches!(self.spec.engine, EngineSpec::Native { .. }) {
            binds.push(bind(self.context.settings.native_engine(), NATIVE.into()));
        }
        let devices = grant.map_or_else(Vec::new, |grant| {
            binds.extend(grant.binds);
            grant.devices
        });
        let image = self.context.settings.caches().join(format!("{}.img", self.name.as_file_name()));
        SandboxSpec {
            hostname: hostname(&self.name),
            uid: self.uid,
            gid: self.uid,
            binds,
            devices,
            weights: self.weights.clone(),
            cache: Some(Cache { image, bytes: self.spec.cache_bytes }).filter(|cache| cache.bytes > 0),
            tmp_bytes: self.spec.tmp_bytes,
            host_network: self.spec.host_network,
            env: variables::of(&self.spec, &self.environment.python),
            argv: match &self.spec.engine {
                // The same program for both: a server with the OpenAI API is its child.
                EngineSpec::Python { .. } | EngineSpec::OpenAi { .. } => {
                    vec![self.environment.python.display().to_string(), ENGINE.to_owned()]
                }
                EngineSpec::Native { .. } => vec![NATIVE.to_owned(), "instance".to_owned()],
            },
            cwd: MODEL.into(),
        }
    }
}

/// Memory limit of the instance's group. Managed memory that waits in host memory may be charged to it, which depends
/// on the driver, and what a sleeping server keeps there is; the memory size shown to the model is without it.
fn group_memory(spec: &StartSpec) -> u64 {
    match &spec.gpu {
        Some(gpu) => match gpu.mode {
            GpuMode::Unified | GpuMode::Sleep => spec.memory_bytes.saturating_add(gpu.limit_bytes),
            GpuMode::Device => spec.memory_bytes,
        },
        None => spec.memory_bytes,
    }
}

/// The last part of the model's name, as far as it is a host's name.
fn hostname(name: &ModelName) -> String {
    let last = name.as_str().rsplit('/').next().unwrap_or_default();
    let host: String = last.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '-').take(63).collect();
    let host = host.trim_matches('-');
    if host.is_empty() { "model".to_owned() } else { host.to_owned() }
}

/// Program of the model for the first message to its engine.
fn boot(spec: &StartSpec) -> EngineBoot {
    match &spec.engine {
        EngineSpec::Python { environment: _, module, function } => {
            EngineBoot::Python { module: module.clone(), function: function.clone() }
        }
        EngineSpec::OpenAi { environment: _, command } => EngineBoot::OpenAi {
            command: command.clone(),
            sleeps: spec.gpu.as_ref().is_some_and(|gpu| gpu.mode == GpuMode::Sleep),
        },
        EngineSpec::Native { environment: _ } => EngineBoot::Native,
    }
}
