//! The words of a model's life: what it is made of, where it is, what happens to it, and what its task has to do.
//!
//! Told to and by [`Lifecycle`](super::Lifecycle), which gives them their meaning.

use crate::policy::Moment;
use std::time::Duration;

/// The parts of a manifest that decide a life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Keep an instance whether or not requests come.
    pub always_on: bool,
    /// Without a request for this long the instance stops.
    pub idle_timeout: Duration,
    /// From the start of the sandbox to ready.
    pub startup: Duration,
    /// For requests in flight when the instance has to go.
    pub drain: Duration,
}

/// Where a model is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Phase {
    /// No process.
    Stopped,
    /// The launcher makes the environment. It bounds that time itself.
    Preparing,
    /// An instance is being started.
    Starting {
        /// Give up then.
        until: Moment,
    },
    /// The instance takes requests.
    Ready {
        /// Since when.
        since: Moment,
        /// Since when it has nothing to do.
        idle_since: Option<Moment>,
    },
    /// The instance finishes what it has.
    Draining {
        /// Then the rest is cancelled.
        until: Moment,
        /// What follows.
        then: Next,
    },
    /// The instance was told to stop, or killed.
    Stopping {
        /// Kill (again) then.
        until: Moment,
        /// What follows.
        then: Next,
    },
    /// It failed; the next try is at `until`.
    Waiting {
        /// The moment of the next try.
        until: Moment,
    },
    /// It cannot work with this content.
    Refused,
}

/// What follows when the instance is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Nothing, until a request comes.
    Rest,
    /// A new instance.
    Again,
    /// A new instance after a death: its tally counts.
    Replace,
}

/// Something happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The directory has new content, or its settings changed.
    Content(Settings),
    /// The directory has content that cannot be served.
    BadContent,
    /// The directory is gone, or the node shuts down.
    Removed,
    /// A request waits.
    Demand,
    /// Something is in flight now.
    Busy,
    /// Nothing is in flight any more.
    Idle,
    /// The environment is there.
    Prepared,
    /// It is not.
    PrepareFailed {
        /// Trying again cannot help.
        permanent: bool,
    },
    /// No process could be made.
    StartFailed,
    /// It has waited for a place on a GPU and got one: it is being started from now on.
    Placed,
    /// There is no place for it on a GPU; there never was a process.
    NoPlace {
        /// Trying again cannot help.
        hopeless: bool,
    },
    /// Another model needs its place, and it has nothing to do: it rests until its next request.
    Displaced,
    /// The engine takes requests.
    Ready,
    /// The engine says that it cannot work with this content; `Gone` follows.
    EngineRefused,
    /// An instance of an earlier scheduler serves on.
    Adopted {
        /// Whether its engine is ready.
        ready: bool,
        /// Whether it runs the present content.
        current: bool,
    },
    /// All processes of the instance are gone.
    Gone,
    /// A handler ignores its cancellation, or the engine broke the wire.
    Unresponsive,
    /// The launcher is lost: what it was asked is not going to be answered.
    LauncherLost,
    /// A person says start.
    Start,
    /// A person says stop.
    Stop,
    /// A person says restart.
    Restart,
    /// Time passed; see [`Lifecycle::wake_at`](super::Lifecycle::wake_at).
    Tick,
}

/// What the model's task has to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Ask the launcher for the environment.
    Prepare,
    /// Ask the launcher for an instance.
    StartInstance,
    /// Let requests through.
    Open,
    /// Let no further requests through.
    Close,
    /// Cancel what is in flight.
    CancelInFlight,
    /// Tell the worker to stop the engine.
    StopInstance,
    /// Kill the instance.
    KillInstance,
    /// Refuse everything that waits: the model cannot start now.
    RefuseWaiting,
    /// The model is gone: the task ends.
    End,
}
