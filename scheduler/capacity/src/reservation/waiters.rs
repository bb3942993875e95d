//! Models that were refused capacity, on the node or on a card, and are notified once when an instance has ended.
//!
//! Only the end of an instance that was launched counts: instances that were refused free nothing for each other.

use super::{CapacityHandle, CapacityState};
use omni_task::Mailbox;
use std::collections::BTreeMap;

/// Mailboxes to notify when capacity is freed.
#[derive(Debug, Default)]
pub(super) struct Waiters {
    waiting: BTreeMap<String, Mailbox<()>>,
    due: Vec<Mailbox<()>>,
}

impl Waiters {
    /// Removes and returns the mailboxes whose notification is due.
    pub(super) fn take_due(&mut self) -> impl Iterator<Item = Mailbox<()>> + use<> {
        std::mem::take(&mut self.due).into_iter()
    }
}

impl CapacityState {
    /// Marks all waiters as due: an instance that was launched has ended.
    pub(super) fn on_capacity_freed(&mut self) {
        let waiting = std::mem::take(&mut self.waiters.waiting);
        self.waiters.due.extend(waiting.into_values());
    }
}

impl CapacityHandle {
    /// Notifies a model that was refused capacity, once, when an instance has ended.
    pub fn notify_when_freed(&self, model: &str, mailbox: Mailbox<()>) {
        self.0.state().waiters.waiting.insert(model.to_owned(), mailbox);
    }
}
