//! The node between two schedulers: what one lets go of, and what the next one has yet to get. Called by
//! [`crate::takeover`].

use super::Node;
use crate::model::{HandOver, InFlightUpdate, Message, Model};
use crate::takeover::SuccessorHandle;
use omni_node_protocol::id::InstanceId;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// Why a node cannot be handed over now.
const NOT_READY: &str = "the node is not ready: it starts, ends, is being taken over, or misses its launcher";
const NOT_PERSISTED: &str = "the state of models cannot be written, and the next scheduler would not have it: see the log for the \
                         reason, most likely a full disk, and try again when it is gone";
/// For a scheduler that takes over to serve; requests wait for it meanwhile.
const SUCCESSOR: Duration = Duration::from_secs(60);

/// Who has the models.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Held {
    /// This scheduler.
    Here,
    /// This one has let go of them, and the next one does not serve yet.
    Nowhere,
    /// Another scheduler.
    Elsewhere,
}

impl Node {
    /// Lets go of launcher and workers, for another scheduler. The instances that still have requests of this one, and
    /// how many; `has` is told when it is fewer.
    pub async fn leave(&self, has: &mpsc::Sender<InFlightUpdate>) -> BTreeMap<InstanceId, u32> {
        self.left.store(true, Ordering::Release);
        self.launcher.detach();
        let mut asked = Vec::new();
        for model in self.models() {
            let (busy, told) = oneshot::channel();
            if model.send(Message::HandOver(HandOver { in_flight: busy, updates: has.clone() })).await {
                asked.push(told);
            }
        }
        // Of what cannot be spoken to nobody knows how much it has.
        let mut all: BTreeMap<InstanceId, u32> = self.foreign().iter().map(|id| (id.clone(), 1)).collect();
        for told in asked {
            all.extend(told.await.unwrap_or_default());
        }
        all
    }

    /// Returns when another scheduler can take over. The end of the one before this one is waited for, within a bound.
    ///
    /// # Errors
    /// Why none can.
    pub async fn can_be_handed_over(&self) -> Result<(), String> {
        self.is_ready()?;
        self.before.wait_for_end().await.map_err(|working| {
            let its = |model: &&Arc<Model>| {
                model.view().instances.iter().any(|instance| working.busy.keys().any(|id| id.as_str() == instance.id))
            };
            let models: Vec<String> = self.models().iter().filter(its).map(|model| model.name.to_string()).collect();
            working.refusal(&models)
        })?;
        self.context.state.flush().await;
        if self.context.state.has_failed_writes() {
            return Err(NOT_PERSISTED.to_owned());
        }
        self.is_ready()
    }

    fn is_ready(&self) -> Result<(), String> {
        let goes_on = !self.draining() && !self.has_left();
        let is_ready = goes_on && self.scanned() && self.launcher.connected() && self.single_is_ready();
        if is_ready { Ok(()) } else { Err(NOT_READY.to_owned()) }
    }

    /// Whether another scheduler takes over, or has.
    #[must_use]
    pub fn has_left(&self) -> bool {
        self.left.load(Ordering::Acquire)
    }

    /// See there.
    #[must_use]
    pub fn held(&self) -> Held {
        match (self.has_left(), self.successor.borrow().is_some()) {
            (false, _) => Held::Here,
            (true, false) => Held::Nowhere,
            (true, true) => Held::Elsewhere,
        }
    }

    /// Another scheduler has taken over.
    pub fn serves_elsewhere(&self, heir: SuccessorHandle) {
        self.successor.send_replace(Some(heir));
    }

    /// The scheduler that takes over, once it serves; `None` when it does not in time.
    pub async fn successor(&self) -> Option<SuccessorHandle> {
        let mut successor = self.successor.subscribe();
        let known = tokio::time::timeout(SUCCESSOR, successor.wait_for(Option::is_some)).await;
        known.ok()?.ok()?.clone()
    }

    /// Returns when another scheduler serves.
    pub async fn relieved(&self) {
        let _ = self.successor.subscribe().wait_for(Option::is_some).await;
    }

    /// So many requests of the scheduler before this one an instance has still.
    pub async fn predecessor_has(&self, model: &str, instance: &InstanceId, requests: u32) {
        self.before.set_in_flight(instance, requests);
        if requests == 0
            && let Some(foreign) = self.foreign().take(instance)
        {
            self.launcher.kill(foreign);
        }
        if let Some(model) = self.find(model) {
            let _ = model.send(Message::ExternalRequests(instance.clone(), requests)).await;
        }
    }

    /// Ends the instances that could not be adopted.
    pub(super) fn end_foreign(&self) {
        std::mem::take(&mut *self.foreign()).into_iter().for_each(|foreign| self.launcher.kill(foreign));
    }

    pub(super) fn foreign(&self) -> MutexGuard<'_, BTreeSet<InstanceId>> {
        self.foreign.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// None has any.
    pub async fn predecessor_has_ended(&self) {
        self.end_foreign();
        for model in self.models() {
            let _ = model.send(Message::PredecessorExited).await;
        }
        self.before.on_end();
    }
}
