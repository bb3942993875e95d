//! The node between two schedulers: what one lets go of, and what the next one has yet to get. Called by
//! [`crate::takeover`].

use super::Node;
use crate::model::{Leave, Message};
use omni_ipc::id::InstanceId;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// For a scheduler that takes over to serve; requests wait for it meanwhile.
const SUCCESSOR: Duration = Duration::from_secs(60);

impl Node {
    /// Lets go of launcher and workers, for another scheduler. The instances that still have requests of this one; each
    /// is told to `released` once it has none.
    pub async fn leave(&self, released: &mpsc::Sender<(String, InstanceId)>) -> Vec<InstanceId> {
        self.left.store(true, Ordering::Release);
        self.launcher.leave();
        let mut asked = Vec::new();
        for model in self.models() {
            let (busy, told) = oneshot::channel();
            if model.tell(Message::Leave(Leave { busy, released: released.clone() })).await {
                asked.push(told);
            }
        }
        let mut all: Vec<InstanceId> = self.foreign().iter().cloned().collect();
        for told in asked {
            all.extend(told.await.unwrap_or_default());
        }
        all
    }

    /// Whether another scheduler takes over, or has.
    #[must_use]
    pub fn has_left(&self) -> bool {
        self.left.load(Ordering::Acquire)
    }

    /// Another scheduler has taken over.
    pub fn serves_elsewhere(&self, at: SocketAddr) {
        self.successor.send_replace(Some(at));
    }

    /// Where the scheduler serves that takes over, once it does; `None` when it does not in time.
    pub async fn successor(&self) -> Option<SocketAddr> {
        let mut successor = self.successor.subscribe();
        let known = tokio::time::timeout(SUCCESSOR, successor.wait_for(Option::is_some)).await;
        *known.ok()?.ok()?
    }

    /// An instance does not work for the scheduler before this one any more.
    pub async fn released(&self, model: &str, instance: &InstanceId) {
        if let Some(foreign) = self.foreign().take(instance) {
            self.launcher.kill(foreign);
        }
        if let Some(model) = self.find(model) {
            let _ = model.tell(Message::Released(Some(instance.clone()))).await;
        }
    }

    /// Ends the instances that could not be adopted.
    pub(super) fn end_foreign(&self) {
        std::mem::take(&mut *self.foreign()).into_iter().for_each(|foreign| self.launcher.kill(foreign));
    }

    pub(super) fn foreign(&self) -> MutexGuard<'_, BTreeSet<InstanceId>> {
        self.foreign.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// None does.
    pub async fn all_released(&self) {
        self.end_foreign();
        for model in self.models() {
            let _ = model.tell(Message::Released(None)).await;
        }
    }
}
