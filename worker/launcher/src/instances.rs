//! Instances of this node, each with its phase and its user id.

use super::records::InstanceRecord;
use super::running::Running;
use super::uids::UidSlots;
use omni_node_protocol::id::{InstanceId, SnapshotDigest};
use omni_weights::Digest;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd};

/// An instance, from the request to the last of its traces.
#[derive(Debug)]
pub(super) struct Instance {
    pub(super) model: String,
    pub(super) snapshot: SnapshotDigest,
    /// Set of fetched weights that it has mounted.
    weights: Option<Digest>,
    uid: u32,
    pub(super) phase: Phase,
}

/// Where an instance is in its life.
#[derive(Debug)]
pub(super) enum Phase {
    /// A thread starts it; `kill` when it shall end as soon as it is there.
    Starting { kill: bool },
    /// The worker lives.
    Running(Running),
    /// A thread removes its traces.
    Ending,
}

/// All instances, and the user ids that they have.
pub(super) struct Instances {
    living: BTreeMap<InstanceId, Instance>,
    /// Zygotes have theirs from here too.
    pub(super) uids: UidSlots,
}

impl Instances {
    /// None yet.
    pub(super) fn new(uids: UidSlots) -> Self {
        Self { living: BTreeMap::new(), uids }
    }

    /// A new instance, with its zygote's user id or one of its own; `None` when there is none, or the instance exists.
    pub(super) fn begin(
        &mut self,
        id: &InstanceId,
        model: String,
        snapshot: SnapshotDigest,
        weights: Option<Digest>,
        zygote: Option<u32>,
    ) -> Option<u32> {
        if self.living.contains_key(id) {
            return None;
        }
        let uid = match zygote {
            Some(uid) => {
                self.uids.share(uid);
                uid
            }
            None => self.uids.take()?,
        };
        let phase = Phase::Starting { kill: false };
        self.living.insert(id.clone(), Instance { model, snapshot, weights, uid, phase });
        Some(uid)
    }

    /// An instance of an earlier launcher.
    pub(super) fn adopt(&mut self, id: InstanceId, record: InstanceRecord, running: Running) {
        self.uids.share(record.uid);
        let InstanceRecord { worker: _, uid, model, snapshot, weights } = record;
        self.living.insert(id, Instance { model, snapshot, weights, uid, phase: Phase::Running(running) });
    }

    /// Records that nothing of an instance is left: its user id may be given to another.
    pub(super) fn end(&mut self, id: &InstanceId) {
        if let Some(instance) = self.living.remove(id) {
            self.uids.give_back(instance.uid);
        }
    }

    pub(super) fn get_mut(&mut self, id: &InstanceId) -> Option<&mut Instance> {
        self.living.get_mut(id)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.living.is_empty()
    }

    /// How many are being started.
    pub(super) fn starting(&self) -> usize {
        self.living.values().filter(|instance| matches!(instance.phase, Phase::Starting { .. })).count()
    }

    /// For poll: workers whose end is to be seen.
    pub(super) fn running(&self) -> impl Iterator<Item = (&InstanceId, BorrowedFd<'_>)> {
        self.living.iter().filter_map(|(id, instance)| match &instance.phase {
            Phase::Running(running) => Some((id, running.pidfd.as_fd())),
            Phase::Starting { .. } | Phase::Ending => None,
        })
    }

    /// Models that have instances, in any phase.
    pub(super) fn models(&self) -> impl Iterator<Item = &str> {
        self.living.values().map(|instance| instance.model.as_str())
    }

    /// Contents that they run.
    pub(super) fn snapshots(&self) -> impl Iterator<Item = &SnapshotDigest> {
        self.living.values().map(|instance| &instance.snapshot)
    }

    /// Sets of fetched weights that they have mounted.
    pub(super) fn weights(&self) -> impl Iterator<Item = &Digest> {
        self.living.values().filter_map(|instance| instance.weights.as_ref())
    }
}
