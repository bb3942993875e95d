//! The shapes of what the fleet policy hears and says. No decision is made here.

use crate::{Generation, InstanceNumber};
use std::time::Duration;

/// The parts of a manifest that decide the life of a generation's instances.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// So many instances are kept whether or not requests come.
    pub min: u32,
    /// So many at most, those that are on their way out included.
    pub max: u32,
    /// Without a request for this long an instance that is not needed stops. Deaths and adoptions do not make it longer.
    pub idle_timeout: Duration,
    /// From the start of the sandbox to ready.
    pub startup: Duration,
    /// For requests in flight when an instance has to go.
    pub drain: Duration,
    /// The longest that a request may run: its latest deadline.
    pub request: Duration,
}

/// Something happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The directory has this content. Told once for each change, also back to a content that was there before.
    Content {
        /// Its number.
        generation: Generation,
        /// What its manifest says.
        settings: Settings,
        /// It is known to have been ready once.
        proven: bool,
    },
    /// The directory has content that cannot be served.
    BadContent,
    /// The directory is gone, or the node shuts down.
    Removed,
    /// A request waits, and no lane takes it now or soon. Said again after an instance is gone and requests wait still.
    Demand,
    /// So many instances are wanted for the load there is. It starts further ones, never the first: that takes a
    /// request.
    Wanted(u32),
    /// Something is in flight on the instance now, or waits for its GPU memory.
    Busy(InstanceNumber),
    /// Nothing is any more.
    Idle(InstanceNumber),
    /// The environment is there.
    Prepared(Generation),
    /// It is not.
    PrepareFailed {
        /// Whose it was to be.
        generation: Generation,
        /// Trying again cannot help.
        permanent: bool,
    },
    /// The environment's build timed out: the next try is not before this time has passed.
    PrepareTimedOut {
        /// The generation.
        generation: Generation,
        /// The least pause.
        after: Duration,
    },
    /// The instance waited for its place and has it: it is being started from now on.
    Placed(InstanceNumber),
    /// There is no place for the instance, neither on a GPU nor within the node's budgets; there never was a process.
    NoPlace {
        /// Which.
        instance: InstanceNumber,
        /// Trying again cannot help: it would not fit on an empty node.
        hopeless: bool,
        /// There would be one in place of the model's instances that serve.
        in_place: bool,
    },
    /// An instance on the node has ended: there may be room now for what had no place.
    Room,
    /// Another model needs the place of this instance, which has nothing to do.
    Displaced(InstanceNumber),
    /// The launcher is away, so that nothing was asked of it, or not answered: there is no environment, and nothing of
    /// this instance if there was to be one. Nobody died of it.
    NotAsked {
        /// Whose it was to be.
        generation: Generation,
        /// What was to be started.
        instance: Option<InstanceNumber>,
    },
    /// The engine takes requests.
    Ready(InstanceNumber),
    /// The engine says that it cannot work with this content; `Gone` follows.
    EngineRefused(InstanceNumber),
    /// For an earlier scheduler this one took the traffic last, and was ready.
    Served {
        /// Which.
        generation: Generation,
        /// What its manifest says.
        settings: Settings,
    },
    /// An instance of an earlier scheduler serves on. Its number is from [`Fleet::next_number`](super::Fleet::next_number).
    Adopted {
        /// Which.
        instance: InstanceNumber,
        /// What it runs.
        generation: Generation,
        /// What the manifest says that it was started with.
        settings: Settings,
        /// Whether its engine is ready.
        ready: bool,
        /// Whether it is known that one of its generation was ready once.
        proven: bool,
    },
    /// All processes of the instance are gone, or none could be made.
    Gone(InstanceNumber),
    /// The engine broke the wire, or it or its worker does not answer.
    Unresponsive(InstanceNumber),
    /// Handlers of the instance ignore their cancellation: those requests are over for the clients, and not for the
    /// instance. Told again when what they leave of it changes.
    Overran {
        /// Which.
        instance: InstanceNumber,
        /// Other requests run in it.
        others: bool,
        /// It can run further ones.
        takes: bool,
    },
    /// The last of them has ended after all.
    Recovered(InstanceNumber),
    /// The launcher is lost: what it was asked is not going to be answered.
    LauncherLost,
    /// A person says start.
    Start,
    /// A person says stop.
    Stop,
    /// A person says restart.
    Restart,
    /// A person says that this generation, which served before, is to serve again.
    RollBack {
        /// Which.
        generation: Generation,
        /// What its manifest says: the policy may have forgotten it.
        settings: Settings,
    },
    /// Time passed; see [`Fleet::wake_at`](super::Fleet::wake_at).
    Tick,
}

/// Why an instance is stopped that does well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// It had no request for its `idle_timeout`.
    Idle,
    /// Another model needs its place.
    Displaced,
    /// A person said stop.
    Held,
    /// A person said restart.
    Restarted,
    /// Another version takes its place.
    Replaced,
    /// The model is gone, or the node shuts down.
    Removed,
}

/// What the model's task has to do, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Ask the launcher for the environment.
    Prepare(Generation),
    /// Tell the launcher that the environment is not waited for any more.
    Unprepare(Generation),
    /// Ask for a place, then the launcher, for an instance.
    Start {
        /// Its number, a new one.
        instance: InstanceNumber,
        /// What it runs.
        generation: Generation,
    },
    /// From now on this generation takes the traffic: its limits hold, its version is the model's. It may be cold.
    Serve(Generation),
    /// It serves and was ready for the first time: remember it as one to come back to.
    Proven(Generation),
    /// Let requests through to the instance.
    Open(InstanceNumber),
    /// Let no further requests through.
    Close(InstanceNumber),
    /// Cancel what is in flight on it.
    CancelInFlight(InstanceNumber),
    /// Say why an instance that does well begins to leave. It is closed, stopped or killed with this.
    Leaves {
        /// Which.
        instance: InstanceNumber,
        /// Why.
        why: Why,
    },
    /// Tell the worker to stop the engine.
    Stop(InstanceNumber),
    /// Kill the instance.
    Kill(InstanceNumber),
    /// Refuse everything that waits: the model cannot start now.
    RefuseWaiting,
    /// Nothing of it lives, and the policy does not know it any more.
    Forget(Generation),
    /// The model is gone: the task ends.
    End,
}
