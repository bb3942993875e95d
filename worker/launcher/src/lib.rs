//! `omni-launcher`: the one process of a node that is root for as long as the node runs.
//!
//! A process beside it watches and copies the models folder ([`watch`](mod@watch)); it makes environments
//! (`omni-environment`), starts a worker for each instance ([`start`]), keeps instances that compute all the time to
//! few processors ([`throttle`]) and removes all traces of ended ones ([`reap`]). The scheduler asks for starts and
//! ends over a socket ([`link`]); the main loop ([`main_loop`]) holds the state, threads do slow work and answer with events
//! ([`event`]).
//!
//! Invariants: it has no network and parses nothing from one; every name, digest and number from the scheduler is
//! checked before it is used; it can be killed at any moment, and the next one finds every instance by its record
//! ([`instances`]) and removes everything without one.
#![forbid(unsafe_code)]

mod caches;
mod catalog;
mod event;
mod folders;
mod gpu;
mod heartbeat;
mod instances;
pub mod keeper;
mod link;
mod links;
mod lock;
pub mod machine;
mod main_loop;
mod open_files;
mod reap;
mod settings;
mod start;
mod throttle;
mod uids;
mod variables;
mod watch;
mod zygotes;

use event::Event;
use gpu::Gpus;
use instances::{InstanceRecord, Instances, Traces};
use link::Link;
use links::Links;
use nix::errno::Errno;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::stat::{Mode, umask};
use main_loop::{Builds, Node, State, Unflushed};
use omni_cgroup::Driver;
use omni_config::node::MISCONFIGURED;
use omni_dir::way::Changeable;
use omni_environment::{Builder, Environments, Package, Planner, Sandboxes};
use omni_node_protocol::id::InstanceId;
use omni_node_protocol::launcher::FromLauncher;
use omni_process::SealedProgram;
use omni_snapshot::{Limits, SnapshotError, Store};
use sd_notify::NotifyState;
pub use settings::Settings;
use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread;
use throttle::disks::Disks;
use uids::UidSlots;
use watch::Watch;
pub use watch::{WatchError, watch};
use zygotes::{ZygoteRecord, Zygotes};

/// Questions for the planner that wait.
const JOBS: usize = 256;

/// The launcher cannot work.
#[derive(Debug, thiserror::Error)]
pub enum LauncherError {
    /// Another one does.
    #[error(
        "another launcher has {}: stop it, or give this node a --runtime-dir, --state-dir and --cache-dir of its own",
        folder.display()
    )]
    AlreadyRunning {
        /// Folder that it has locked.
        folder: PathBuf,
    },
    /// A folder or file cannot be used.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// A verb.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
    /// The path of a socket would be too long for the kernel.
    #[error("the runtime folder {} has a path that is too long for a socket in it: at most {} bytes", path.display(), folders::SOCKET_DIR_MAX)]
    LongPath {
        /// The folder.
        path: PathBuf,
    },
    /// The models folder cannot be watched.
    #[error(transparent)]
    Watch(#[from] WatchError),
    /// The store of snapshots cannot be used.
    #[error("cannot open the store of snapshots")]
    Store(#[from] SnapshotError),
    /// Root would write where another user can exchange what is there.
    #[error("cannot use {} for {what}", found.path.display())]
    Changeable {
        /// Flag of the folder.
        what: &'static str,
        /// The folder on the way.
        #[source]
        found: Changeable,
    },
    /// There are no usable control groups.
    #[error("cannot use control groups")]
    Cgroup(#[from] omni_cgroup::Error),
    /// The kernel refuses something basic.
    #[error("cannot {action}")]
    Kernel {
        /// A verb.
        action: &'static str,
        /// The kernel's answer.
        #[source]
        source: Errno,
    },
}

impl LauncherError {
    /// The exit code: whether starting again can help.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::AlreadyRunning { .. } | Self::Cgroup(omni_cgroup::Error::Claimed { .. }) => keeper::ALREADY_RUNNING,
            Self::Watch(WatchError::Folder { .. })
            | Self::LongPath { .. }
            | Self::Changeable { .. }
            | Self::Cgroup(_) => MISCONFIGURED,
            Self::Io { .. }
            | Self::Watch(WatchError::Inotify(_) | WatchError::Store(_))
            | Self::Store(_)
            | Self::Kernel { .. } => 1,
        }
    }
}

/// How a launcher ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// The launcher is not needed any more.
    Done,
    /// The launcher ends so that the next one can start.
    MakesWay,
    /// As `MakesWay`, and the process that would start the next one has ended.
    Unkept,
}

/// Runs the launcher until it is asked to end.
///
/// # Errors
///
/// When something that it needs is not there; instances of an earlier launcher are then left as they are.
pub fn run(settings: Settings) -> Result<Ended, LauncherError> {
    let signals = signals().map_err(kernel("watch signals"))?;
    umask(Mode::from_bits_truncate(0o022));
    raise_descriptor_limit();
    let (settings, runtime) = folders::prepared(settings)?;
    let settings = Arc::new(settings);
    // A single folder may be all three: it is locked once.
    let folders = BTreeSet::from([&settings.runtime_dir, &settings.state_dir, &settings.cache_dir]);
    let locks = folders.into_iter().map(|folder| lock::lock(folder)).collect::<Result<Vec<_>, _>>()?;
    let driver = settings.drivers()?;
    let _claim = lock::claim(&driver)?;
    let why = driver.why_files();
    tracing::info!(driver = driver.name(), why, "driver of control groups");
    let driver: Arc<dyn Driver> = Arc::new(driver);
    let limits = Limits { files: settings.config.snapshots.files, bytes: settings.config.snapshots.bytes.bytes() };
    let store = Arc::new(Store::open(&settings.state_dir.join("snapshots"), limits)?);
    let program = settings.program_dir.clone().unwrap_or_default().join("omni-worker");
    let worker = Arc::new(SealedProgram::seal(&program).map_err(at("read", &program))?);
    let (events, inbox) = event::queue().map_err(kernel("make an event queue"))?;
    let (watch, looks) = Watch::new(&settings, Arc::clone(&store), events.clone())?;

    let at_runtime = |action| at(action, &settings.runtime_dir);
    let traces = Traces::open(&runtime, "instances", 0o755).map_err(at_runtime("use the instances of"))?;
    let nests = Traces::open(&runtime, "zygotes", 0o700).map_err(at_runtime("use the zygotes of"))?;
    let node = &settings.config.node;
    let mut instances = Instances::new(UidSlots::new(node.uid_base, node.uid_count - settings.build_places().source));
    let mut state = State::default();
    let found = nests.list().map_err(at_runtime("list the zygotes of"))?;
    let zygotes = adopt_zygotes(found, &nests, &mut instances, &*driver);
    let found = traces.list().map_err(at_runtime("list the instances of"))?;
    state.unheard.extend(adopt(found, &traces, &mut instances, &zygotes, &*driver)?);
    let unused = instances.is_empty() && zygotes.is_empty();
    let package = Package::install(&settings.state_dir.join("python"), unused);
    let package = Arc::new(package.map_err(at("install the package omni below", &settings.state_dir))?);
    let gpus = Gpus::open(&settings, instances.is_empty());
    let gpus = Arc::new(gpus.map_err(at("install the CUDA shim below", &settings.state_dir))?);
    let environments =
        Environments::open(&settings.cache_dir).map_err(at("use the environments of", &settings.cache_dir))?;

    let socket = runtime.path().join(link::NAME);
    let link = Link::listen(&runtime, settings.scheduler_uid).map_err(at("listen at", &socket))?;
    let links = Links::watch(runtime).map_err(at_runtime("make the links in"))?;
    let (plans, plan_jobs) = sync_channel(JOBS);
    let environment = settings.environments();
    let sandboxes = Sandboxes::new(&environment, Arc::clone(&driver), Arc::clone(&worker));
    let planner = Planner::new(&environment, Arc::clone(&package), sandboxes.clone());
    let builder = Arc::new(Builder::new(&environment, sandboxes));
    let builds = Builds::new(settings.build_places());
    let watch_end = watch.end();
    spawn("watch", move || watch.run())?;
    let shared = Arc::clone(&driver);
    spawn("processors", move || throttle::processors::share_out(&*shared))?;
    let shared = Arc::clone(&driver);
    spawn("open files", move || open_files::watch(&*shared))?;
    let images = settings.caches();
    let disks = Disks::watch(Arc::clone(&driver), &images).map_err(at("watch the cache directories in", &images))?;
    let tell = events.clone();
    spawn("plan", move || {
        planner
            .run(&plan_jobs, |job, plan| tell.tell(Event::Planned { model: job.model, snapshot: job.snapshot, plan }));
    })?;
    tracing::info!(models = %settings.models.path().display(), socket = %socket.display(), "the launcher is ready");
    let _ = sd_notify::notify(&[NotifyState::Ready]); // no service manager: nobody to tell
    let unflushed = Unflushed::default();
    let (flushing, flushed) = (unflushed.clone(), Arc::clone(&store));
    spawn("flush", move || flushing.run(&flushed))?;
    let mut node = Node {
        links,
        nests,
        zygotes,
        settings,
        link,
        inbox,
        events,
        looks,
        signals,
        store,
        unflushed,
        driver,
        worker,
        traces,
        package,
        gpus,
        environments,
        instances,
        plans,
        builder,
        builds,
        state,
    };
    let ended = node.run().map_err(kernel("wait for events"))?;
    watch_end.end();
    drop(disks); // on version 1 a device would stay slow
    // The scheduler takes the end of its connection for the launcher's, and another one may be started at once.
    locks.iter().for_each(lock::give_up);
    drop(node);
    Ok(ended)
}

/// Takes over the zygotes of an earlier launcher and removes what has no living worker.
fn adopt_zygotes(
    found: BTreeSet<InstanceId>,
    nests: &Traces,
    instances: &mut Instances,
    driver: &dyn Driver,
) -> Zygotes {
    let mut zygotes = Zygotes::default();
    for id in found {
        match nests.read::<ZygoteRecord>(&id).and_then(|record| Some((record.worker.find()?, record))) {
            Some((running, record)) => {
                tracing::info!(zygote = %id, pid = running.pid.as_raw(), "zygote taken over");
                instances.uids.share(zygotes.adopt(id, record, running));
            }
            None => {
                let cause = reap::reap_groups(&zygotes::groups(&id), &id, None, driver, nests);
                tracing::info!(zygote = %id, %cause, "a zygote ended while no launcher was there");
            }
        }
    }
    zygotes
}

/// Takes over the instances of an earlier launcher and removes those without a living worker; returns their ends for
/// the scheduler.
fn adopt(
    found: BTreeSet<InstanceId>,
    traces: &Traces,
    instances: &mut Instances,
    zygotes: &Zygotes,
    driver: &dyn Driver,
) -> Result<Vec<FromLauncher>, LauncherError> {
    let mut ended = Vec::new();
    let mut living: BTreeSet<String> = zygotes.running().map(|(id, ..)| zygotes::groups(id)).collect();
    for instance in found {
        let record = traces.read::<InstanceRecord>(&instance);
        match record.and_then(|record| Some((record.worker.find()?, record))) {
            Some((running, record)) => {
                tracing::info!(%instance, pid = running.pid.as_raw(), "instance taken over");
                living.insert(instance.to_string());
                instances.adopt(instance, record, running);
            }
            None => {
                let cause = reap::reap(&instance, None, driver, traces);
                tracing::info!(%instance, %cause, "an instance ended while no launcher was there");
                ended.push(FromLauncher::WorkerGone { instance, cause });
            }
        }
    }
    for name in driver.list()?.into_iter().filter(|name| !living.contains(name)) {
        // Left for the next launcher: no reason for this one not to serve.
        if let Err(error) = driver.destroy(&name) {
            tracing::error!(group = name, error = omni_log::chain(&error), "old control groups are left");
        }
    }
    Ok(ended)
}

/// Only these are waited for by descriptor; everything else is as usual, also what a keeper had blocked.
fn signals() -> Result<SignalFd, Errno> {
    let mut set = SigSet::empty();
    set.add(Signal::SIGTERM);
    set.add(Signal::SIGINT);
    set.add(Signal::SIGUSR2);
    set.thread_set_mask()?;
    SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
}

/// Each instance takes a descriptor here, and the soft limit is usually 1,024. Workers have the same limits from here.
fn raise_descriptor_limit() {
    if let Ok((_, hard)) = getrlimit(Resource::RLIMIT_NOFILE)
        && let Err(error) = setrlimit(Resource::RLIMIT_NOFILE, hard, hard)
    {
        tracing::warn!(%error, "the limit of open files stays as it is");
    }
}

fn spawn(name: &'static str, run: impl FnOnce() + Send + 'static) -> Result<(), LauncherError> {
    let spawned = thread::Builder::new().name(name.to_owned()).spawn(run);
    spawned.map(drop).map_err(at("start the thread", Path::new(name)))
}

fn at(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> LauncherError {
    move |source| LauncherError::Io { action, path: path.to_owned(), source }
}

fn kernel(action: &'static str) -> impl FnOnce(Errno) -> LauncherError {
    move |source| LauncherError::Kernel { action, source }
}
