//! Start and end of the launcher: locks, adoption, threads, main loop.

use super::adoption::{adopt, adopt_zygotes};
use super::catalog::Catalog;
use super::connection::{self, Connection};
use super::error::{LauncherError, at, kernel};
use super::event::{self, Event};
use super::gpu::Gpus;
use super::instances::Instances;
use super::links::Links;
use super::main_loop::{EndState, JOBS, Launcher, Models, Preparation, Snapshots, Threads, Weights};
use super::runtime_dir::RuntimeDir;
use super::scheduler::Scheduler;
use super::settings::Settings;
use super::start::StartContext;
use super::throttle::disks::Disks;
use super::throttle::processors;
use super::uids::UidSlots;
use super::watch::Watch;
use super::weights::Fetcher;
use super::zygotes::Zygotes;
use super::{Ended, folders, lock, open_files};
use nix::errno::Errno;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::stat::{Mode, umask};
use omni_cgroup::Driver;
use omni_dir::Dir;
use omni_environment::{Builder, Environments, Package, Planner, Sandboxes};
use omni_node_protocol::launcher::FromLauncher;
use omni_process::SealedProgram;
use omni_snapshot::{Limits, Store};
use omni_weights::Digest;
use sd_notify::NotifyState;
use std::collections::BTreeSet;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread;

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
    let locks = lock_folders(&settings)?;
    let driver = settings.drivers()?;
    let _claim = lock::claim(&driver)?;
    tracing::info!(driver = driver.name(), why = driver.why_files(), "driver of control groups");
    let driver: Arc<dyn Driver> = Arc::new(driver);
    let limits = Limits { files: settings.config.snapshots.files, bytes: settings.config.snapshots.bytes.bytes() };
    let store = Arc::new(Store::open(&settings.state_dir.join("snapshots"), limits)?);
    let program = settings.program_dir.clone().unwrap_or_default().join("omni-worker");
    let worker = Arc::new(SealedProgram::seal(&program).map_err(at("read", &program))?);
    let (events, inbox) = event::queue().map_err(kernel("make an event queue"))?;
    let (watch, rescan) = Watch::new(&settings, Arc::clone(&store), events.clone())?;

    let adopted = Adopted::take_over(&settings, &runtime, &*driver)?;
    let weights = adopted.weights();
    let (package, gpus) = installed(&settings, &adopted)?;
    let context = StartContext {
        settings: Arc::clone(&settings),
        driver: Arc::clone(&driver),
        worker: Arc::clone(&worker),
        package: Arc::clone(&package),
        gpus,
        runtime_dir: adopted.runtime_dir,
    };
    let environments =
        Environments::open(&settings.cache_dir).map_err(at("use the environments of", &settings.cache_dir))?;

    let socket = runtime.path().join(connection::NAME);
    let connection = Connection::listen(&runtime, settings.scheduler_uid).map_err(at("listen at", &socket))?;
    let links = Links::watch(runtime).map_err(at("make the links in", &settings.runtime_dir))?;
    let (plans, plan_jobs) = sync_channel(JOBS);
    let environment = settings.environments();
    let sandboxes = Sandboxes::new(&environment, Arc::clone(&driver), worker);
    let planner = Planner::new(&environment, package, sandboxes.clone());
    let fetcher =
        Fetcher::open(&settings, &sandboxes, &weights).map_err(at("use the weights of", &settings.cache_dir))?;
    let builder = Arc::new(Builder::new(&environment, sandboxes));
    let watch_end = watch.end();
    spawn("watch", move || watch.run())?;
    let disks = start_throttles(&driver, &settings.caches())?;
    let planned = events.clone();
    spawn("plan", move || {
        planner.run(&plan_jobs, |job, plan| {
            planned.send(Event::Planned { model: job.model, snapshot: job.snapshot, plan })
        });
    })?;
    tracing::info!(models = %settings.models.path().display(), socket = %socket.display(), "the launcher is ready");
    let _ = sd_notify::notify(&[NotifyState::Ready]); // fails without a service manager
    let mut launcher = Launcher {
        scheduler: Scheduler::new(connection, links, adopted.ended),
        models: Models { catalog: Catalog::default(), rescan },
        snapshots: Snapshots::new(store).map_err(at("start the thread", Path::new("flush")))?,
        preparation: Preparation::new(environments, plans, builder, settings.build_places()),
        weights: Weights::new(fetcher),
        instances: adopted.instances,
        zygotes: adopted.zygotes,
        zygote_dir: adopted.zygote_dir,
        threads: Threads { events, inbox },
        signals,
        end: EndState::default(),
        caches_checked: None,
        context,
    };
    let ended = launcher.run().map_err(kernel("wait for events"))?;
    watch_end.end();
    drop(disks); // on version 1 a device would stay slow
    // The scheduler takes the end of its connection for the launcher's, and another one may be started at once.
    locks.iter().for_each(lock::release);
    drop(launcher);
    Ok(ended)
}

/// Locks the folders. A single folder may be all three: it is locked once.
fn lock_folders(settings: &Settings) -> Result<Vec<File>, LauncherError> {
    let folders = BTreeSet::from([&settings.runtime_dir, &settings.state_dir, &settings.cache_dir]);
    folders.into_iter().map(|folder| lock::lock(folder)).collect()
}

/// Instances and zygotes of an earlier launcher.
struct Adopted {
    runtime_dir: RuntimeDir,
    zygote_dir: RuntimeDir,
    instances: Instances,
    zygotes: Zygotes,
    /// Ends for the first scheduler.
    ended: Vec<FromLauncher>,
}

impl Adopted {
    fn take_over(settings: &Settings, runtime: &Dir, driver: &dyn Driver) -> Result<Self, LauncherError> {
        let at_runtime = |action| at(action, &settings.runtime_dir);
        let runtime_dir = RuntimeDir::open(runtime, "instances", 0o755).map_err(at_runtime("use the instances of"))?;
        let zygote_dir = RuntimeDir::open(runtime, "zygotes", 0o700).map_err(at_runtime("use the zygotes of"))?;
        let node = &settings.config.node;
        let uids = UidSlots::new(node.uid_base, node.uid_count - settings.build_places().source);
        let mut instances = Instances::new(uids);
        let found = zygote_dir.list().map_err(at_runtime("list the zygotes of"))?;
        let zygotes = adopt_zygotes(found, &zygote_dir, &mut instances, driver);
        let found = runtime_dir.list().map_err(at_runtime("list the instances of"))?;
        let ended = adopt(found, &runtime_dir, &mut instances, &zygotes, driver)?;
        Ok(Self { runtime_dir, zygote_dir, instances, zygotes, ended })
    }

    /// Sets of fetched weights that they have mounted.
    fn weights(&self) -> BTreeSet<Digest> {
        self.instances.weights().chain(self.zygotes.weights()).cloned().collect()
    }
}

/// Installs the package `omni` and the CUDA shim below the state folder.
fn installed(settings: &Settings, adopted: &Adopted) -> Result<(Arc<Package>, Arc<Gpus>), LauncherError> {
    let unused = adopted.instances.is_empty() && adopted.zygotes.is_empty();
    let package = Package::install(&settings.state_dir.join("python"), unused);
    let package = package.map_err(at("install the package omni below", &settings.state_dir))?;
    let gpus = Gpus::open(settings, adopted.instances.is_empty());
    let gpus = gpus.map_err(at("install the CUDA shim below", &settings.state_dir))?;
    Ok((Arc::new(package), Arc::new(gpus)))
}

/// Starts the threads that watch over shared resources.
fn start_throttles(driver: &Arc<dyn Driver>, images: &Path) -> Result<Disks, LauncherError> {
    let shared = Arc::clone(driver);
    spawn("processors", move || processors::share_out(&*shared))?;
    let shared = Arc::clone(driver);
    spawn("open files", move || open_files::watch(&*shared))?;
    Disks::watch(Arc::clone(driver), images).map_err(at("watch the cache directories in", images))
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
