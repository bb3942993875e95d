//! Actions of the fleet policy.

use super::instance::{Instance, InstanceState};
use super::load::bounds;
use super::{Mode, ModelActor};
use crate::clock::unix_ms;
use crate::model::AdminCommand;
use omni_capacity::DisplacedFrom;
use omni_config::duration;
use omni_control_api as api;
use omni_engine_protocol::control::HandlerMode;
use omni_engine_protocol::frame::CancelReason;
use omni_log::Kind;
use omni_node_protocol::exit::ExitCause;
use omni_node_protocol::id::InstanceId;
use omni_node_protocol::instance::ToWorker;
use omni_policy::batching::BatchBounds;
use omni_policy::capacity::Purpose;
use omni_policy::dispatch;
use omni_policy::fleet::{Action, Event, STOP_GRACE, StopReason};
use omni_policy::{Generation, InstanceNumber};

impl ModelActor {
    /// Passes an event to the fleet and carries out its actions. An event of such an action waits until all of them are done.
    pub(super) fn event(&mut self, event: Event) {
        if self.is_handing_over() || !self.lifecycle.queue(event) {
            return;
        }
        while let Some((event, actions)) = self.lifecycle.step(self.now, fastrand::f64()) {
            for action in actions {
                self.execute(action);
            }
            // Work that begins and ends is counted by the metrics and changes nothing else that is published.
            if !matches!(event, Event::Busy(_) | Event::Idle(_)) {
                self.publish();
            }
            self.lifecycle.finish_step();
        }
    }

    fn execute(&mut self, action: Action) {
        match action {
            Action::Prepare(generation) => self.prepare(generation),
            Action::CancelPreparation(generation) => self.cancel_preparation(generation),
            Action::Start { instance, generation } => self.start(instance, generation),
            Action::Serve(generation) => self.serve(generation),
            Action::RecordReady(generation) => self.record_ready(generation),
            Action::EnableRoute(number) => self.enable_route(number),
            Action::DisableRoute(number) => self.disable_route(number),
            Action::CancelInFlight(number) => {
                for id in self.requests.dispatch.ids_in_flight(number) {
                    self.cancel(id, CancelReason::Shutdown);
                }
            }
            Action::Leaving { instance, reason } => self.report_stop(instance, reason),
            Action::Stop(number) => {
                let grace_ms = u64::try_from(STOP_GRACE.as_millis()).unwrap_or(u64::MAX);
                self.stop(number, &ToWorker::Stop { grace_ms });
            }
            Action::Kill(number) => self.stop(number, &ToWorker::Kill),
            Action::RefuseWaiting => {
                let failure = self.refusal();
                self.requests.refuse_waiting(&failure);
            }
            Action::Forget(generation) => self.generations.forget(generation),
            Action::End => self.mode = Mode::Ended,
        }
    }

    /// Carries out a command of an operator.
    pub(super) fn on_command(&mut self, command: &AdminCommand) -> Result<(), String> {
        match command {
            AdminCommand::Pull => self.event(Event::Pull),
            AdminCommand::Start => self.event(Event::Start),
            AdminCommand::Stop => {
                self.event(Event::Stop);
                self.cancel_earlier_preparations();
            }
            AdminCommand::Restart => self.event(Event::Restart),
            AdminCommand::RollBack(to) => return self.roll_back(to.as_deref()),
        }
        Ok(())
    }

    fn start(&mut self, number: InstanceNumber, generation: Generation) {
        let Some(content) = self.generations.content(generation).cloned() else { return };
        let Ok(id) = InstanceId::parse(&format!("{:012x}", fastrand::u64(..) >> 16)) else { return };
        self.instances.insert(Instance::new(number, id, (generation, content), self.now));
        self.request_capacity(number);
    }

    /// Applies the bounds of a generation that takes the traffic from now on.
    fn serve(&mut self, generation: Generation) {
        let Some(content) = self.generations.content(generation).cloned() else { return };
        let bounds = bounds(&content);
        let places = content.manifest.requests_at_once().saturating_mul(bounds.max);
        self.requests.dispatch.set_bounds(content.manifest.scaling.queue, places);
        if let Some(reservation) = self.instances.iter().next().and_then(|instance| instance.reservation.as_ref()) {
            reservation.set_min(bounds.min);
        }
        if self.lifecycle.fleet.was_ready(generation) {
            self.record_ready(generation);
        }
        let (model, version) = (&self.model.name, content.short_version().to_owned());
        if self.versions.serve(Some(content)) {
            tracing::info!(message_id = Kind::VersionServes.id(), %model, version, "serves from now on");
        }
    }

    /// Routes requests to an instance that is ready.
    fn enable_route(&mut self, number: InstanceNumber) {
        let Some(instance) = self.instances.get_mut(number) else { return };
        let InstanceState::Ready(process, mode) = &mut instance.state else { return };
        if !std::mem::replace(&mut process.engine.accepts, true)
            && let Some(reservation) = &instance.reservation
        {
            reservation.on_serving(self.now);
        }
        let scaling = &instance.content.manifest.scaling;
        let mode = match (instance.content.manifest.batching.bounds(), mode) {
            (Some((requests, cost)), _) => dispatch::HandlerMode::Batches(BatchBounds { requests, cost }),
            (None, HandlerMode::Serial) => dispatch::HandlerMode::Serial,
            (None, HandlerMode::Concurrent) => dispatch::HandlerMode::Concurrent,
        };
        let name = dispatch::hash_name(instance.id.as_str().as_bytes());
        let dispatch = &mut self.requests.dispatch;
        dispatch.enable(number, name, mode, scaling.concurrency);
        dispatch.set_external_requests(number, instance.load.external);
    }

    /// Routes no further requests to an instance.
    pub(super) fn disable_route(&mut self, number: InstanceNumber) {
        if let Some(engine) = self.instances.get_mut(number).and_then(Instance::engine_mut) {
            engine.accepts = false;
        }
        self.requests.dispatch.disable(number);
    }

    /// Has an instance stopped or killed. One without a launch has no processes, and is gone.
    pub(super) fn stop(&mut self, number: InstanceNumber, how: &ToWorker) {
        // An engine reads its control socket once its data connection has ended.
        self.hang_up(number);
        let Some(instance) = self.instances.get_mut(number) else { return };
        if let Some(reservation) = &instance.reservation {
            reservation.on_leaving();
        }
        if !instance.is_launched() {
            let message = "it was ended before there was a place for it".to_owned();
            return self.on_gone(number, &ExitCause::StartFailed { message });
        }
        let ignores_kills = instance.on_stopping(*how == ToWorker::Kill);
        if ignores_kills || !instance.worker().is_some_and(|worker| worker.send(how)) {
            self.services.launcher.kill(instance.id.clone());
        }
    }

    /// Kills every instance and starts none any more.
    pub(super) fn kill_all(&mut self) {
        self.for_each_instance(|actor, number| actor.stop(number, &ToWorker::Kill));
        self.event(Event::Removed);
    }

    /// Reports an instance as useless to the fleet with `event`, and the reason to log, metrics and status.
    pub(super) fn replace(&mut self, number: InstanceNumber, reason: &'static str, why: &str, event: Event) {
        let Some(instance) = self.instances.get_mut(number) else { return };
        tracing::warn!(
            message_id = Kind::InstanceReplaced.id(),
            model = %self.model.name,
            instance = %instance.id,
            reason,
            "the instance is replaced: {why}"
        );
        instance.replaced_for = Some((reason, why.to_owned()));
        self.set_message_of(number, format!("{why}; the instance was replaced"));
        self.event(event);
    }

    /// Sets the message of an instance's generation. The report of its own engine is not overwritten: whatever is seen after
    /// it follows from it.
    pub(super) fn set_message_of(&mut self, number: InstanceNumber, message: String) {
        if let Some(instance) = self.instances.get(number).filter(|instance| !instance.has_failed()) {
            self.generations.set_message(instance.generation, Some(message));
        }
    }

    /// Reports the stop of a sound instance to log and status.
    fn report_stop(&mut self, number: InstanceNumber, reason: StopReason) {
        let Some(instance) = self.instances.get(number) else { return };
        let (reason, message) = match reason {
            StopReason::Idle => {
                let limit = instance.content.manifest.scaling.idle_timeout;
                (api::StopReason::Idle, format!("no request for {}, its `idle-timeout`", duration::format(limit)))
            }
            StopReason::Displaced => {
                let message = instance.displaced_by.clone();
                (api::StopReason::Displaced, message.unwrap_or_else(|| "another model needs its place".to_owned()))
            }
            StopReason::Held => (api::StopReason::Held, "by hand: `omnictl stop`".to_owned()),
            StopReason::Restarted => (api::StopReason::Restarted, "by hand: `omnictl restart`".to_owned()),
            StopReason::Replaced => (api::StopReason::Replaced, "another version takes its place".to_owned()),
            StopReason::Removed => (api::StopReason::Removed, "the model or the node ends".to_owned()),
        };
        tracing::info!(
            message_id = Kind::InstanceStopped.id(),
            model = %self.model.name,
            instance = %instance.id,
            reason = reason.as_str(),
            "the instance stops: {message}"
        );
        self.status.last_stop = Some(api::Stop { reason, message, unix_ms: unix_ms() });
    }
}

/// Message about the model whose instance takes the place of a displaced one.
pub(super) fn displacement_message(model: &str, purpose: Purpose, from: DisplacedFrom) -> String {
    let what = match purpose {
        Purpose::First => "the first instance",
        Purpose::Candidate => "a new version",
        Purpose::ScaleUp => "a further instance",
        Purpose::Retry => "another try",
    };
    let place = match from {
        DisplacedFrom::Node => "room",
        DisplacedFrom::Card => "place on a card",
    };
    format!("its {place} is needed for {what} of {model}")
}
