//! The end of an actor whose model goes on in another scheduler.
//!
//! Requests in flight are answered here, over the data connections of this scheduler's life. An engine that serves one
//! request at a time takes the next connection when that one has ended; others take it at once, so the next scheduler is told
//! how many requests each instance still has. Requests that no instance got are returned to their submitters, who send them
//! to the next scheduler. Nothing is decided here any more, and no command is sent.

use super::{Mode, ModelActor};
use crate::model::{HandOver, HandedOver, InFlightUpdate, Message};
use omni_engine_client::Unanswered;
use omni_node_protocol::id::InstanceId;
use omni_policy::InstanceNumber;

impl ModelActor {
    /// Begins the hand-over: from now on only requests in flight go on.
    pub(super) fn hand_over(&mut self, hand_over: HandOver) {
        if matches!(self.mode, Mode::Ended) {
            return; // it has no requests, which the dropped sender says
        }
        self.mode = Mode::HandingOver(hand_over.updates);
        let mut handed = HandedOver::default();
        self.for_each_instance(|actor, number| {
            let requests = actor.in_flight_of(number);
            let Some(instance) = actor.instances.get_mut(number) else { return };
            let id = instance.id.clone();
            if let Some(worker) = instance.worker_mut() {
                handed.logged.insert(id.clone(), worker.log_seen());
                worker.disconnect(); // a worker has one scheduler
            }
            instance.load.reported = requests;
            if requests > 0 {
                handed.busy.insert(id, requests);
            }
        });
        let _ = hand_over.handed.send(handed);
    }

    /// Requests in flight on an instance, those of the previous scheduler included.
    fn in_flight_of(&self, number: InstanceNumber) -> u32 {
        let external = self.instances.get(number).map_or(0, |instance| instance.load.external);
        external.saturating_add(self.requests.in_flight_of(number))
    }

    /// Handles the messages that still matter after the hand-over.
    pub(super) fn on_message_while_handing_over(&mut self, message: Message) {
        match message {
            Message::Submit(submission) => {
                let request = submission.request;
                let _ = request.reply.send(Err(Unanswered::NotSent(request.body)));
            }
            Message::Command(_, answer) => {
                let _ = answer.send(Err("another scheduler takes over this node: ask again".to_owned()));
            }
            Message::ExternalRequests(id, requests) => self.on_external_requests(Some(&id), requests),
            Message::PredecessorExited => self.on_external_requests(None, 0),
            Message::HandOver(_)
            | Message::Content(_)
            | Message::Removed
            | Message::Kill
            | Message::Launcher(_)
            | Message::WorkerConnected(..)
            | Message::Adopt(_)
            | Message::WorkerMessage(..)
            | Message::WorkerDisconnected(_)
            | Message::Gpu(..)
            | Message::Capacity(..)
            | Message::CapacityFreed
            | Message::Stats(_)
            | Message::Stacks(_)
            | Message::History(_)
            | Message::Explain(_) => {}
        }
    }

    /// Sends the rest of requests that were begun, reports progress, and drops instances that have answered all.
    pub(super) fn finish_requests(&mut self) {
        self.for_each_instance(|actor, number| {
            actor.flush(number);
            actor.report_in_flight(number);
        });
        self.requests.return_waiting();
    }

    fn report_in_flight(&mut self, number: InstanceNumber) {
        let requests = self.in_flight_of(number);
        let Mode::HandingOver(updates) = &self.mode else { return };
        let Some(instance) = self.instances.get_mut(number) else { return };
        let has_connection = instance.engine().is_some_and(|engine| engine.connection.is_some());
        let is_done = requests == 0 || !has_connection;
        let requests = if is_done { 0 } else { requests };
        let update: InFlightUpdate = (self.model.name.to_string(), instance.id.clone(), requests);
        if (is_done || requests != instance.load.reported)
            // Without space in the channel the next change is reported, or the end of this process.
            && updates.try_send(update).is_ok()
        {
            instance.load.reported = requests;
        }
        if is_done {
            self.requests.remove_instance(number);
            self.instances.remove(number);
        }
    }

    /// The previous scheduler has this number of requests in flight on an instance, or (`None`) on each.
    pub(super) fn on_external_requests(&mut self, id: Option<&InstanceId>, requests: u32) {
        for instance in self.instances.iter_mut().filter(|instance| id.is_none_or(|id| instance.id == *id)) {
            instance.load.external = requests;
            self.requests.dispatch.set_external_requests(instance.number, requests);
        }
    }
}
