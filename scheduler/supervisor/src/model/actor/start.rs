//! Start of an instance: a share of the node's capacity, a place on a card, the launch.

use super::ModelActor;
use super::actions::displacement_message;
use super::environments::mailbox;
use super::instance::{GpuLease, Instance, InstanceState};
use super::status::Shortage;
use crate::model::Message;
use crate::model::content::Content;
use omni_capacity::{Decision, Reservation, ReservationRequest, zygote_need};
use omni_config::duration;
use omni_config::manifest::GpuMode as ManifestMode;
use omni_config::name::ModelName;
use omni_gpu::PlacementRequest;
use omni_node_protocol::exit::ExitCause;
use omni_node_protocol::id::InstanceId;
use omni_node_protocol::launcher::{GpuMode, GpuSpec, StartSpec};
use omni_policy::capacity::{MIN_IDLE, ReservationId, StartReason, Zygote};
use omni_policy::fleet::Event;
use omni_policy::{Generation, InstanceNumber};
use omni_task::Mailbox;
use std::sync::Arc;

/// Refusal of capacity or of a place on a card.
#[derive(Debug)]
pub(super) struct Refusal {
    /// No retry can help before the model or the node is changed.
    pub(super) permanent: bool,
    /// There would be room in place of the model's serving instances.
    pub(super) recreate_fits: bool,
    pub(super) message: String,
}

impl ModelActor {
    /// Requests capacity for a new instance; a place on a card and the launch follow once it is granted.
    pub(super) fn request_capacity(&mut self, number: InstanceNumber) {
        let Some(mailbox) = self.capacity_mailbox() else { return };
        let Some(instance) = self.instances.get(number) else { return };
        let (generation, content) = (instance.generation, Arc::clone(&instance.content));
        let request = self.capacity_request(generation, &content, mailbox);
        let request = ReservationRequest { reason: self.start_reason(generation), ..request };
        let reservation = self.services.capacity.reserve(request);
        if let Some(instance) = self.instances.get_mut(number) {
            instance.reservation = Some(reservation);
        }
    }

    fn capacity_mailbox(&self) -> Option<Mailbox<(ReservationId, Decision)>> {
        Some(Mailbox::new(self.inbox.upgrade()?, |(id, decision)| Message::Capacity(id, decision)))
    }

    fn capacity_request<'a>(
        &'a self,
        generation: Generation,
        content: &'a Content,
        mailbox: Mailbox<(ReservationId, Decision)>,
    ) -> ReservationRequest<'a> {
        // The `min-instances` of a candidate apply once it serves.
        let min = self.versions.serving().unwrap_or(content).manifest.scaling.min_instances;
        capacity_request(&self.model.name, generation, content, min, mailbox)
    }

    /// Reason why an instance of a generation is started.
    fn start_reason(&self, generation: Generation) -> StartReason {
        let fleet = &self.lifecycle.fleet;
        match fleet.candidate() {
            Some(candidate) if candidate == generation => StartReason::Rollout,
            _ if fleet.is_unsolicited_retry() => StartReason::Retry,
            _ => StartReason::Load,
        }
    }

    /// Reservation of an adopted instance.
    pub(super) fn adopt_reservation(&self, generation: Generation, content: &Content) -> Option<Reservation> {
        let mailbox = self.capacity_mailbox()?;
        Some(self.services.capacity.adopt(self.capacity_request(generation, content, mailbox)))
    }

    /// The capacity decides about an instance. A decision about one that is gone is late.
    pub(super) fn on_capacity_decision(&mut self, key: ReservationId, decision: Decision) {
        let Some(instance) = self.instances.find_reservation(key) else { return };
        let number = instance.number;
        match decision {
            Decision::Granted => {
                if !self.request_placement(number) {
                    self.launch(number, None);
                }
            }
            Decision::Refused { permanent, recreate_fits, message } => {
                self.on_refused(number, Shortage::Node, Refusal { permanent, recreate_fits, message });
            }
            Decision::Displaced { by, purpose, from } => {
                instance.displaced_by = Some(displacement_message(&by, purpose, from));
                self.event(Event::Displaced(number));
            }
        }
    }

    /// Requests a place on a card for an instance that needs one. Returns whether it does.
    fn request_placement(&mut self, number: InstanceNumber) -> bool {
        let Some(instance) = self.instances.get(number) else { return false };
        let resources = &instance.content.manifest.resources;
        let limit = resources.gpu_memory.bytes();
        if limit == 0 {
            return false;
        }
        let mode = match resources.gpu_mode {
            ManifestMode::Unified => GpuMode::Unified,
            ManifestMode::Device => GpuMode::Device,
            ManifestMode::Sleep => GpuMode::Sleep,
        };
        let Some(reservation) = instance.reservation.as_ref().map(Reservation::id) else { return false };
        let reason = self.start_reason(instance.generation);
        let Some(request) = self.placement_request(&instance.id, limit, mode, reservation) else { return false };
        let placement = self.services.gpu.place(PlacementRequest { reason, ..request });
        if let Some(instance) = self.instances.get_mut(number) {
            instance.lease = Some(GpuLease::unplaced(placement));
            instance.state = InstanceState::Placing;
        }
        true
    }

    fn placement_request(
        &self,
        id: &InstanceId,
        limit: u64,
        mode: GpuMode,
        reservation: ReservationId,
    ) -> Option<PlacementRequest> {
        let mailbox = Mailbox::new(self.inbox.upgrade()?, |(key, decision)| Message::Gpu(key, decision));
        let (model, instance) = (self.model.name.as_str().to_owned(), id.clone());
        Some(PlacementRequest { model, instance, limit, mode, reservation, reason: StartReason::Load, mailbox })
    }

    /// Lease of an adopted instance.
    pub(super) fn adopt_lease(
        &self,
        id: &InstanceId,
        gpu: &GpuSpec,
        ready: bool,
        reservation: &Reservation,
    ) -> Option<GpuLease> {
        let request = self.placement_request(id, gpu.limit_bytes, gpu.mode, reservation.id())?;
        Some(GpuLease::adopted(self.services.gpu.adopt(request, &gpu.uuid, ready), ready))
    }

    /// Has the launcher start an instance that has all it needs.
    pub(super) fn launch(&mut self, number: InstanceNumber, gpu: Option<GpuSpec>) {
        self.event(Event::Placed(number));
        let Some(mailbox) = mailbox(&self.inbox) else { return };
        let Some(instance) = self.instances.get_mut(number) else { return };
        let info = self.generations.get_mut(instance.generation);
        let environment = info.and_then(|info| {
            info.shortage = None;
            info.environment.clone()
        });
        let Some(environment) = environment else {
            let message = "its environment is not known any more".to_owned();
            return self.on_gone(number, &ExitCause::StartFailed { message });
        };
        instance.state = InstanceState::Launching;
        if let Some(reservation) = &instance.reservation {
            reservation.on_launch();
        }
        let id = instance.id.clone();
        let spec = instance.content.start_spec(&self.model.name, id.clone(), environment, &self.services.config);
        if self.services.launcher.start_instance(StartSpec { gpu, ..spec }, mailbox).is_err() {
            self.on_start_not_requested(&id);
        }
    }

    /// Removes an instance for which there is no room, and which never began. A generation that has others is sound: one
    /// more or less of them concerns only the number of instances.
    pub(super) fn on_refused(&mut self, number: InstanceNumber, shortage: Shortage, refusal: Refusal) {
        let Refusal { permanent, recreate_fits, message } = refusal;
        let Some(Instance { generation, .. }) = self.instances.remove(number) else { return };
        if let Some(inbox) = self.inbox.upgrade().filter(|_| !permanent) {
            let mailbox = Mailbox::new(inbox, |()| Message::CapacityFreed);
            self.services.capacity.notify_when_freed(self.model.name.as_str(), mailbox);
        }
        self.status.shortage = shortage;
        if let Some(info) = self.generations.get_mut(generation) {
            info.shortage = Some(message.clone());
        }
        if !self.instances.has_any_of(generation) {
            let is_beside = self.lifecycle.fleet.candidate() == Some(generation) && !permanent;
            let message = if is_beside { format!("{message}: {}", beside(recreate_fits)) } else { message };
            self.generations.set_message(generation, Some(message));
        }
        self.event(Event::NoCapacity { instance: number, permanent, recreate_fits });
    }
}

fn capacity_request<'a>(
    model: &'a ModelName,
    generation: Generation,
    content: &'a Content,
    min: u32,
    mailbox: Mailbox<(ReservationId, Decision)>,
) -> ReservationRequest<'a> {
    let manifest = &content.manifest;
    let zygote = zygote_need(manifest).map(|need| Zygote { generation, need });
    let (model, reason) = (model.as_str(), StartReason::Load);
    ReservationRequest { model, resources: &manifest.resources, zygote, min, reason, mailbox }
}

/// Prospects of a new version that has no room beside the serving one.
fn beside(recreate_fits: bool) -> String {
    let after = duration::format(MIN_IDLE);
    let none = "beside the version that serves there is no room";
    if recreate_fits {
        format!("{none}; it replaces that one in place after {after} without a request, or with `omnictl restart`")
    } else {
        format!("{none}, nor is there in its place")
    }
}
