//! The node and the instances that an earlier scheduler left: found by their sockets, handed to their models or ended.

use super::Node;
use crate::model::services::instances_dir;
use crate::model::worker_link::{self, WorkerLink};
use crate::model::{Adoption, Message};
use omni_config::name::ModelName;
use omni_node_protocol::id::InstanceId;
use omni_node_protocol::instance::{ToWorker, Welcome};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{MutexGuard, PoisonError};

impl Node {
    /// Takes over the instances that an earlier scheduler left.
    pub(super) async fn adopt_all(&self, elsewhere: &BTreeMap<InstanceId, u32>) {
        let directory = instances_dir(&self.context.runtime_dir);
        let Ok(entries) = std::fs::read_dir(&directory) else { return };
        let sockets: Vec<PathBuf> = entries
            .flatten()
            .map(|entry| entry.path())
            .filter(|path| path.extension().is_some_and(|e| e == "sock"))
            .collect();
        *self.found() = Some(sockets.iter().filter_map(|path| instance_of(path)).collect());
        let mut connecting = tokio::task::JoinSet::new();
        for path in sockets {
            connecting.spawn(async move { (WorkerLink::connect(&path, 0, worker_link::ALIVE).await, path) });
        }
        while let Some(Ok((connected, path))) = connecting.join_next().await {
            match connected {
                Ok((link, welcome)) => {
                    let elsewhere = elsewhere.get(&welcome.instance).copied().unwrap_or(0);
                    self.adopt(link, welcome, elsewhere).await;
                }
                Err(error) => {
                    let (socket, error) = (path.display(), omni_log::chain(&error));
                    match instance_of(&path) {
                        Some(id) if elsewhere.contains_key(&id) => {
                            tracing::warn!(%socket, error, "instance not adopted: it is ended when it has answered what it has");
                            self.foreign().insert(id);
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

    async fn adopt(&self, link: WorkerLink, welcome: Welcome, elsewhere: u32) {
        let Ok(name) = ModelName::try_from(welcome.model.clone()) else { return };
        if welcome.ending {
            // Its worker keeps to the time it was given, and the launcher removes what it leaves.
            tracing::info!(model = %name, instance = %welcome.instance, "an instance is about to end");
            tokio::spawn(link.outlast());
            return;
        }
        let text = Some(welcome.note.clone()).filter(|note| !note.is_empty());
        match self.content(&name, welcome.snapshot.clone(), text) {
            Ok(content) => {
                let adoption = Adoption { welcome, link, content, external_requests: elsewhere };
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

    /// An instance runs that no task has. One that was found is being adopted; any other was asked for by a scheduler that is
    /// gone, and nobody would ever end it.
    pub(super) fn meet(&self, stranger: InstanceId) {
        if self.found().as_ref().is_some_and(|found| !found.contains(&stranger)) {
            let why = "an earlier scheduler has asked for it, and this one has not found it";
            tracing::warn!(instance = %stranger, "an instance is ended: {why}");
            self.launcher.kill(stranger);
        }
    }

    fn found(&self) -> MutexGuard<'_, Option<BTreeSet<InstanceId>>> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whose socket this is.
fn instance_of(socket: &Path) -> Option<InstanceId> {
    InstanceId::parse(socket.file_stem()?.to_str()?).ok()
}
