//! Carrying out what the model's [`Fleet`](omni_policy::fleet::Fleet) decides.

use super::ModelTask;
use super::instances::Instance;
use super::place::{Lack, NoPlace};
use crate::model::content::Content;
use omni_engine_protocol::frame::CancelReason;
use omni_log::Kind;
use omni_node_protocol::exit::ExitCause;
use omni_node_protocol::id::InstanceId;
use omni_node_protocol::instance::ToWorker;
use omni_policy::fleet::{Action, Event, Phase, STOP_GRACE};
use omni_policy::scaling::Bounds;
use omni_policy::{Generation, InstanceNumber};
use std::time::Instant;

impl ModelTask {
    /// Takes an event. One that comes of carrying out another's actions waits until all of those are done: they are in
    /// the order in which lanes close and open.
    pub(super) fn event(&mut self, event: &Event) {
        if self.leaving.is_some() {
            return; // another scheduler decides
        }
        self.events.push_back(*event);
        if self.events.len() > 1 {
            return;
        }
        while let Some(event) = self.events.front().copied() {
            for action in self.fleet.step(&event, self.now(), fastrand::f64()) {
                self.act(action);
            }
            // Work that begins and ends is counted by the metrics; it changes nothing else that is published.
            if !matches!(event, Event::Busy(_) | Event::Idle(_)) {
                self.publish();
            }
            self.events.pop_front();
        }
        self.fleet_wakes = self.fleet.wake_at();
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Prepare(generation) => self.prepare(generation),
            Action::CancelPreparation(generation) => self.unprepare(generation),
            Action::Start { instance, generation } => self.start(instance, generation),
            Action::Serve(generation) => self.serve(generation),
            Action::RecordReady(generation) => self.remember(generation),
            Action::EnableRoute(number) => self.open(number),
            Action::DisableRoute(number) => self.close(number),
            Action::CancelInFlight(number) => {
                for id in self.dispatch.ids_in_flight(number) {
                    self.cancel(id, CancelReason::Shutdown);
                }
            }
            Action::Leaving { instance, reason } => self.say_why_it_leaves(instance, reason),
            Action::Stop(number) => {
                let grace_ms = u64::try_from(STOP_GRACE.as_millis()).unwrap_or(u64::MAX);
                self.end(number, &ToWorker::Stop { grace_ms });
            }
            Action::Kill(number) => self.end(number, &ToWorker::Kill),
            Action::RefuseWaiting => {
                let failure = self.refusal();
                for id in self.dispatch.drain_queue() {
                    self.requests.fail(id, &failure);
                }
            }
            Action::Forget(generation) => self.generations.forget(generation),
            Action::End => self.ended = true,
        }
    }

    fn start(&mut self, number: InstanceNumber, generation: Generation) {
        let Some(content) = self.generations.content(generation).cloned() else { return };
        let Ok(id) = InstanceId::parse(&format!("{:012x}", fastrand::u64(..) >> 16)) else { return };
        self.instances.insert(number, Instance::new(id, generation, content));
        self.ask_for_room(number);
    }

    /// A generation takes the traffic: its bounds hold from now on.
    fn serve(&mut self, generation: Generation) {
        let Some(content) = self.generations.content(generation).cloned() else { return };
        let bounds = bounds(&content);
        self.dispatch.set_bounds(content.manifest.scaling.queue, bounds.concurrency.saturating_mul(bounds.max));
        if let Some((_, instance)) = self.instances.iter().next()
            && let Some(reservation) = &instance.reservation
        {
            reservation.set_min(bounds.min);
        }
        if self.fleet.was_ready(generation) {
            self.remember(generation);
        }
        let (model, version) = (&self.model.name, content.short_version());
        if self.serving.is_some() {
            tracing::info!(message_id = Kind::VersionServes.id(), %model, version, "serves from now on");
        }
        self.serving = Some(content);
    }

    /// Tells the worker how its instance ends. One that was not launched yet has no processes.
    fn end(&mut self, number: InstanceNumber, how: &ToWorker) {
        // The engine looks at its control socket when its data connection has ended.
        self.hang_up(number);
        let Some(instance) = self.instances.get_mut(number) else { return };
        instance.health.leaves();
        if let Some(reservation) = &instance.reservation {
            reservation.on_leaving();
        }
        if !instance.launched {
            let message = "it was ended before there was a place for it".to_owned();
            return self.gone(number, &ExitCause::StartFailed { message });
        }
        let is_deaf = std::mem::replace(&mut instance.killed, *how == ToWorker::Kill);
        if is_deaf || instance.link.as_ref().is_none_or(|link| link.send(how, &[]).is_err()) {
            self.launcher.kill(instance.id.clone());
        }
    }

    /// Kills every instance and starts none any more.
    pub(super) fn kill_all(&mut self) {
        let mut last = None;
        while let Some(number) = self.instances.next(last) {
            last = Some(number);
            self.end(number, &ToWorker::Kill);
        }
        self.event(&Event::Removed);
    }

    /// Time is over for those who had some.
    pub(super) fn take_time(&mut self) {
        let now = Instant::now();
        let is_over = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        let mut last = None;
        while let Some(number) = self.instances.next(last) {
            last = Some(number);
            let Some(instance) = self.instances.get_mut(number) else { continue };
            if is_over(instance.grace_ends) {
                self.write_off(number);
            } else if is_over(instance.broken_ends) {
                instance.broken_ends = None;
                // One that has said why it fails did not go on: it takes its time to end.
                let event = Event::Unresponsive(number);
                if instance.failed {
                    self.event(&event);
                } else {
                    self.replace(number, "connection", "the engine closed its data connection and went on", &event);
                }
            }
            self.look_after(number);
        }
        if self.fleet_wakes.is_some_and(|at| at <= self.now()) {
            self.say_who_is_late();
            self.event(&Event::Tick);
        }
    }

    /// Instances that were not ready in time, or had no place by then.
    fn say_who_is_late(&mut self) {
        let now = self.now();
        let late = |(number, _, phase): (InstanceNumber, Generation, &Phase)| match phase {
            Phase::Starting { until } if *until <= now => Some(number),
            Phase::Starting { .. } | Phase::Ready { .. } | Phase::Draining { .. } | Phase::Stopping { .. } => None,
        };
        let late: Vec<_> = self.fleet.instances().filter_map(late).collect();
        for number in late {
            let Some(instance) = self.instances.get_mut(number) else { continue };
            let limit = instance.content.manifest.timeouts.startup;
            if instance.launched {
                let why = format!("it was not ready within {limit:?}, its `startup` in [timeouts]");
                instance.given_up = Some(("startup", why.clone()));
                self.say_of(number, why);
            } else {
                let lack = if instance.lease.is_some() { Lack::Gpu } else { Lack::Node };
                let message = format!("no room became free for it within {limit:?}");
                self.no_place(number, lack, NoPlace { permanent: false, recreate_fits: false, message });
            }
        }
    }

    /// An instance is of no use any more; `event` says so to the policy.
    pub(super) fn replace(&mut self, number: InstanceNumber, reason: &'static str, why: &str, event: &Event) {
        let Some(instance) = self.instances.get_mut(number) else { return };
        tracing::warn!(
            message_id = Kind::InstanceReplaced.id(),
            model = %self.model.name,
            instance = %instance.id,
            reason,
            "the instance is replaced: {why}"
        );
        instance.given_up = Some((reason, why.to_owned()));
        self.say_of(number, format!("{why}; the instance was replaced"));
        self.event(event);
    }

    /// Says why an instance's generation does not do well. What its engine said of itself is not overwritten: whatever is
    /// seen of it after that follows from it.
    pub(super) fn say_of(&mut self, number: InstanceNumber, message: String) {
        if let Some(instance) = self.instances.get(number).filter(|instance| !instance.failed) {
            self.generations.say(instance.generation, Some(message));
        }
    }
}

/// How many instances of a content there may be, and how busy.
pub(super) fn bounds(content: &Content) -> Bounds {
    let scaling = &content.manifest.scaling;
    Bounds { min: scaling.min_instances, max: scaling.max_instances, concurrency: scaling.concurrency }
}
