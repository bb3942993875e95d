//! Events that come from the launcher: for the model that a request was made for, and for the node.

use omni_node_protocol::exit::ExitCause;
use omni_node_protocol::id::{EnvironmentKey, InstanceId, SnapshotDigest};
use omni_node_protocol::launcher::{BuildStage, WeightsStage};
use std::time::Duration;

/// Event for a model.
#[derive(Debug)]
pub enum ModelEvent {
    /// A line of the build of an environment.
    BuildLine(SnapshotDigest, String),
    /// Stage of the build of an environment.
    BuildStage(SnapshotDigest, BuildStage),
    /// Stage of fetching weights.
    WeightsStage(SnapshotDigest, WeightsStage),
    /// An environment is ready, and so are the weights.
    Prepared(SnapshotDigest, EnvironmentKey),
    /// An environment cannot be built.
    PrepareFailed {
        /// Content that it is for.
        snapshot: SnapshotDigest,
        /// Output of the builder.
        message: String,
        /// No retry can help.
        permanent: bool,
        /// Minimum pause before a retry, after a build that timed out.
        after: Option<Duration>,
    },
    /// A worker was started.
    WorkerStarted(InstanceId),
    /// A worker could not be started.
    StartFailed(InstanceId, String),
    /// The launcher that was to start a worker is lost, and nothing is left of what it may have done.
    StartNotRequested(InstanceId),
    /// A worker has exited.
    WorkerExited(InstanceId, ExitCause),
    /// The connection is lost: no answer comes to requests for environments.
    Lost,
}

/// Event for the node. Fields are those of `FromLauncher`.
#[derive(Debug)]
pub enum LauncherEvent {
    /// A directory and its content.
    Model {
        /// Name of the directory.
        name: String,
        /// Digest of its content.
        snapshot: SnapshotDigest,
        /// Text of its manifest, when it has one.
        manifest: Option<String>,
    },
    /// A directory of which no snapshot can be taken.
    Refused {
        /// Name of the directory.
        name: String,
        /// Reason.
        message: String,
        /// The directory has no `model.py` and no manifest: it is no model.
        no_model: bool,
    },
    /// A directory was removed.
    Gone {
        /// Name of the directory.
        name: String,
    },
    /// All directories were reported once.
    Scanned,
    /// An instance runs that no model of this scheduler has requested or adopted.
    UnknownInstance {
        /// The instance.
        instance: InstanceId,
    },
    /// The connection is lost.
    Lost,
}
