//! The end of a model's task whose model goes on: another scheduler takes it over.
//!
//! What instances were sent is answered here, over the data connections of this scheduler's life. An engine that serves
//! one request at a time takes the next connection when that one has ended; others take it at once. What no instance has goes back to who asked, and is asked again at the
//! other scheduler. Nothing is decided here any more, and nobody is told to do anything.

use super::ModelTask;
use crate::model::{Leave, Message};
use crate::wire::reply::Unanswered;
use omni_ipc::id::InstanceId;

impl ModelTask {
    /// From now on only what has begun goes on.
    pub(super) fn leave(&mut self, leave: Leave) {
        self.leaving = Some(leave.released);
        for instance in self.instances.iter_mut() {
            instance.link = None; // a worker has one scheduler
        }
        let mut busy = Vec::new();
        for (number, instance) in self.instances.iter() {
            if instance.elsewhere || self.dispatch.in_flight_of(number) > 0 {
                busy.push(instance.id.clone());
            }
        }
        let _ = leave.busy.send(busy);
    }

    /// What a task still hears that has left.
    pub(super) fn turn_away(&mut self, message: Message) {
        match message {
            Message::Submit(submission) => {
                let _ = submission.reply.send(Err(Unanswered::Unsent(submission.body)));
            }
            Message::Order(_, answer) => {
                let _ = answer.send(Err("another scheduler takes over this node: ask again".to_owned()));
            }
            Message::Released(id) => self.released(id.as_ref()),
            Message::Leave(_)
            | Message::Content(_)
            | Message::Removed
            | Message::BuildProgress(..)
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
            | Message::Stats(_)
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
            let Some(instance) = self.instances.get(number) else { continue };
            let is_busy = instance.elsewhere || self.dispatch.in_flight_of(number) > 0;
            if is_busy && instance.connection.is_some() {
                continue;
            }
            let id = instance.id.clone();
            self.lose(number);
            self.instances.remove(number);
            if let Some(released) = &self.leaving {
                // Without room for it, the end of this process says it.
                let _ = released.try_send((self.model.name.to_string(), id));
            }
        }
        for id in self.dispatch.give_up() {
            self.requests.hand_back(id);
        }
    }

    /// An instance, or each of them, has ended what it did for the scheduler before this one.
    pub(super) fn released(&mut self, id: Option<&InstanceId>) {
        for instance in self.instances.iter_mut().filter(|instance| id.is_none_or(|id| instance.id == *id)) {
            instance.elsewhere = false;
        }
    }
}
