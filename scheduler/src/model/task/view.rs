//! What others see of a model: HTTP before it takes a body, people, metrics. Published whenever something changed.

use super::ModelTask;
use super::generations::Known;
use super::place::Lack;
use crate::launcher::Away;
use crate::model::{Front, View};
use omni_config::Foreign;
use omni_control_api as api;
use omni_log::Kind;
use omni_policy::fleet::{ModelState, Phase};
use omni_policy::{Generation, InstanceNumber};
use omni_request_error::Failure;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

/// A client that cannot be told when is told this.
const SOME_TIME: Duration = Duration::from_secs(30);

impl ModelTask {
    pub(super) fn publish(&mut self) {
        if self.fleet.serving().is_none() {
            self.serving = None;
        }
        let state = state_of_model(self.fleet.state());
        if state != self.state {
            let message = self.message().unwrap_or_default();
            let reason = if state == api::State::Failed { message.lines().last().unwrap_or_default() } else { "" };
            let (model, from, to) = (&self.model.name, self.state.as_str(), state.as_str());
            // Who asks in vain again and again, for room or the launcher, says so once, and again for another reason.
            let in_vain =
                self.fleet.lacks_capacity().is_some() || Away::ALL.iter().any(|away| reason == away.to_string());
            let in_vain = state == api::State::Failed && in_vain;
            let again = in_vain && self.asked_in_vain.as_deref() == Some(reason);
            let asks_again =
                self.asked_in_vain.is_some() && matches!(state, api::State::Preparing | api::State::Starting);
            if again || asks_again {
                tracing::debug!(%model, from, to, reason = %Foreign(reason), "state");
            } else {
                tracing::info!(
                    message_id = Kind::ModelState.id(),
                    %model,
                    from,
                    to,
                    reason = %Foreign(reason),
                    "state"
                );
                self.asked_in_vain = in_vain.then(|| reason.to_owned());
            }
            self.state = state;
        }
        let refusing = (self.fleet.refuses_requests() || self.serving.is_none()).then(|| self.refusal());
        self.front.send_replace(Front { content: self.serving.clone(), refusing, build: self.build() });
        let (instances, in_flight): (Vec<_>, Vec<_>) = self.view_of_instances().unzip();
        self.model.metrics.state(state, instances.iter().map(|instance| instance.state));
        let shows_build = matches!(state, api::State::Preparing | api::State::Failed);
        let building = self.fleet.candidate().or(self.fleet.serving().filter(|_| shows_build));
        let build_log = building.and_then(|generation| self.generations.get(generation)).map(|known| &known.build_log);
        let serving = self.fleet.serving();
        let model = api::Model {
            name: self.model.name.as_str().to_owned(),
            state,
            held: self.fleet.held(),
            version: self.serving.as_ref().map(|content| content.snapshot.to_string()),
            pinned: self.lasting.pinned.as_ref().map(|pin| pin.to.to_string()),
            directory: self.directory.clone().unwrap_or_default(),
            message: self.message(),
            generations: self.view_of_generations(),
            instances,
            in_flight: self.dispatch.in_flight() as u64,
            queued: self.dispatch.waiting() as u64,
            queue_limit: self.serving.as_ref().map_or(0, |content| u64::from(content.manifest.scaling.queue)),
            restarts: self.fleet.deaths(),
            last_exit: self.last_exit.clone(),
            last_stop: self.last_stop.clone(),
            retry_in_seconds: serving.and_then(|generation| self.retry_in(generation)).map(|time| time.as_secs_f64()),
            build_log: build_log.into_iter().flatten().cloned().collect(),
        };
        let permanent = self.fleet.lacks_capacity() == Some(true);
        let (too_big, no_card) = match self.lack {
            Lack::Node => (permanent, false),
            Lack::Gpu => (false, permanent),
        };
        let failures = self.fleet.failures();
        self.view.send_replace(View { failures, too_big, no_card, ..View::new(model, in_flight) });
        self.save();
    }

    /// Why the model is as it is.
    pub(super) fn message(&self) -> Option<String> {
        match self.fleet.serving() {
            Some(serving) => self.generations.get(serving).and_then(Known::told),
            None => self.directory.as_ref().and_then(|directory| directory.refused.clone()),
        }
    }

    fn view_of_instances(&self) -> impl Iterator<Item = (api::Instance, Arc<AtomicU64>)> {
        let view = |(number, _, phase): (InstanceNumber, Generation, &Phase)| {
            let instance = self.instances.get(number)?;
            let view = api::Instance {
                id: instance.id.to_string(),
                version: instance.content.snapshot.to_string(),
                state: state_of(phase),
                pid: instance.pid,
                age_seconds: instance.asked_at.elapsed().as_secs_f64(),
                in_flight: 0, // filled in when it is looked at
                old_protocol: instance.old_protocol,
            };
            Some((view, Arc::clone(&instance.in_flight)))
        };
        self.fleet.instances().filter_map(view)
    }

    fn view_of_generations(&self) -> Vec<api::Generation> {
        let serving = self.fleet.serving();
        let newest_first = self.generations.iter().rev().filter(|(generation, _)| Some(*generation) != serving);
        let serving_first = self.generations.iter().filter(|(generation, _)| Some(*generation) == serving);
        let view = |(generation, known): (Generation, &Known)| api::Generation {
            version: known.content.snapshot.to_string(),
            role: self.role(generation),
            state: self.state_of_generation(generation),
            message: known.told(),
            retry_in_seconds: self.retry_in(generation).map(|time| time.as_secs_f64()),
        };
        serving_first.chain(newest_first).map(view).collect()
    }

    /// What a generation is for the model.
    pub(super) fn role(&self, generation: Generation) -> api::Role {
        if self.fleet.serving() == Some(generation) {
            api::Role::Serving
        } else if self.fleet.candidate() == Some(generation) {
            api::Role::Candidate
        } else {
            api::Role::Previous
        }
    }

    fn state_of_generation(&self, generation: Generation) -> api::State {
        let states =
            self.fleet.instances().filter(|(_, whose, _)| *whose == generation).map(|(.., phase)| state_of(phase));
        // In the order of what matters most to who asks whether it serves.
        let rank = |state: &api::State| match state {
            api::State::Ready => 3,
            api::State::Starting => 2,
            api::State::Draining => 1,
            api::State::Preparing | api::State::Stopped | api::State::Failed => 0,
        };
        if let Some(state) = states.max_by_key(rank) {
            return state;
        }
        self.fleet
            .start_state(generation)
            .map_or(api::State::Stopped, |standing| state_of_model(standing.resting_state()))
    }

    /// Time until a generation is tried again.
    fn retry_in(&self, generation: Generation) -> Option<Duration> {
        Some(self.fleet.start_state(generation)?.retry_at()?.saturating_sub(self.now()))
    }

    /// Why a request cannot wait for this model.
    pub(super) fn refusal(&self) -> Failure {
        let retry_after = self.fleet.serving().and_then(|generation| self.retry_in(generation)).unwrap_or(SOME_TIME);
        match (self.fleet.lacks_capacity(), self.lack) {
            (None, _) => Failure::CannotStart { retry_after },
            (Some(false), Lack::Node) => Failure::NoRoom { retry_after },
            (Some(true), Lack::Node) => Failure::NeverRoom,
            (Some(false), Lack::Gpu) => Failure::NoGpuMemory { retry_after },
            (Some(true), Lack::Gpu) => Failure::NoFittingGpu,
        }
    }

    /// About how long the queue takes to move on.
    pub(super) fn queue_time(&self) -> Duration {
        self.dispatch.average_time().unwrap_or(Duration::from_secs(1))
    }
}

fn state_of_model(state: ModelState) -> api::State {
    match state {
        ModelState::Preparing => api::State::Preparing,
        ModelState::Starting => api::State::Starting,
        ModelState::Ready => api::State::Ready,
        ModelState::Draining => api::State::Draining,
        ModelState::Stopped => api::State::Stopped,
        ModelState::Failed => api::State::Failed,
    }
}

fn state_of(phase: &Phase) -> api::State {
    match phase {
        Phase::Starting { .. } => api::State::Starting,
        Phase::Ready { .. } => api::State::Ready,
        Phase::Draining { .. } | Phase::Stopping { .. } => api::State::Draining,
    }
}
