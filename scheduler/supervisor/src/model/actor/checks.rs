//! Timers and health checks of instances: handlers that ignore their cancellation, broken connections, workers and engines
//! that do not answer, starts that take too long.

use super::ModelActor;
use super::instance::{CHECK_WORKER, Instance};
use super::start::Refusal;
use super::status::Shortage;
use super::workers::IGNORED_CANCELLATION;
use omni_log::Kind;
use omni_node_protocol::instance::ToWorker;
use omni_policy::InstanceNumber;
use omni_policy::deadlines::{Expired, Overdue, overdue};
use omni_policy::dispatch::StuckHandlers;
use omni_policy::fleet::{Event, Phase};
use omni_policy::liveness::Check;

impl ModelActor {
    /// Handles expired timers: cancel grace, broken connections, health checks, timers of the fleet.
    pub(super) fn on_time(&mut self) {
        self.for_each_instance(|actor, number| {
            actor.check_deadlines(number);
            actor.check_worker(number);
        });
        if self.lifecycle.is_due(self.now) {
            self.give_up_overdue_starts();
            self.event(Event::Tick);
        }
    }

    fn check_deadlines(&mut self, number: InstanceNumber) {
        let now = self.now;
        let Some(instance) = self.instances.get_mut(number) else { return };
        match instance.engine_mut().and_then(|engine| engine.deadlines.expire(now)) {
            None => {}
            Some(Expired::CancelGrace) => self.write_off(number),
            // An engine that has reported a failure takes its time to end.
            Some(Expired::ConnectionGrace) if instance.has_failed() => self.event(Event::Unresponsive(number)),
            Some(Expired::ConnectionGrace) => {
                let why = "the engine closed its data connection and went on";
                self.replace(number, "connection", why, Event::Unresponsive(number));
            }
        }
    }

    /// Sends checks that are due, to the worker and then to the engine, and gives up what does not answer.
    fn check_worker(&mut self, number: InstanceNumber) {
        let now = self.now;
        let Some(worker) = self.instances.get_mut(number).and_then(Instance::worker_mut) else { return };
        match worker.check(now) {
            Check::Alive => {}
            // A worker that does not take the question does not answer either.
            Check::Probe => {
                let _ = worker.send(&ToWorker::Ping);
            }
            Check::Unresponsive => {
                worker.disconnect(); // it would not read that it has to end: the launcher ends it
                let why = format!("its worker did not answer within {CHECK_WORKER:?}");
                return self.replace(number, "worker", &why, Event::Unresponsive(number));
            }
        }
        self.check_engine(number);
    }

    fn check_engine(&mut self, number: InstanceNumber) {
        let now = self.now;
        let Some(instance) = self.instances.get_mut(number) else { return };
        match instance.engine_mut().map_or(Check::Alive, |engine| engine.check(now)) {
            Check::Alive => {}
            Check::Probe => instance.send_check(),
            Check::Unresponsive => {
                let every = instance.content.manifest.timeouts.healthcheck;
                let why = format!("it had nothing to do and did not answer its healthcheck within {every:?}");
                self.replace(number, "healthcheck", &why, Event::Unresponsive(number));
            }
        }
    }

    /// Reports starts that took too long, and withdraws those that still wait for capacity.
    fn give_up_overdue_starts(&mut self) {
        let now = self.now;
        let until = |(number, _, phase): (InstanceNumber, _, &Phase)| match phase {
            Phase::Starting { until } => Some((number, *until)),
            Phase::Ready { .. } | Phase::Draining { .. } | Phase::Stopping { .. } => None,
        };
        let starting: Vec<_> = self.lifecycle.fleet.instances().filter_map(until).collect();
        for (number, until) in starting {
            let Some(instance) = self.instances.get_mut(number) else { continue };
            let limit = instance.content.manifest.timeouts.startup;
            let shortage = match overdue(instance.start_progress(), until, now) {
                None => continue,
                Some(Overdue::NotReady) => {
                    let why = format!("it was not ready within {limit:?}, its `startup` in [timeouts]");
                    instance.replaced_for = Some(("startup", why.clone()));
                    self.set_message_of(number, why);
                    continue;
                }
                Some(Overdue::NoCapacity) => Shortage::Node,
                Some(Overdue::NoCard) => Shortage::Gpu,
            };
            let message = format!("no room became free for it within {limit:?}");
            self.on_refused(number, shortage, Refusal { permanent: false, recreate_fits: false, message });
        }
    }

    /// Starts the grace of the handler that was cancelled first, or ends it when none runs.
    pub(super) fn watch_cancellations(&mut self, number: InstanceNumber) {
        let Some(instance) = self.instances.get_mut(number).filter(|instance| !instance.is_killed()) else { return };
        let grace = instance.content.manifest.timeouts.cancel_grace;
        let since = self.requests.dispatch.cancelled_since(number);
        if let Some(engine) = instance.engine_mut() {
            engine.deadlines.on_cancellation(since, grace);
        }
    }

    /// Writes off the slots of handlers that ran on beyond their grace.
    fn write_off(&mut self, number: InstanceNumber) {
        let Some(instance) = self.instances.get(number) else { return };
        let grace = instance.content.manifest.timeouts.cancel_grace;
        self.requests.dispatch.write_off(number, self.now.saturating_sub(grace));
        self.watch_cancellations(number);
        self.report_stuck_handlers(number);
    }

    /// Reports to the fleet what stuck handlers leave of an instance, when that has changed.
    pub(super) fn report_stuck_handlers(&mut self, number: InstanceNumber) {
        let stuck = self.requests.dispatch.stuck_handlers(number);
        let Some(instance) = self.instances.get_mut(number) else { return };
        if instance.load.stuck == stuck {
            return;
        }
        let generation = instance.generation;
        match (std::mem::replace(&mut instance.load.stuck, stuck), stuck) {
            (before, Some(StuckHandlers { other_requests, free_slots })) => {
                if before.is_none() {
                    tracing::warn!(
                        message_id = Kind::InstanceReplaced.id(),
                        model = %self.model.name,
                        instance = %instance.id,
                        reason = "cancellation",
                        "the instance is replaced: {IGNORED_CANCELLATION}"
                    );
                    self.set_message_of(number, format!("{IGNORED_CANCELLATION}; the instance is being replaced"));
                }
                self.event(Event::StuckHandlers { instance: number, other_requests, free_slots });
            }
            (_, None) => {
                self.generations.set_message(generation, None);
                self.event(Event::Recovered(number));
            }
        }
    }
}
