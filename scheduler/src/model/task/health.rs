//! Whether instances answer: their workers on the control wire, their engines on the data wire.
//!
//! A worker is asked when it has said nothing for a while, an engine when its instance has had nothing to do for a while.
//! One that works is not asked: it would answer behind the work, and each of its requests has an end of its own, by its
//! deadline and `cancel-grace`. While an engine is asked requests wait, so that they are not lost with one that hangs.
//!
//! The model's own `healthcheck` may use the GPU. It runs only while the instance's memory is on the card, which is held
//! there until it has answered; and once after each time that the instance was used, so that it does not look used for
//! being asked. Otherwise the engine alone answers, which touches no memory of a GPU.

use super::ModelTask;
use super::gpu::GpuLease;
use super::instances::Instance;
use omni_node_protocol::instance::ToWorker;
use omni_policy::fleet::Event;
use omni_policy::liveness::{Check, Liveness};
use omni_policy::{InstanceNumber, Moment};
use std::time::Duration;

/// A worker has little to do: it reads a few descriptors. This is for a machine that is in trouble.
const WORKER: Duration = Duration::from_secs(15);

/// What is known of an instance's health.
#[derive(Debug, Default)]
pub(super) struct Health {
    /// Since it is connected.
    worker: Option<Liveness>,
    /// While it is open and has nothing in flight.
    engine: Option<Liveness>,
    /// The last check.
    check: u64,
    /// The model's own check runs.
    runs_own: bool,
    /// It was used since that ran last.
    was_used: bool,
}

impl Health {
    /// Its worker is connected.
    pub(super) fn connected(&mut self, now: Moment) {
        self.worker = Some(Liveness::new(WORKER, now));
    }

    /// Its worker speaks.
    pub(super) fn worker_speaks(&mut self, now: Moment) {
        if let Some(worker) = &mut self.worker {
            worker.heard(now);
        }
    }

    /// It is on its way out, which has bounds of its own.
    pub(super) fn leaves(&mut self) {
        *self = Self::default();
    }

    /// Whether its engine is being asked.
    pub(super) fn is_asked(&self) -> bool {
        self.engine.is_some_and(|engine| engine.is_asked())
    }

    /// Whether the model's own code runs for that.
    pub(super) fn runs_own(&self) -> bool {
        self.runs_own
    }

    /// When somebody is to be asked, or given up.
    pub(super) fn wake_at(&self) -> Option<Moment> {
        [self.worker, self.engine].into_iter().flatten().map(|liveness| liveness.due()).min()
    }
}

impl Instance {
    /// It has something in flight, or not.
    pub(super) fn is_at_work(&mut self, works: bool, now: Moment) {
        let every = self.content.manifest.timeouts.healthcheck;
        let health = &mut self.health;
        if works {
            (health.engine, health.was_used) = (None, true);
        } else if !self.open {
            (health.engine, health.runs_own) = (None, false);
        } else {
            health.engine.get_or_insert_with(|| Liveness::new(every, now));
        }
    }

    fn ask_engine(&mut self) {
        let Some(connection) = &mut self.connection else { return };
        let is_on_card = self.lease.as_ref().is_none_or(GpuLease::is_open);
        let own = is_on_card && (self.lease.is_none() || self.health.was_used);
        self.health.check += 1;
        self.health.runs_own = own;
        self.health.was_used &= !own;
        connection.send_check(self.health.check, own);
    }
}

impl ModelTask {
    /// Asks who is due, and gives up who is silent.
    pub(super) fn look_after(&mut self, number: InstanceNumber) {
        let (now, silent) = (self.now(), Event::Unresponsive(number));
        let Some(instance) = self.instances.get_mut(number) else { return };
        match instance.health.worker.as_mut().map_or(Check::Alive, |worker| worker.check(now)) {
            Check::Alive => {}
            // One that does not take the question does not answer either.
            Check::Probe => drop(instance.link.as_ref().map(|link| link.send(&ToWorker::Ping, &[]))),
            Check::Unresponsive => {
                instance.link = None; // it would not hear that it is to end: the launcher ends it
                let why = format!("its worker did not answer within {WORKER:?}");
                return self.replace(number, "worker", &why, &silent);
            }
        }
        let every = instance.content.manifest.timeouts.healthcheck;
        match instance.health.engine.as_mut().map_or(Check::Alive, |engine| engine.check(now)) {
            Check::Alive => {}
            Check::Probe => instance.ask_engine(),
            Check::Unresponsive => {
                let why = format!("it had nothing to do and did not answer its healthcheck within {every:?}");
                self.replace(number, "healthcheck", &why, &silent);
            }
        }
    }

    /// The engine's answer. Returns whether it was asked for one.
    pub(super) fn checked(&mut self, number: InstanceNumber, check: u64, problem: &[u8]) -> bool {
        let now = self.now();
        let Some(Instance { health, .. }) = self.instances.get_mut(number) else { return true };
        let Some(engine) = health.engine.as_mut().filter(|engine| engine.is_asked() && check == health.check) else {
            // It became too late for an instance that was closed meanwhile.
            return check == health.check;
        };
        engine.heard(now);
        health.runs_own = false;
        if !problem.is_empty() {
            let problem = String::from_utf8_lossy(problem).into_owned();
            let last = problem.lines().next_back().unwrap_or_default();
            let why = format!("its healthcheck failed: {last}");
            self.replace(number, "healthcheck", &why, &Event::Unresponsive(number));
            self.say_of(number, problem);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::content::Content;
    use omni_config::name::ModelName;
    use omni_config::node::NodeConfig;
    use omni_engine_client::{DataConnection, EngineEnds};
    use omni_gpu::testing::{listener, request};
    use omni_node_protocol::id::{InstanceId, SnapshotDigest};
    use omni_policy::Generation;
    use std::sync::Arc;

    fn instance() -> (Instance, EngineEnds) {
        let name = ModelName::try_from("m".to_owned()).unwrap();
        let snapshot = SnapshotDigest::parse(&"1".repeat(64)).unwrap();
        let content = Content::parse(&name, snapshot, None, &NodeConfig::default()).unwrap();
        let id = InstanceId::parse("0123456789ab").unwrap();
        let (connection, ends) = DataConnection::pair().unwrap();
        let new = Instance::new(id, Generation(1), Arc::new(content));
        (Instance { connection: Some(connection), open: true, ..new }, ends)
    }

    /// Asks, and returns whether the model's own check is to run.
    fn asks_own(instance: &mut Instance) -> bool {
        instance.ask_engine();
        assert!(instance.connection.as_ref().unwrap().wants_write());
        instance.health.runs_own()
    }

    #[tokio::test]
    async fn a_model_without_a_gpu_is_always_asked_itself() {
        let (mut instance, _ends) = instance();
        assert!(asks_own(&mut instance) && asks_own(&mut instance));
    }

    #[tokio::test]
    async fn no_check_touches_the_memory_of_a_gpu_that_may_be_away() {
        let (handle, _listener) = listener();
        // One of an earlier scheduler: it has no grant of this one.
        let away = GpuLease::adopted(handle.adopt(request(), "GPU-0", false), false);
        let (mut instance, _ends) = instance();
        instance.lease = Some(away);
        instance.is_at_work(true, Duration::ZERO);
        assert!(!asks_own(&mut instance), "it was used, and its memory is not known to be there");
        instance.lease.as_mut().unwrap().ready();
        assert!(asks_own(&mut instance), "it is there");
        assert!(!asks_own(&mut instance), "it was not used since");
        instance.is_at_work(true, Duration::ZERO);
        assert!(asks_own(&mut instance));
    }
}
