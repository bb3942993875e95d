//! The main loop's part in the life of instances: begun, started, killed, ended.

use super::{Launcher, shortened};
use crate::caches::{self, Caches};
use crate::event::Event;
use crate::instances::Phase;
use crate::reap::reap;
use crate::running::Running;
use crate::start::{self, Start};
use crate::zygotes::Generation;
use nix::sys::signal::Signal;
use omni_log::chain;
use omni_node_protocol::exit::ExitCause;
use omni_node_protocol::id::InstanceId;
use omni_node_protocol::launcher::{EngineSpec, FromLauncher, StartSpec};
use omni_process::pidfd;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

/// Starts at the same time.
const STARTS: usize = 64;
/// Between two looks for cache directories whose model is gone.
const FORGET_CACHES: Duration = Duration::from_secs(60 * 60);

impl Launcher {
    pub(super) fn start(&mut self, spec: StartSpec) {
        let instance = spec.instance.clone();
        match self.begin(spec) {
            Ok(()) => {}
            Err(message) => {
                tracing::warn!(%instance, reason = message, "start refused");
                self.scheduler.send(FromLauncher::StartFailed { instance, message: shortened(message) });
            }
        }
    }

    fn begin(&mut self, mut spec: StartSpec) -> Result<(), String> {
        if self.end.quitting {
            return Err("the node ends".to_owned());
        }
        let name = start::check(&spec, &self.context.settings.config).map_err(|refused| refused.to_string())?;
        let snapshot = self
            .snapshots
            .store()
            .find(&spec.snapshot)
            .ok_or("the content has changed meanwhile: this snapshot is gone")?;
        let environment = self
            .preparation
            .environments
            .record(spec.engine.environment())
            .ok_or("its environment is not there: prepare it first")?;
        if matches!(spec.engine, EngineSpec::Native { .. }) && !self.context.settings.native_engine().is_file() {
            return Err("omni-engine is not on this node: put it beside omni-launcher".to_owned());
        }
        let set = self.set_of(&spec)?;
        let weights = self.weights_of(&spec, set.as_ref());
        let running = self.instances.models().filter_map(caches::file_name).collect();
        let caches = Caches::new(self.context.settings.caches());
        spec.cache_bytes =
            caches.reserve(&name, spec.cache_bytes, &running).map_err(|no_cache| no_cache.to_string())?;
        if self.instances.starting() >= STARTS {
            return Err(format!("{STARTS} instances are being started already: try again"));
        }
        let generation = Generation::of(&spec, set.as_ref(), self.context.package.dir(), self.context.driver.name());
        let usable = generation.as_ref().and_then(|of| self.zygotes.of(of, &self.zygote_dir, Instant::now()));
        let shared = usable.as_ref().map(|(_, uid)| *uid);
        let (id, model, content) = (spec.instance.clone(), spec.model.clone(), spec.snapshot.clone());
        let uid = self.instances.begin(&id, model, content, set.clone(), shared).ok_or(
            "the instance exists, or all user ids are in use (`uid-count` in [node] of the node's configuration)",
        )?;
        let context = self.context.clone();
        let mut start = Start { spec, name, uid, snapshot, weights, set, environment, context, zygote: None };
        start.zygote = match (usable, generation) {
            (Some((zygote, _)), _) => Some(self.zygote_dir.socket(&zygote)),
            (None, Some(generation)) => self.begin_zygote(&start, generation),
            (None, None) => None,
        };
        let events = self.threads.events.clone();
        let run = move || {
            let result = start.run().map_err(|error| {
                // Nothing of a failed start may be left when the scheduler learns of it.
                reap(&start.spec.instance, None, &*start.context.driver, &start.context.runtime_dir);
                chain(&error)
            });
            // A main loop that is gone leaves the instance to the next one.
            let _ = events.send(Event::Started { instance: start.spec.instance.clone(), result });
        };
        thread::Builder::new().name("start".into()).spawn(run).map(drop).map_err(|error| {
            self.instances.end(&id);
            format!("the node cannot start a thread: {error}")
        })
    }

    /// Removes the cache directories of models that are gone, once an hour.
    pub(super) fn forget_caches(&mut self) {
        let (Some(names), now) = (self.models.catalog.names(), Instant::now()) else { return };
        if self.caches_checked.is_some_and(|looked| now < looked + FORGET_CACHES) {
            return;
        }
        let known = names.chain(self.instances.models()).filter_map(caches::file_name).collect();
        self.caches_checked = Some(now);
        Caches::new(self.context.settings.caches()).forget(&known, SystemTime::now());
    }

    pub(super) fn on_started(&mut self, instance: InstanceId, result: Result<Running, String>) {
        match result {
            Ok(running) => {
                let pid = running.pid.as_raw();
                let Some(entry) = self.instances.get_mut(&instance) else { return };
                tracing::info!(%instance, model = entry.model, pid, "the instance is started");
                let killed = matches!(entry.phase, Phase::Starting { kill: true });
                entry.phase = Phase::Running(running);
                self.scheduler.send(FromLauncher::Started { instance: instance.clone(), worker_pid: pid });
                if killed {
                    self.kill(instance);
                }
            }
            Err(message) => {
                tracing::warn!(%instance, reason = message, "the instance could not be started");
                self.instances.end(&instance);
                self.scheduler.send(FromLauncher::StartFailed { instance, message: shortened(message) });
            }
        }
    }

    pub(super) fn kill(&mut self, instance: InstanceId) {
        match self.instances.get_mut(&instance).map(|entry| &mut entry.phase) {
            Some(Phase::Starting { kill }) => *kill = true,
            // The worker goes with the group; its end is then handled as any other.
            Some(Phase::Running(running)) => {
                if let Err(errno) = pidfd::send_signal(&running.pidfd, Signal::SIGKILL) {
                    tracing::warn!(%instance, %errno, "cannot kill a worker");
                }
            }
            Some(Phase::Ending) => {}
            None => self.send_gone(instance, ExitCause::WorkerLost),
        }
    }

    pub(super) fn on_worker_end(&mut self, id: &InstanceId) {
        let Some(entry) = self.instances.get_mut(id) else { return };
        let Phase::Running(running) = std::mem::replace(&mut entry.phase, Phase::Ending) else { return };
        let (driver, runtime_dir, instance) =
            (Arc::clone(&self.context.driver), self.context.runtime_dir.clone(), id.clone());
        self.reap(move || {
            let cause = reap(&instance, Some(running.pid), &*driver, &runtime_dir);
            Event::Gone { instance, cause }
        });
    }

    pub(super) fn send_gone(&mut self, instance: InstanceId, cause: ExitCause) {
        self.scheduler.send_end(FromLauncher::WorkerGone { instance, cause });
    }
}
