//! The end of a model's task whose model goes on: another scheduler takes it over.
//!
//! What instances were sent is answered here, over the data connections of this scheduler's life. An engine that serves
//! one request at a time takes the next connection when that one has ended; others take it at once, so the other
//! scheduler is told how many requests each instance has still. What no instance has goes back to who asked, and is asked
//! again at the other scheduler. Nothing is decided here any more, and nobody is told to do anything.

use super::ModelTask;
use crate::model::{Leave, Message};
use omni_engine_client::Unanswered;
use omni_node_protocol::id::InstanceId;
use omni_policy::InstanceNumber;
use std::collections::BTreeMap;

impl ModelTask {
    /// From now on only what has begun goes on.
    pub(super) fn leave(&mut self, leave: Leave) {
        self.leaving = Some(leave.has);
        let mut busy = BTreeMap::new();
        let mut last = None;
        while let Some(number) = self.instances.next(last) {
            last = Some(number);
            let has = self.has(number);
            let Some(instance) = self.instances.get_mut(number) else { continue };
            instance.link = None; // a worker has one scheduler
            instance.told = has;
            if has > 0 {
                busy.insert(instance.id.clone(), has);
            }
        }
        let _ = leave.busy.send(busy);
    }

    /// Requests that an instance has, of this scheduler and of the one before.
    fn has(&self, number: InstanceNumber) -> u32 {
        let of_this = u32::try_from(self.dispatch.in_flight_of(number)).unwrap_or(u32::MAX);
        self.instances.get(number).map_or(0, |instance| instance.elsewhere).saturating_add(of_this)
    }

    /// What a task still hears that has left.
    pub(super) fn turn_away(&mut self, message: Message) {
        match message {
            Message::Submit(submission) => {
                let _ = submission.request.reply.send(Err(Unanswered::NotSent(submission.request.body)));
            }
            Message::Order(_, answer) => {
                let _ = answer.send(Err("another scheduler takes over this node: ask again".to_owned()));
            }
            Message::Elsewhere(id, requests) => self.elsewhere(Some(&id), requests),
            Message::NoneElsewhere => self.elsewhere(None, 0),
            Message::Leave(_)
            | Message::Content(_)
            | Message::Removed
            | Message::Kill
            | Message::BuildProgress(..)
            | Message::Build(..)
            | Message::Prepared(..)
            | Message::PrepareFailed { .. }
            | Message::Started(_)
            | Message::StartFailed(..)
            | Message::WorkerGone(..)
            | Message::LauncherLost
            | Message::NotAsked(_)
            | Message::Connected(..)
            | Message::Adopt(_)
            | Message::Worker(..)
            | Message::WorkerClosed(_)
            | Message::Gpu(..)
            | Message::Capacity(..)
            | Message::Room
            | Message::Stats(_)
            | Message::Stacks(_)
            | Message::History(_)
            | Message::Explain(_) => {}
        }
    }

    /// Sends the rest of what was begun to be sent, and lets go of who has answered all.
    pub(super) fn finish(&mut self) {
        let mut last = None;
        while let Some(number) = self.instances.next(last) {
            last = Some(number);
            self.flush(number);
            let has = self.has(number);
            let Some(instance) = self.instances.get_mut(number) else { continue };
            let is_done = has == 0 || instance.connection.is_none();
            let has = if is_done { 0 } else { has };
            if let Some(leaving) = &self.leaving
                && (is_done || has != instance.told)
                // Without room for it now, the next change says it, or the end of this process.
                && leaving.try_send((self.model.name.to_string(), instance.id.clone(), has)).is_ok()
            {
                instance.told = has;
            }
            if is_done {
                self.lose(number);
                self.instances.remove(number);
            }
        }
        for id in self.dispatch.drain_queue() {
            self.requests.return_unsent(id);
        }
    }

    /// An instance, or each of them, has so many requests of the scheduler before this one.
    pub(super) fn elsewhere(&mut self, id: Option<&InstanceId>, requests: u32) {
        let mut last = None;
        while let Some(number) = self.instances.next(last) {
            last = Some(number);
            if let Some(instance) = self.instances.get_mut(number)
                && id.is_none_or(|id| instance.id == *id)
            {
                instance.elsewhere = requests;
                self.dispatch.set_external_requests(number, requests);
            }
        }
    }
}
