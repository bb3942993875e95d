//! Adoption of the instances that an earlier scheduler left: found by their sockets, handed to their models or ended.

use super::Node;
use super::predecessor::{PredecessorWatch, UnfinishedWork};
use crate::model::services::instances_dir;
use crate::model::worker_link::{self, WorkerLink};
use crate::model::{Adoption, HandedOver, Message};
use omni_config::name::ModelName;
use omni_node_protocol::id::InstanceId;
use omni_node_protocol::instance::{ToWorker, Welcome};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Predecessor that hands over, and its instances that this scheduler cannot adopt.
#[derive(Debug)]
pub(super) struct Predecessor {
    pub(super) watch: PredecessorWatch,
    /// Instances that cannot be adopted and still have requests of the predecessor.
    foreign: Mutex<BTreeSet<InstanceId>>,
}

impl Predecessor {
    pub(super) fn new(unfinished: Option<UnfinishedWork>) -> Self {
        Self { watch: PredecessorWatch::new(unfinished), foreign: Mutex::default() }
    }

    pub(super) fn foreign(&self) -> MutexGuard<'_, BTreeSet<InstanceId>> {
        self.foreign.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Node {
    /// Adopts the instances that an earlier scheduler left. `handed`: what the predecessor has told of them.
    pub(super) async fn adopt_all(&self, handed: &HandedOver) {
        let directory = instances_dir(&self.parts.runtime_dir);
        let Ok(entries) = std::fs::read_dir(&directory) else { return };
        let sockets: Vec<PathBuf> = entries
            .flatten()
            .map(|entry| entry.path())
            .filter(|path| path.extension().is_some_and(|e| e == "sock"))
            .collect();
        *self.found() = Some(sockets.iter().filter_map(|path| instance_id(path)).collect());
        let mut connecting = tokio::task::JoinSet::new();
        for path in sockets {
            connecting.spawn(async move { (WorkerLink::connect(&path, 0, worker_link::ALIVE).await, path) });
        }
        while let Some(Ok((connected, path))) = connecting.join_next().await {
            match connected {
                Ok((link, welcome)) => {
                    self.adopt(link, welcome, handed).await;
                }
                Err(error) => {
                    let (socket, error) = (path.display(), omni_log::chain(&error));
                    match instance_id(&path) {
                        Some(id) if handed.busy.contains_key(&id) => {
                            tracing::warn!(%socket, error, "instance not adopted: it is ended after its requests in flight");
                            self.predecessor.foreign().insert(id);
                        }
                        Some(id) => {
                            tracing::warn!(%socket, error, "instance not adopted: it is ended");
                            self.launcher.kill(id);
                        }
                        None => tracing::warn!(%socket, error, "a socket whose name is no instance's"),
                    }
                }
            }
        }
    }

    async fn adopt(&self, link: WorkerLink, welcome: Welcome, handed: &HandedOver) {
        let Ok(name) = ModelName::try_from(welcome.model.clone()) else { return };
        if welcome.ending {
            // The worker ends it at the deadline it was given, and the launcher cleans up after it.
            tracing::info!(model = %name, instance = %welcome.instance, "an instance is about to end");
            tokio::spawn(link.outlast());
            return;
        }
        let text = Some(welcome.note.clone()).filter(|note| !note.is_empty());
        match self.content(&name, welcome.snapshot.clone(), text) {
            Ok(content) => {
                let external_requests = handed.busy.get(&welcome.instance).copied().unwrap_or(0);
                let logged = handed.logged.get(&welcome.instance).copied().unwrap_or(0);
                let adoption = Adoption { welcome, link, content, external_requests, logged };
                let _ = self.add(&name).send(Message::Adopt(Box::new(adoption))).await;
            }
            Err(message) => {
                tracing::warn!(model = %name, instance = %welcome.instance, "instance not adopted, it is ended: {message}");
                if link.send(&ToWorker::Kill, &[]).is_err() {
                    self.launcher.kill(welcome.instance);
                }
            }
        }
    }

    /// Handles an instance that no model has. One that was found is being adopted; any other was requested by a scheduler
    /// that is gone, and would never be ended.
    pub(super) fn on_unknown_instance(&self, instance: InstanceId) {
        if self.found().as_ref().is_some_and(|found| !found.contains(&instance)) {
            let why = "an earlier scheduler has asked for it, and this one has not found it";
            tracing::warn!(%instance, "an instance is ended: {why}");
            self.launcher.kill(instance);
        }
    }

    fn found(&self) -> MutexGuard<'_, Option<BTreeSet<InstanceId>>> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Instance whose socket this is.
fn instance_id(socket: &Path) -> Option<InstanceId> {
    InstanceId::parse(socket.file_stem()?.to_str()?).ok()
}
