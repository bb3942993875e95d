//! Input and output of the fleet policy: settings, events, actions.

use crate::{Generation, InstanceNumber};
use std::time::Duration;

/// Parts of a manifest that govern a generation's instances.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Instances kept without requests.
    pub min: u32,
    /// Most instances, stopping ones included.
    pub max: u32,
    /// Time without a request after which an unneeded instance stops. Deaths and adoptions do not prolong it.
    pub idle_timeout: Duration,
    /// Time from the start of the sandbox to ready.
    pub startup: Duration,
    /// Time that requests in flight get when an instance has to go.
    pub drain: Duration,
    /// Longest time a request may run: its latest deadline.
    pub request: Duration,
}

/// Something that happened to the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The directory has this content. Sent once for each change, also for a change back to an earlier content.
    Content {
        /// Generation of the content.
        generation: Generation,
        /// Settings from its manifest.
        settings: Settings,
        /// An instance of it is known to have been ready once.
        was_ready: bool,
    },
    /// The directory has content that cannot be served.
    UnservableContent,
    /// The directory is gone, or the node shuts down.
    Removed,
    /// A request waits, and no instance takes it now or soon. Sent again when an instance is gone and requests still
    /// wait.
    Demand,
    /// Number of instances the load calls for. Starts further instances, never the first: that takes a request.
    DesiredInstances(u32),
    /// The instance has a request in flight, or one waits for its GPU memory.
    Busy(InstanceNumber),
    /// The instance has nothing in flight any more.
    Idle(InstanceNumber),
    /// The environment is ready for use.
    Prepared(Generation),
    /// Preparing the environment failed.
    PrepareFailed {
        /// Generation whose environment failed.
        generation: Generation,
        /// Another try cannot help.
        permanent: bool,
    },
    /// The build of the environment timed out.
    PrepareTimedOut {
        /// Generation whose build timed out.
        generation: Generation,
        /// Shortest pause before the next try.
        after: Duration,
    },
    /// The instance was waiting for capacity and has it: its start begins now.
    Placed(InstanceNumber),
    /// Capacity was refused, on a GPU or within the node's budgets; no process was ever started.
    NoCapacity {
        /// The refused instance.
        instance: InstanceNumber,
        /// Another try cannot help: the instance would not fit on an empty node.
        permanent: bool,
        /// The instance would fit if the model's serving instances went first.
        recreate_fits: bool,
    },
    /// An instance on the node has ended: capacity may be free for a generation that was refused some.
    CapacityFreed,
    /// Another model takes the capacity of this instance, which is idle.
    Displaced(InstanceNumber),
    /// The launcher is away: it was not asked, or did not answer. There is no environment, and no process of the
    /// instance, if one was to be started. Not a failure of the model.
    LauncherUnavailable {
        /// Generation that was to be prepared or started.
        generation: Generation,
        /// Instance that was to be started.
        instance: Option<InstanceNumber>,
    },
    /// The engine takes requests.
    Ready(InstanceNumber),
    /// The engine reports that it cannot work with this content; `Gone` follows.
    ContentRejected(InstanceNumber),
    /// Generation that served last under an earlier scheduler, where it was ready.
    LastServed {
        /// The generation.
        generation: Generation,
        /// Settings from its manifest.
        settings: Settings,
    },
    /// An instance of an earlier scheduler goes on here. Its number is from
    /// [`Fleet::next_number`](super::Fleet::next_number).
    Adopted {
        /// The instance.
        instance: InstanceNumber,
        /// Generation it runs.
        generation: Generation,
        /// Settings of the manifest it was started with.
        settings: Settings,
        /// The engine is ready.
        ready: bool,
        /// An instance of its generation is known to have been ready once.
        was_ready: bool,
    },
    /// All processes of the instance are gone, or none could be started.
    Gone(InstanceNumber),
    /// The engine violated the protocol, or the engine or its worker does not answer.
    Unresponsive(InstanceNumber),
    /// Handlers of the instance ignore their cancellation: their requests are over for the clients, not for the
    /// instance. Sent again when a field changes.
    StuckHandlers {
        /// The instance.
        instance: InstanceNumber,
        /// Other requests run in it.
        other_requests: bool,
        /// The instance can run further requests.
        free_slots: bool,
    },
    /// The last stuck handler of the instance has ended after all.
    Recovered(InstanceNumber),
    /// The connection to the launcher is lost: no pending answer will come.
    LauncherLost,
    /// Command to prepare the newest content, and to start nothing for it.
    Pull,
    /// Command to start the model.
    Start,
    /// Command to stop the model and hold it.
    Stop,
    /// Command to replace the instances, or to try a refused content again.
    Restart,
    /// Command to serve this generation, which served before, again.
    RollBack {
        /// The generation.
        generation: Generation,
        /// Settings from its manifest: the policy may have forgotten them.
        settings: Settings,
    },
    /// Time passed; see [`Fleet::wake_at`](super::Fleet::wake_at).
    Tick,
}

/// Why a healthy instance is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopReason {
    /// No request for its `idle_timeout`.
    Idle,
    /// Another model takes its capacity.
    Displaced,
    /// The model is held by the `Stop` command.
    Held,
    /// The `Restart` command.
    Restarted,
    /// Another version replaces its generation.
    Replaced,
    /// The model is gone, or the node shuts down.
    Removed,
}

/// Steps for the model's actor to carry out, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Ask the launcher for the environment.
    Prepare(Generation),
    /// Withdraw the request for the environment.
    CancelPreparation(Generation),
    /// Reserve capacity for an instance, then have the launcher start it.
    Start {
        /// A new number.
        instance: InstanceNumber,
        /// Generation it runs.
        generation: Generation,
    },
    /// Route the traffic to this generation: its limits apply, its version is the model's. It may have no instance yet.
    Serve(Generation),
    /// Record the serving generation, which is ready for the first time, as a version to fall back on.
    RecordReady(Generation),
    /// Send requests to the instance.
    EnableRoute(InstanceNumber),
    /// Send no further requests to the instance.
    DisableRoute(InstanceNumber),
    /// Cancel the requests in flight on the instance.
    CancelInFlight(InstanceNumber),
    /// Report why a healthy instance leaves; the actions that stop it come with this one.
    Leaving {
        /// The instance.
        instance: InstanceNumber,
        /// Why it leaves.
        reason: StopReason,
    },
    /// Have the worker stop the engine.
    Stop(InstanceNumber),
    /// Kill the instance.
    Kill(InstanceNumber),
    /// Refuse all queued requests: the model cannot start now.
    RefuseWaiting,
    /// Drop what is known of a generation without instances, which the policy has forgotten.
    Forget(Generation),
    /// End the model's actor: the model is gone.
    End,
}
