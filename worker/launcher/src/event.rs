//! Events of the launcher's threads for its main loop: a bounded queue, and a descriptor that can be polled for it.

use super::node_files::NodeFile;
use super::running::Running;
use nix::errno::Errno;
use nix::sys::eventfd::{EfdFlags, EventFd};
use omni_environment::{Ended, Failure, Plan, PlanJob};
use omni_node_protocol::exit::ExitCause;
use omni_node_protocol::id::{EnvironmentKey, InstanceId, SnapshotDigest};
use omni_weights::{Digest, Report};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};

/// Events that wait for the main loop; a thread with one more waits itself.
const WAITING: usize = 1024;

/// Something happened in a thread.
#[derive(Debug)]
pub(super) enum Event {
    /// The watcher saw a model.
    Model { name: String, state: ModelState },
    /// The watcher has reported every model once.
    Scanned,
    /// The folder of a content's weights was looked at.
    FolderChecked { job: Box<PlanJob>, checked: Result<(), String> },
    /// The files of a content's weights that the node reads were opened.
    WeightsOpened { snapshot: SnapshotDigest, files: Option<Vec<NodeFile>> },
    /// The copy of a version that a model comes back to was compared with its digest.
    Verified { job: Box<PlanJob>, intact: Result<bool, String> },
    /// The environment of a snapshot was planned.
    Planned { model: String, snapshot: SnapshotDigest, plan: Result<Plan, Failure> },
    /// A line of a build.
    BuildLine { key: EnvironmentKey, line: String },
    /// A build ended.
    BuildEnded { key: EnvironmentKey, ended: Ended },
    /// The downloader of weights reported something.
    WeightsReport { key: Digest, report: Report },
    /// A downloader of weights ended, and its files are taken over.
    WeightsEnded { key: Digest, result: Result<Digest, Failure> },
    /// A start ended.
    Started { instance: InstanceId, result: Result<Running, String> },
    /// The start of a zygote ended.
    ZygoteStarted { id: InstanceId, result: Result<Running, String> },
    /// A zygote is gone with all its traces.
    ZygoteGone { id: InstanceId, cause: ExitCause },
    /// An instance is gone with all its traces.
    Gone { instance: InstanceId, cause: ExitCause },
}

/// A directory of the models folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ModelState {
    /// A snapshot is in the store.
    Taken { snapshot: SnapshotDigest, manifest: Option<String> },
    /// No snapshot can be taken.
    Refused { message: String },
    /// Not a model, by its place or its name, though there is a `model.py` or an `omni.toml` in it.
    NoModel { message: String },
    /// The directory was removed.
    Gone,
}

/// The threads' end.
#[derive(Clone)]
pub(super) struct Events {
    queue: SyncSender<Event>,
    bell: Arc<EventFd>,
}

/// The main loop's end.
pub(super) struct Inbox {
    queue: Receiver<Event>,
    bell: Arc<EventFd>,
}

/// Both ends of a new queue.
pub(super) fn queue() -> Result<(Events, Inbox), Errno> {
    let bell = Arc::new(EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?);
    let (sender, receiver) = sync_channel(WAITING);
    Ok((Events { queue: sender, bell: Arc::clone(&bell) }, Inbox { queue: receiver, bell }))
}

impl Events {
    /// Tells the main loop. `false` when there is none any more: the thread should end.
    pub(super) fn send(&self, event: Event) -> bool {
        // The counter cannot overflow: it is set back before 1024 events are read.
        self.queue.send(event).is_ok() && self.bell.write(1).is_ok()
    }
}

impl Inbox {
    /// Everything that waits, at most [`WAITING`] events.
    pub(super) fn take(&self) -> Vec<Event> {
        // First the bell, then the queue: an event that comes between rings again.
        let _ = self.bell.read(); // EAGAIN: nobody rang
        let mut events = Vec::new();
        while events.len() < WAITING {
            match self.queue.try_recv() {
                Ok(event) => events.push(event),
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => return events,
            }
        }
        let _ = self.bell.write(1); // there may be more
        events
    }
}

impl AsFd for Inbox {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}
