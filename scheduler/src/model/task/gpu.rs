//! An instance's GPU memory, seen from its model's task: a place before it is started, and turns once it is ready.
//!
//! A model without GPU memory has none of this. [`GpuLease`] says each thing once and in order; the model's task asks it
//! whether requests may be sent, and tells it what it has.

use super::ModelTask;
use super::instances::Instance;
use super::place::{Lack, NoPlace};
use crate::model::Message;
use omni_capacity::Reservation;
use omni_config::manifest::GpuMode as ManifestMode;
use omni_engine_client::Swap;
use omni_gpu::{Decision, Placement, PlacementRequest};
use omni_node_protocol::id::InstanceId;
use omni_node_protocol::instance::ToWorker;
use omni_node_protocol::launcher::{GpuMode, GpuSpec};
use omni_policy::InstanceNumber;
use omni_policy::capacity::{ReservationId, StartReason};
use omni_policy::fleet::Event;
use omni_policy::residency::InstanceKey;
use omni_task::Mailbox;
use std::time::Instant;

/// An instance's seat, and whose turn it is.
#[derive(Debug)]
pub(super) struct GpuLease {
    placement: Placement,
    state: State,
    /// The last time that requests waited for it.
    swap: Option<Swap>,
    /// The GPU task had it ended.
    pub(super) ended: bool,
}

#[derive(Debug, PartialEq, Eq)]
enum State {
    /// It waits for its place: there is no process yet.
    Unplaced,
    /// It is being started. Its place holds all that it may allocate.
    Starting,
    /// Requests may be sent.
    Granted {
        /// Something is in flight.
        busy: bool,
        /// It was told to give way, and does when nothing is in flight.
        yields: bool,
    },
    /// Its memory may be elsewhere.
    Out {
        /// Since when requests wait for it.
        wants: Option<Instant>,
    },
}

impl GpuLease {
    fn unplaced(placement: Placement) -> Self {
        Self { placement, state: State::Unplaced, swap: None, ended: false }
    }

    /// One of an earlier scheduler; what it was granted, that one granted.
    pub(super) fn adopted(placement: Placement, ready: bool) -> Self {
        let state = if ready { State::Out { wants: None } } else { State::Starting };
        Self { placement, state, swap: None, ended: false }
    }

    /// Its engine is ready.
    pub(super) fn ready(&mut self) {
        if self.state == State::Starting {
            self.placement.ready();
            self.state = State::Granted { busy: false, yields: false };
        }
    }

    /// Whether requests may be sent.
    pub(super) fn is_open(&self) -> bool {
        matches!(self.state, State::Granted { yields: false, .. })
    }

    /// The last wait of requests for its memory.
    pub(super) fn swap(&self) -> Option<Swap> {
        self.swap
    }

    fn granted(&mut self, now: Instant) {
        if let State::Out { wants } = self.state {
            self.swap = wants.map(|from| Swap { from, until: now });
            self.state = State::Granted { busy: false, yields: false };
        }
    }

    fn yields(&mut self) {
        if let State::Granted { yields, .. } = &mut self.state {
            *yields = true;
        }
    }

    /// Says what changed since the last call: whether something is in flight, and whether requests wait for it.
    pub(super) fn settle(&mut self, in_flight: bool, waits: bool, now: Instant) {
        if let State::Granted { busy, yields } = &mut self.state {
            if *busy != in_flight {
                *busy = in_flight;
                self.placement.busy(in_flight);
            }
            if *yields && !in_flight {
                self.placement.yielded();
                self.state = State::Out { wants: None };
            }
        }
        if let State::Out { wants } = &mut self.state {
            match (waits, *wants) {
                (true, None) => {
                    *wants = Some(now);
                    self.placement.want();
                }
                (false, Some(_)) => {
                    *wants = None;
                    self.placement.unwanted();
                }
                (true, Some(_)) | (false, None) => {}
            }
        }
    }

    /// Its place in the ledger.
    pub(super) fn placement(&self) -> &Placement {
        &self.placement
    }
}

impl ModelTask {
    /// Asks for a place on a card for an instance, if it needs one. Returns whether it does.
    pub(super) fn ask_for_place(&mut self, number: InstanceNumber) -> bool {
        let Some(instance) = self.instances.get(number) else { return false };
        let resources = &instance.content.manifest.resources;
        let limit = resources.gpu_memory.bytes();
        if limit == 0 {
            return false;
        }
        let mode = match resources.gpu_mode {
            ManifestMode::Unified => GpuMode::Unified,
            ManifestMode::Device => GpuMode::Device,
        };
        let Some(reservation) = instance.reservation.as_ref().map(Reservation::id) else { return false };
        let reason = self.start_reason(instance.generation);
        let Some(request) = self.request(&instance.id, limit, mode, reservation) else { return false };
        let request = PlacementRequest { reason, ..request };
        let lease = GpuLease::unplaced(self.context.gpu.place(request));
        if let Some(instance) = self.instances.get_mut(number) {
            instance.lease = Some(lease);
        }
        true
    }

    /// The place that an instance of an earlier scheduler has.
    pub(super) fn keep_place(
        &self,
        id: &InstanceId,
        gpu: &GpuSpec,
        ready: bool,
        reservation: &Reservation,
    ) -> Option<GpuLease> {
        let request = self.request(id, gpu.limit_bytes, gpu.mode, reservation.id())?;
        Some(GpuLease::adopted(self.context.gpu.adopt(request, &gpu.uuid, ready), ready))
    }

    fn request(
        &self,
        id: &InstanceId,
        limit: u64,
        mode: GpuMode,
        reservation: ReservationId,
    ) -> Option<PlacementRequest> {
        let mailbox = Mailbox::new(self.own_inbox.upgrade()?, |(key, decision)| Message::Gpu(key, decision));
        let (model, instance) = (self.model.name.as_str().to_owned(), id.clone());
        Some(PlacementRequest { model, instance, limit, mode, reservation, reason: StartReason::Load, mailbox })
    }

    /// A word of the GPU task. One for an earlier instance is late.
    pub(super) fn on_gpu_decision(&mut self, key: InstanceKey, told: Decision) {
        let is_it = |instance: &Instance| instance.lease.as_ref().is_some_and(|lease| lease.placement.key() == key);
        let Some(number) = self.instances.number(is_it) else { return };
        let Some(instance) = self.instances.get_mut(number) else { return };
        let Some(lease) = &mut instance.lease else { return };
        match told {
            Decision::Placed(spec) => {
                lease.state = State::Starting;
                self.launch(number, Some(spec));
            }
            Decision::Refused { permanent, recreate_fits, message } => {
                self.no_place(number, Lack::Gpu, NoPlace { permanent, recreate_fits, message });
            }
            Decision::Granted => lease.granted(Instant::now()),
            Decision::Yield => lease.yields(),
            Decision::Command { number, order } => {
                instance.pass_on(&ToWorker::Gpu { number, order });
            }
            Decision::Report => instance.pass_on(&ToWorker::Stats),
            Decision::End { displaced, message } => {
                lease.ended = true;
                tracing::warn!(model = %self.model.name, instance = %instance.id, "{message}");
                self.say_of(number, message);
                self.event(&if displaced { Event::Displaced(number) } else { Event::Unresponsive(number) });
            }
        }
    }
}

impl Instance {
    /// A worker that does not take an order does not answer it either: the policy has a time for that.
    fn pass_on(&self, message: &ToWorker) {
        if let Some(link) = &self.link
            && let Err(error) = link.send(message, &[])
        {
            tracing::warn!(instance = %self.id, %error, "an order about GPU memory did not reach the worker");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use omni_gpu::testing::{Listener, listener, request};
    use std::time::Duration;

    fn lease(ready: bool) -> (GpuLease, Listener) {
        let (handle, listener) = listener();
        let reservation = handle.adopt(request(), "GPU-0", ready);
        listener.heard();
        (GpuLease::adopted(reservation, ready), listener)
    }

    fn settle(lease: &mut GpuLease, in_flight: bool, waits: bool) {
        lease.settle(in_flight, waits, Instant::now());
    }

    #[test]
    fn a_started_instance_is_granted_until_it_is_asked_to_yield() {
        let (mut lease, listener) = lease(false);
        settle(&mut lease, false, true);
        assert!(!lease.is_open() && listener.heard().is_empty(), "it is not ready");
        lease.ready();
        assert!(lease.is_open());
        settle(&mut lease, true, false);
        settle(&mut lease, true, true);
        lease.yields();
        assert!(!lease.is_open());
        settle(&mut lease, true, true);
        assert_eq!(listener.heard(), ["Ready", "Busy"], "it finishes what it has");
        settle(&mut lease, false, true);
        assert_eq!(listener.heard(), ["Idle", "Yielded", "Want"]);
        settle(&mut lease, false, true);
        assert!(listener.heard().is_empty(), "each thing once");
        lease.granted(Instant::now());
        assert!(lease.is_open() && lease.swap().is_some());
    }

    #[test]
    fn nobody_waits_any_more_before_the_grant() {
        let (mut lease, listener) = lease(true);
        settle(&mut lease, false, true);
        settle(&mut lease, false, false);
        assert_eq!(listener.heard(), ["Want", "Unwanted"]);
        // Both were on their way.
        lease.granted(Instant::now());
        assert!(lease.is_open() && lease.swap().is_none());
        lease.yields();
        settle(&mut lease, false, false);
        assert_eq!(listener.heard(), ["Yielded"]);
    }

    #[test]
    fn the_wait_is_from_the_first_request_to_the_grant() {
        let (mut lease, _listener) = lease(true);
        let from = Instant::now();
        let at = |seconds| from + Duration::from_secs(seconds);
        lease.settle(false, true, at(1));
        lease.settle(false, true, at(2));
        lease.granted(at(4));
        assert_eq!(lease.swap(), Some(Swap { from: at(1), until: at(4) }));
    }
}
