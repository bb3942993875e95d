//! The node between two schedulers: what it hands to its successor, and what it still gets from its predecessor. Called
//! by the takeover.

use super::{Node, SuccessorHandle};
use crate::model::{HandOver, HandedOver, InFlightUpdate, Message, Model};
use omni_node_protocol::id::InstanceId;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// Refusals of a hand-over.
const NOT_READY: &str = "the node is not ready: it starts, ends, is being taken over, or misses its launcher";
const NOT_PERSISTED: &str = "the state of models cannot be written, and the next scheduler would not have it: see the log for the \
                         reason, most likely a full disk, and try again when it is gone";
/// Instances whose logged lines a successor is told of: they are in one message. The lines of others are written again.
const LOGGED: usize = 2048;
/// Longest wait of requests for a successor to serve.
const SUCCESSOR_TIMEOUT: Duration = Duration::from_secs(60);

/// Scheduler that has the models.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ownership {
    /// The scheduler of this process.
    Own,
    /// None: this one has released them, and the successor does not serve yet.
    InTransit,
    /// The successor.
    Successor,
}

impl Node {
    /// Releases launcher and workers for another scheduler. Returns what it has to know of the instances; `updates` receives
    /// each later number of requests in flight.
    pub async fn release(&self, updates: &mpsc::Sender<InFlightUpdate>) -> HandedOver {
        self.handed_over.store(true, Ordering::Release);
        self.launcher.detach();
        let mut replies = Vec::new();
        for model in self.models() {
            let (handed, reply) = oneshot::channel();
            if model.send(Message::HandOver(HandOver { handed, updates: updates.clone() })).await {
                replies.push(reply);
            }
        }
        // Instances that could not be adopted have an unknown number of requests.
        let busy = self.predecessor.foreign().iter().map(|id| (id.clone(), 1)).collect();
        let mut all = HandedOver { busy, ..HandedOver::default() };
        for reply in replies {
            let HandedOver { busy, logged } = reply.await.unwrap_or_default();
            all.busy.extend(busy);
            let room = LOGGED.saturating_sub(all.logged.len());
            all.logged.extend(logged.into_iter().take(room));
        }
        all
    }

    /// Returns when another scheduler can take over. Waits for the predecessor's end, within a bound.
    ///
    /// # Errors
    /// Reason why none can.
    pub async fn can_be_handed_over(&self) -> Result<(), String> {
        self.is_ready()?;
        self.predecessor.watch.wait_for_end().await.map_err(|unfinished| {
            let is_busy = |model: &&Arc<Model>| {
                let instances = model.view().instances;
                instances.iter().any(|instance| unfinished.handed.busy.keys().any(|id| id.as_str() == instance.id))
            };
            let models: Vec<String> =
                self.models().iter().filter(is_busy).map(|model| model.name.to_string()).collect();
            unfinished.refusal(&models)
        })?;
        self.store().flush().await;
        if self.store().has_failed_writes() {
            return Err(NOT_PERSISTED.to_owned());
        }
        self.is_ready()
    }

    fn is_ready(&self) -> Result<(), String> {
        let serves = !self.draining() && !self.is_handed_over();
        let is_ready = serves && self.scanned() && self.launcher.connected() && self.single_is_ready();
        if is_ready { Ok(()) } else { Err(NOT_READY.to_owned()) }
    }

    /// Returns whether another scheduler takes over, or has taken over.
    #[must_use]
    pub fn is_handed_over(&self) -> bool {
        self.handed_over.load(Ordering::Acquire)
    }

    /// Scheduler that has the models.
    #[must_use]
    pub fn ownership(&self) -> Ownership {
        match (self.is_handed_over(), self.successor.borrow().is_some()) {
            (false, _) => Ownership::Own,
            (true, false) => Ownership::InTransit,
            (true, true) => Ownership::Successor,
        }
    }

    /// Sets the successor, which serves from now on.
    pub fn set_successor(&self, successor: SuccessorHandle) {
        self.successor.send_replace(Some(successor));
    }

    /// Successor, once it serves; `None` when it does not in time.
    pub async fn successor(&self) -> Option<SuccessorHandle> {
        let mut successor = self.successor.subscribe();
        let serving = tokio::time::timeout(SUCCESSOR_TIMEOUT, successor.wait_for(Option::is_some)).await;
        serving.ok()?.ok()?.clone()
    }

    /// Returns when the successor serves.
    pub async fn taken_over(&self) {
        let _ = self.successor.subscribe().wait_for(Option::is_some).await;
    }

    /// Sets the number of requests that the predecessor still has in flight on an instance.
    pub async fn on_predecessor_in_flight(&self, model: &str, instance: &InstanceId, requests: u32) {
        self.predecessor.watch.set_in_flight(instance, requests);
        if requests == 0
            && let Some(foreign) = self.predecessor.foreign().take(instance)
        {
            self.launcher.kill(foreign);
        }
        if let Some(model) = self.find(model) {
            let _ = model.send(Message::ExternalRequests(instance.clone(), requests)).await;
        }
    }

    /// Ends the instances that could not be adopted.
    pub(super) fn end_foreign(&self) {
        std::mem::take(&mut *self.predecessor.foreign()).into_iter().for_each(|foreign| self.launcher.kill(foreign));
    }

    /// Handles the predecessor's end: no instance has requests of it any more.
    pub async fn on_predecessor_exit(&self) {
        self.end_foreign();
        for model in self.models() {
            let _ = model.send(Message::PredecessorExited).await;
        }
        self.predecessor.watch.on_end();
    }
}
