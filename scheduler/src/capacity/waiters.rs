//! Models that had no room for an instance, on the node or on a card: they are told when an instance has ended.
//!
//! Each is told once for each refusal, and only of instances that were started: those that are refused in turn make no
//! room for each other.

use super::reservation::{Book, CapacityHandle};
use crate::model::Message;
use std::collections::BTreeMap;
use tokio::sync::mpsc::Sender;

/// Those to tell, by model.
#[derive(Debug, Default)]
pub(super) struct Refused {
    waiting: BTreeMap<String, Sender<Message>>,
    told: Vec<Sender<Message>>,
}

impl Refused {
    /// The inboxes that [`Message::Room`] is for.
    pub(super) fn take(&mut self) -> impl Iterator<Item = Sender<Message>> + use<> {
        std::mem::take(&mut self.told).into_iter()
    }
}

impl Book {
    /// An instance that was started has ended.
    pub(super) fn room_appeared(&mut self) {
        let waiting = std::mem::take(&mut self.refused.waiting);
        self.refused.told.extend(waiting.into_values());
    }
}

impl CapacityHandle {
    /// Has a model told, once, when an instance has ended: it was refused room, and may find some then.
    pub fn tell_of_room(&self, model: &str, inbox: Sender<Message>) {
        self.0.book().refused.waiting.insert(model.to_owned(), inbox);
    }
}
