//! What an instance needs of the node before it is started: a share of its capacity, then a place on a card.

use super::ModelTask;
use super::instances::Instance;
use super::stops;
use crate::model::Message;
use crate::model::content::Content;
use omni_capacity::{Decision, Reservation, ReservationRequest, zygote_need};
use omni_config::duration;
use omni_config::name::ModelName;
use omni_node_protocol::exit::ExitCause;
use omni_node_protocol::launcher::{GpuSpec, StartSpec};
use omni_policy::capacity::{MIN_IDLE, ReservationId, StartReason, Zygote};
use omni_policy::fleet::Event;
use omni_policy::{Generation, InstanceNumber};
use omni_task::Mailbox;
use std::sync::Arc;

/// What an instance had no place in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lack {
    /// The node's memory, processor time, processes.
    Node,
    /// The cards' memory.
    Gpu,
}

/// A place that was refused.
#[derive(Debug)]
pub(super) struct NoPlace {
    /// Trying again cannot help before somebody changes the model or the node.
    pub(super) permanent: bool,
    /// There would be one in place of the model's instances that serve.
    pub(super) recreate_fits: bool,
    /// StopReason, for people.
    pub(super) message: String,
}

impl ModelTask {
    /// Asks for the first of it; [`ModelTask::launch`] follows when all of it is there.
    pub(super) fn ask_for_room(&mut self, number: InstanceNumber) {
        let Some(mailbox) = self.capacity_mailbox() else { return };
        let Some(instance) = self.instances.get(number) else { return };
        // A candidate's `min` holds once it serves.
        let min = self.serving.as_ref().unwrap_or(&instance.content).manifest.scaling.min_instances;
        let (generation, content) = (instance.generation, Arc::clone(&instance.content));
        let request = request(&self.model.name, generation, &content, min, mailbox);
        let request = ReservationRequest { reason: self.start_reason(generation), ..request };
        if let Some(instance) = self.instances.get_mut(number) {
            instance.reservation = Some(self.context.capacity.reserve(request));
        }
    }

    fn capacity_mailbox(&self) -> Option<Mailbox<(ReservationId, Decision)>> {
        Some(Mailbox::new(self.own_inbox.upgrade()?, |(id, decision)| Message::Capacity(id, decision)))
    }

    /// Why an instance of a generation is started.
    pub(super) fn start_reason(&self, generation: Generation) -> StartReason {
        match self.fleet.candidate() {
            Some(candidate) if candidate == generation => StartReason::Rollout,
            _ if self.fleet.is_unsolicited_retry() => StartReason::Retry,
            _ => StartReason::Load,
        }
    }

    /// The share that an instance of an earlier scheduler has.
    pub(super) fn keep_room(&self, generation: Generation, content: &Content) -> Option<Reservation> {
        let mailbox = self.capacity_mailbox()?;
        let min = self.serving.as_deref().unwrap_or(content).manifest.scaling.min_instances;
        Some(self.context.capacity.adopt(request(&self.model.name, generation, content, min, mailbox)))
    }

    /// A word of the node's capacity. One for an instance that is gone is late.
    pub(super) fn on_capacity_decision(&mut self, key: ReservationId, told: Decision) {
        let is_it =
            |instance: &Instance| instance.reservation.as_ref().is_some_and(|reservation| reservation.id() == key);
        let Some(number) = self.instances.number(is_it) else { return };
        match told {
            Decision::Granted => {
                if !self.ask_for_place(number) {
                    self.launch(number, None);
                }
            }
            Decision::Refused { permanent, recreate_fits, message } => {
                self.no_place(number, Lack::Node, NoPlace { permanent, recreate_fits, message });
            }
            Decision::Displaced { by, purpose, from } => {
                if let Some(instance) = self.instances.get_mut(number) {
                    instance.displaced_by = Some(stops::displaced_by(&by, purpose, from));
                }
                self.event(&Event::Displaced(number));
            }
        }
    }

    /// Has the launcher start an instance, which has what it needs.
    pub(super) fn launch(&mut self, number: InstanceNumber, gpu: Option<GpuSpec>) {
        self.event(&Event::Placed(number));
        let Some(inbox) = self.own_inbox.upgrade() else { return };
        let Some(instance) = self.instances.get_mut(number) else { return };
        let known = self.generations.get_mut(instance.generation);
        let environment = known.and_then(|known| {
            known.no_room = None;
            known.environment.clone()
        });
        let Some(environment) = environment else {
            let message = "its environment is not known any more".to_owned();
            return self.gone(number, &ExitCause::StartFailed { message });
        };
        instance.launched = true;
        if let Some(reservation) = &instance.reservation {
            reservation.on_launch();
        }
        let spec =
            instance.content.start_spec(&self.model.name, instance.id.clone(), environment, &self.context.config);
        if self.launcher.start_instance(StartSpec { gpu, ..spec }, &inbox).is_err() {
            let id = instance.id.clone();
            self.not_asked(&id);
        }
    }

    /// There is no room for an instance, which never began. One more than there are is a matter of who asks for the number
    /// only: the generation does well.
    pub(super) fn no_place(&mut self, number: InstanceNumber, lack: Lack, refusal: NoPlace) {
        let NoPlace { permanent, recreate_fits, message } = refusal;
        let Some(Instance { generation, .. }) = self.instances.remove(number) else { return };
        if let Some(inbox) = self.own_inbox.upgrade().filter(|_| !permanent) {
            let mailbox = Mailbox::new(inbox, |()| Message::Room);
            self.context.capacity.notify_when_freed(self.model.name.as_str(), mailbox);
        }
        self.lack = lack;
        if let Some(known) = self.generations.get_mut(generation) {
            known.no_room = Some(message.clone());
        }
        if self.instances.number(|other| other.generation == generation).is_none() {
            let is_beside = self.fleet.candidate() == Some(generation) && !permanent;
            let message = if is_beside { format!("{message}: {}", beside(recreate_fits)) } else { message };
            self.generations.say(generation, Some(message));
        }
        self.event(&Event::NoCapacity { instance: number, permanent, recreate_fits });
    }
}

fn request<'a>(
    model: &'a ModelName,
    generation: Generation,
    content: &'a Content,
    min: u32,
    mailbox: Mailbox<(ReservationId, Decision)>,
) -> ReservationRequest<'a> {
    let manifest = &content.manifest;
    let zygote = zygote_need(manifest).map(|need| Zygote { generation, need });
    ReservationRequest {
        model: model.as_str(),
        resources: &manifest.resources,
        zygote,
        min,
        reason: StartReason::Load,
        mailbox,
    }
}

/// What becomes of a new version that has no room beside the one that serves.
fn beside(recreate_fits: bool) -> String {
    let after = duration::format(MIN_IDLE);
    let none = "beside the version that serves there is no room";
    if recreate_fits {
        format!("{none}; it replaces that one in place after {after} without a request, or with `omnictl restart`")
    } else {
        format!("{none}, nor is there in its place")
    }
}
