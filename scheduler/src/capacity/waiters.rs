//! Models that had no room for an instance, on the node or on a card: they are told when an instance has ended.
//!
//! Each is told once for each refusal, and only of instances that were started: those that are refused in turn make no
//! room for each other.

use super::reservation::{CapacityHandle, CapacityState};
use crate::model::Message;
use std::collections::BTreeMap;
use tokio::sync::mpsc::Sender;

/// Those to tell, by model.
#[derive(Debug, Default)]
pub(super) struct RefusedModels {
    waiting: BTreeMap<String, Sender<Message>>,
    decisions: Vec<Sender<Message>>,
}

impl RefusedModels {
    /// The inboxes that [`Message::Room`] is for.
    pub(super) fn take(&mut self) -> impl Iterator<Item = Sender<Message>> + use<> {
        std::mem::take(&mut self.decisions).into_iter()
    }
}

impl CapacityState {
    /// An instance that was started has ended.
    pub(super) fn on_capacity_freed(&mut self) {
        let waiting = std::mem::take(&mut self.refused.waiting);
        self.refused.decisions.extend(waiting.into_values());
    }
}

impl CapacityHandle {
    /// Has a model told, once, when an instance has ended: it was refused room, and may find some then.
    pub fn notify_when_freed(&self, model: &str, inbox: Sender<Message>) {
        self.0.state().refused.waiting.insert(model.to_owned(), inbox);
    }
}
