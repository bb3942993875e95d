//! Published state of a model: for HTTP before it accepts a body, for operators, for metrics. Published on every change.

use super::ModelActor;
use super::generations::GenerationInfo;
use crate::model::{AdmissionInfo, View};
use omni_config::Foreign;
use omni_config::name::ModelName;
use omni_control_api as api;
use omni_launcher_client::LauncherError;
use omni_log::Kind;
use omni_policy::fleet::{ModelState, Phase};
use omni_policy::{Generation, InstanceNumber};
use omni_request_error::Failure;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;
use tokio::sync::watch;

/// Retry hint when no better one is known.
const DEFAULT_RETRY: Duration = Duration::from_secs(30);

/// Resource that an instance lacked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shortage {
    /// Memory, processor time or processes of the node.
    Node,
    /// Memory of the cards.
    Gpu,
}

/// Published state, and what the log was told of it.
#[derive(Debug)]
pub(super) struct Status {
    admission: watch::Sender<AdmissionInfo>,
    view: watch::Sender<View>,
    transitions: TransitionLog,
    /// Resource that the last instance without capacity lacked.
    pub(super) shortage: Shortage,
    pub(super) last_exit: Option<String>,
    pub(super) last_stop: Option<api::Stop>,
    /// The model counts as busy on the node.
    pub(super) is_busy: bool,
}

/// Changes of state, as they were logged.
#[derive(Debug)]
struct TransitionLog {
    state: api::State,
    /// Reason of a failure that is tried again and again, as it was logged last: no capacity, no launcher.
    retried_reason: Option<String>,
}

/// How to log a change of state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Importance {
    /// For operators.
    News,
    /// A retry for a reason that was logged.
    Repetition,
}

impl TransitionLog {
    /// Takes a new state. `is_retried`: a failure that is tried again without end, for want of capacity or the launcher. Such
    /// a failure is news once, and again for another reason.
    fn on_state(&mut self, state: api::State, reason: &str, is_retried: bool) -> Importance {
        let is_retried = state == api::State::Failed && is_retried;
        let fails_again = is_retried && self.retried_reason.as_deref() == Some(reason);
        let tries_again =
            self.retried_reason.is_some() && matches!(state, api::State::Preparing | api::State::Starting);
        self.state = state;
        if fails_again || tries_again {
            return Importance::Repetition;
        }
        self.retried_reason = is_retried.then(|| reason.to_owned());
        Importance::News
    }
}

impl Status {
    pub(super) fn new(admission: watch::Sender<AdmissionInfo>, view: watch::Sender<View>) -> Self {
        Self {
            admission,
            view,
            transitions: TransitionLog { state: api::State::Stopped, retried_reason: None },
            shortage: Shortage::Node,
            last_exit: None,
            last_stop: None,
            is_busy: false,
        }
    }

    /// State as published.
    pub(super) fn state(&self) -> api::State {
        self.transitions.state
    }

    /// Everything as published.
    pub(super) fn view(&self) -> api::Model {
        self.view.borrow().now()
    }

    fn log_transition(&mut self, model: &ModelName, state: api::State, message: &str, lacks_capacity: bool) {
        let from = self.state().as_str();
        let reason = if state == api::State::Failed { message.lines().last().unwrap_or_default() } else { "" };
        let is_retried = lacks_capacity || LauncherError::ALL.iter().any(|error| reason == error.to_string());
        let (importance, to) = (self.transitions.on_state(state, reason, is_retried), state.as_str());
        match importance {
            Importance::Repetition => tracing::debug!(%model, from, to, reason = %Foreign(reason), "state"),
            Importance::News => {
                let message_id = Kind::ModelState.id();
                tracing::info!(message_id, %model, from, to, reason = %Foreign(reason), "state");
            }
        }
    }
}

impl ModelActor {
    /// Publishes the state and stores what outlives the scheduler.
    pub(super) fn publish(&mut self) {
        let fleet = &self.lifecycle.fleet;
        if fleet.serving().is_none() {
            self.versions.serve(None);
        }
        let state = api_state(fleet.state());
        let lacks_capacity = fleet.lacks_capacity();
        if state != self.status.state() {
            let message = self.message().unwrap_or_default();
            self.status.log_transition(&self.model.name, state, &message, lacks_capacity.is_some());
        }
        let serving = self.versions.serving_shared();
        let refusing = (fleet.refuses_requests() || serving.is_none()).then(|| self.refusal());
        let admission = AdmissionInfo { content: serving.cloned(), refusing, build: self.build_progress() };
        self.status.admission.send_replace(admission);
        let (instances, in_flight): (Vec<_>, Vec<_>) = self.view_of_instances().unzip();
        self.model.metrics.state(state, instances.iter().map(|instance| instance.state));
        let is_hopeless = lacks_capacity == Some(true);
        let (too_big, no_card) = match self.status.shortage {
            Shortage::Node => (is_hopeless, false),
            Shortage::Gpu => (false, is_hopeless),
        };
        let (failures, model) = (fleet.failures(), self.view_of_model(state, instances));
        self.status.view.send_replace(View { failures, too_big, no_card, ..View::new(model, in_flight) });
        self.persist();
    }

    fn view_of_model(&self, state: api::State, instances: Vec<api::Instance>) -> api::Model {
        let (fleet, versions, requests) = (&self.lifecycle.fleet, &self.versions, &self.requests.dispatch);
        let serving = versions.serving();
        let shows_build = matches!(state, api::State::Preparing | api::State::Failed);
        let building = fleet.candidate().or(fleet.serving().filter(|_| shows_build));
        let build_log = building.and_then(|generation| self.generations.get(generation)).map(|info| &info.build_log);
        let retry_in = fleet.serving().and_then(|generation| self.retry_in(generation));
        api::Model {
            name: self.model.name.as_str().to_owned(),
            state,
            held: fleet.held(),
            version: serving.map(|content| content.snapshot.to_string()),
            pinned: versions.pinned().map(ToString::to_string),
            directory: versions.directory().cloned().unwrap_or_default(),
            message: self.message(),
            generations: self.view_of_generations(),
            instances,
            in_flight: requests.in_flight() as u64,
            queued: requests.waiting() as u64,
            queue_limit: serving.map_or(0, |content| u64::from(content.manifest.scaling.queue)),
            restarts: fleet.deaths(),
            last_exit: self.status.last_exit.clone(),
            last_stop: self.status.last_stop.clone(),
            retry_in_seconds: retry_in.map(|time| time.as_secs_f64()),
            build_log: build_log.into_iter().flatten().cloned().collect(),
        }
    }

    /// Reason why the model is in its state.
    pub(super) fn message(&self) -> Option<String> {
        match self.lifecycle.fleet.serving() {
            Some(serving) => self.generations.get(serving).and_then(GenerationInfo::reason),
            None => self.versions.directory().and_then(|directory| directory.refused.clone()),
        }
    }

    fn view_of_instances(&self) -> impl Iterator<Item = (api::Instance, Arc<AtomicU64>)> {
        let view = |(number, _, phase): (InstanceNumber, Generation, &Phase)| {
            let instance = self.instances.get(number)?;
            let view = api::Instance {
                id: instance.id.to_string(),
                version: instance.content.snapshot.to_string(),
                state: api_state_of(phase),
                pid: instance.worker().and_then(|worker| worker.engine_pid),
                age_seconds: self.now.saturating_sub(instance.requested_at).as_secs_f64(),
                in_flight: 0, // filled in when it is read
                old_protocol: instance.worker().and_then(|worker| worker.old_protocol),
            };
            Some((view, Arc::clone(&instance.load.in_flight)))
        };
        self.lifecycle.fleet.instances().filter_map(view)
    }

    fn view_of_generations(&self) -> Vec<api::Generation> {
        let serving = self.lifecycle.fleet.serving();
        let newest_first = self.generations.iter().rev().filter(|(generation, _)| Some(*generation) != serving);
        let serving_first = self.generations.iter().filter(|(generation, _)| Some(*generation) == serving);
        let view = |(generation, info): (Generation, &GenerationInfo)| api::Generation {
            version: info.content.snapshot.to_string(),
            role: self.role(generation),
            state: self.state_of_generation(generation),
            message: info.reason(),
            retry_in_seconds: self.retry_in(generation).map(|time| time.as_secs_f64()),
            preparation: info.preparation,
            prepared: info.work(),
        };
        serving_first.chain(newest_first).map(view).collect()
    }

    /// Role of a generation.
    pub(super) fn role(&self, generation: Generation) -> api::Role {
        let fleet = &self.lifecycle.fleet;
        if fleet.serving() == Some(generation) {
            api::Role::Serving
        } else if fleet.candidate() == Some(generation) {
            api::Role::Candidate
        } else {
            api::Role::Previous
        }
    }

    fn state_of_generation(&self, generation: Generation) -> api::State {
        let fleet = &self.lifecycle.fleet;
        let states = fleet.instances().filter(|(_, of, _)| *of == generation).map(|(.., phase)| api_state_of(phase));
        // The state that tells most about whether it serves.
        let rank = |state: &api::State| match state {
            api::State::Ready => 3,
            api::State::Starting => 2,
            api::State::Draining => 1,
            api::State::Preparing | api::State::Stopped | api::State::Failed => 0,
        };
        if let Some(state) = states.max_by_key(rank) {
            return state;
        }
        fleet.start_state(generation).map_or(api::State::Stopped, |start| api_state(start.resting_state()))
    }

    /// Time until a generation is tried again.
    fn retry_in(&self, generation: Generation) -> Option<Duration> {
        Some(self.lifecycle.fleet.start_state(generation)?.retry_at()?.saturating_sub(self.now))
    }

    /// Failure of requests that cannot wait for this model.
    pub(super) fn refusal(&self) -> Failure {
        let fleet = &self.lifecycle.fleet;
        let retry_after = fleet.serving().and_then(|generation| self.retry_in(generation)).unwrap_or(DEFAULT_RETRY);
        match (fleet.lacks_capacity(), self.status.shortage) {
            (None, _) => Failure::CannotStart { retry_after },
            (Some(false), Shortage::Node) => Failure::NoRoom { retry_after },
            (Some(true), Shortage::Node) => Failure::NeverRoom,
            (Some(false), Shortage::Gpu) => Failure::NoGpuMemory { retry_after },
            (Some(true), Shortage::Gpu) => Failure::NoFittingGpu,
        }
    }

    /// Reports to the node whether the model has requests.
    pub(super) fn set_busy(&mut self, is_busy: bool) {
        if is_busy == self.status.is_busy {
            return;
        }
        self.status.is_busy = is_busy;
        if let Some(time) = self.requests.dispatch.average_time() {
            self.model.metrics.set_usual_time(time);
        }
        self.services.activity.on_change(is_busy);
    }
}

fn api_state(state: ModelState) -> api::State {
    match state {
        ModelState::Preparing => api::State::Preparing,
        ModelState::Starting => api::State::Starting,
        ModelState::Ready => api::State::Ready,
        ModelState::Draining => api::State::Draining,
        ModelState::Stopped => api::State::Stopped,
        ModelState::Failed => api::State::Failed,
    }
}

fn api_state_of(phase: &Phase) -> api::State {
    match phase {
        Phase::Starting { .. } => api::State::Starting,
        Phase::Ready { .. } => api::State::Ready,
        Phase::Draining { .. } | Phase::Stopping { .. } => api::State::Draining,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_that_is_retried_is_news_once_for_each_reason() {
        use api::State::{Failed, Ready, Starting};
        let mut log = TransitionLog { state: api::State::Stopped, retried_reason: None };
        for (state, reason, is_retried, expected) in [
            (Starting, "", false, Importance::News),
            (Failed, "no room", true, Importance::News),
            (Starting, "", true, Importance::Repetition),
            (Failed, "no room", true, Importance::Repetition),
            (Failed, "no card", true, Importance::News),
            (Ready, "", false, Importance::News),
            (Failed, "no card", true, Importance::News),
            (Failed, "it crashed", false, Importance::News),
            (Starting, "", false, Importance::News),
        ] {
            assert_eq!(log.on_state(state, reason, is_retried), expected, "{state:?} {reason}");
        }
    }
}
