//! Carrying out what the model's [`Lifecycle`](crate::policy::lifecycle::Lifecycle) decides, and saying what state it
//! is in.

use super::gpu::Turn;
use super::{Instance, ModelTask};
use crate::failure::Failure;
use crate::model::{Front, View};
use crate::policy::lifecycle::{Action, Event, Phase, STOP_GRACE};
use omni_api as api;
use omni_ipc::exit::ExitCause;
use omni_ipc::frame::CancelReason;
use omni_ipc::id::InstanceId;
use omni_ipc::instance::ToWorker;
use omni_ipc::launcher::{GpuSpec, StartSpec};
use std::time::{Duration, Instant};

impl ModelTask {
    pub(super) fn event(&mut self, event: &Event) {
        let (before, asked_before) = (state(self.life.phase()), self.life.asks_again());
        for action in self.life.step(event, self.now(), fastrand::f64()) {
            self.act(action);
        }
        let after = state(self.life.phase());
        if before != after {
            let reason = self.message.as_deref().filter(|_| after == api::State::Failed).unwrap_or_default();
            let reason = reason.lines().last().unwrap_or_default().to_owned();
            let (model, from, to) = (&self.model.name, before.as_str(), after.as_str());
            // Who asks for a place on a GPU again and again says so once, and again when the reason is another.
            let is_said = after != api::State::Failed || self.life.lacks_place() && self.failed_for == reason;
            if asked_before && self.life.asks_again() && is_said {
                tracing::debug!(%model, from, to, reason, "state");
            } else {
                tracing::info!(%model, from, to, reason, "state");
            }
            if after == api::State::Failed {
                self.failed_for = reason;
            }
        }
        // Work that begins and ends is counted by the metrics; it changes nothing else that is published.
        if before != after || !matches!(event, Event::Busy | Event::Idle) {
            self.publish();
        }
    }

    pub(super) fn act(&mut self, action: Action) {
        match action {
            Action::Prepare => self.prepare(),
            Action::StartInstance => self.start_instance(),
            Action::Open => {
                if let Some(mode) = self.instance.as_ref().and_then(|instance| instance.mode) {
                    self.dispatch.open(mode);
                }
            }
            Action::Close => self.dispatch.close(),
            Action::CancelInFlight => {
                for id in self.dispatch.sent_ids() {
                    self.cancel(id, CancelReason::Shutdown);
                }
            }
            Action::StopInstance => {
                // The engine looks at its control socket when its data connection has ended.
                let Some(instance) = &mut self.instance else { return };
                instance.connection = None;
                let grace_ms = u64::try_from(STOP_GRACE.as_millis()).unwrap_or(u64::MAX);
                let stop = ToWorker::Stop { grace_ms };
                if instance.link.as_ref().is_none_or(|link| link.send(&stop, &[]).is_err()) {
                    self.launcher.kill(instance.id.clone());
                }
            }
            Action::KillInstance => {
                if self.is_unplaced() {
                    let message = "it was ended before it had a place on a GPU".to_owned();
                    return self.gone(&ExitCause::StartFailed { message }, &Event::Gone);
                }
                let Some(instance) = &mut self.instance else { return };
                instance.connection = None;
                if instance.link.as_ref().is_none_or(|link| link.send(&ToWorker::Kill, &[]).is_err()) {
                    self.launcher.kill(instance.id.clone());
                }
            }
            Action::RefuseWaiting => {
                let failure = self.refusal();
                for id in self.dispatch.give_up() {
                    self.requests.fail(id, &failure);
                }
            }
            Action::End => self.ended = true,
        }
    }

    pub(super) fn prepare(&mut self) {
        let Some(content) = self.content.clone() else { return };
        self.prepare_asked = Instant::now();
        if let Some(inbox) = self.own_inbox.upgrade() {
            self.launcher.prepare(&self.model.name, &content, &inbox);
        }
    }

    pub(super) fn start_instance(&mut self) {
        let Some(content) = self.content.clone() else { return };
        let Ok(id) = InstanceId::parse(&format!("{:012x}", fastrand::u64(..) >> 16)) else { return };
        let turn = self.ask_for_place(&id, &content);
        let waits = turn.is_some();
        self.instance = Some(Instance { turn, ..Instance::new(id) });
        if !waits {
            self.launch(None);
        }
    }

    /// Has the launcher start the instance, which has what it needs.
    pub(super) fn launch(&mut self, gpu: Option<GpuSpec>) {
        let Some((_, environment)) = self.environment.clone() else { return };
        let (Some(content), Some(inbox)) = (&self.content, self.own_inbox.upgrade()) else { return };
        let Some(id) = self.instance.as_ref().map(|instance| instance.id.clone()) else { return };
        let spec = content.start_spec(&self.model.name, id, environment, &self.context.config);
        self.launcher.start_instance(StartSpec { gpu, ..spec }, &inbox);
    }

    /// Whether the instance waits for a place on a GPU.
    pub(super) fn is_unplaced(&self) -> bool {
        self.instance.as_ref().and_then(|instance| instance.turn.as_ref()).is_some_and(Turn::is_unplaced)
    }

    /// Why a request cannot wait for this model.
    pub(super) fn refusal(&self) -> Failure {
        let until = match self.life.phase() {
            Phase::Waiting { until } => until.saturating_sub(self.now()),
            Phase::Stopped
            | Phase::Preparing
            | Phase::Starting { .. }
            | Phase::Ready { .. }
            | Phase::Draining { .. }
            | Phase::Stopping { .. }
            | Phase::Refused => Duration::from_secs(30),
        };
        if !self.life.lacks_place() {
            Failure::CannotStart { retry_after: until }
        } else if *self.life.phase() == Phase::Refused {
            Failure::NoFittingGpu
        } else {
            Failure::NoGpuMemory { retry_after: until }
        }
    }

    /// About how long the queue takes to move on.
    pub(super) fn queue_time(&self) -> Duration {
        self.dispatch.usual_time().unwrap_or(Duration::from_secs(1))
    }

    pub(super) fn publish(&mut self) {
        let phase = self.life.phase();
        let now = self.now();
        let state = state(phase);
        let content = self.content.as_ref();
        let refusing = if self.life.refuses() || content.is_none() { Some(self.refusal()) } else { None };
        self.front.send_replace(Front { content: self.content.clone(), refusing });
        self.model.metrics.state(Some(state));
        self.view.send_replace(View::new(api::Model {
            name: self.model.name.as_str().to_owned(),
            state: if content.is_none() && state == api::State::Stopped { api::State::Failed } else { state },
            held: self.life.held(),
            version: content.map(|content| content.snapshot.to_string()),
            message: self.message.clone(),
            instance: self.instance.as_ref().map(|instance| api::Instance {
                id: instance.id.to_string(),
                pid: instance.pid,
                age_seconds: instance.asked_at.elapsed().as_secs_f64(),
            }),
            in_flight: self.dispatch.in_flight() as u64,
            queued: self.dispatch.waiting() as u64,
            queue_limit: content.map_or(0, |content| u64::from(content.manifest.scaling.queue)),
            restarts: self.life.deaths(),
            last_exit: self.last_exit.clone(),
            retry_in_seconds: match phase {
                Phase::Waiting { .. } | Phase::Stopped => {
                    self.life.wake_at().map(|at| at.saturating_sub(now).as_secs_f64())
                }
                Phase::Preparing
                | Phase::Starting { .. }
                | Phase::Ready { .. }
                | Phase::Draining { .. }
                | Phase::Stopping { .. }
                | Phase::Refused => None,
            },
            build_log: if state == api::State::Preparing || state == api::State::Failed {
                self.build_log.iter().cloned().collect()
            } else {
                Vec::new()
            },
        }));
    }
}

fn state(phase: &Phase) -> api::State {
    match phase {
        Phase::Stopped => api::State::Stopped,
        Phase::Preparing => api::State::Preparing,
        Phase::Starting { .. } => api::State::Starting,
        Phase::Ready { .. } => api::State::Ready,
        Phase::Draining { .. } | Phase::Stopping { .. } => api::State::Draining,
        Phase::Waiting { .. } | Phase::Refused => api::State::Failed,
    }
}
