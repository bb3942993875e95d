//! What the [`Ledger`](super::Ledger) of the node's capacity is told, what it says, and what there is to see of it.

use super::{Amounts, Resource};
use crate::{Generation, Moment};
use std::sync::Arc;

/// Id of a request for capacity and of the reservation that it becomes, unique for the life of the scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReservationId(pub u64);

/// What the instances of one generation of a model have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Zygote {
    /// Theirs.
    pub generation: Generation,
    /// What it may use beside them.
    pub need: Amounts,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// An instance wants to start.
    Request {
        /// Its seat.
        reservation: ReservationId,
        /// Whose it is.
        model: Arc<str>,
        /// What it may use.
        need: Amounts,
        /// What it comes from.
        zygote: Option<Zygote>,
        /// The model's `min`.
        min: u32,
        /// Why it is asked for.
        reason: StartReason,
        /// The time.
        now: Moment,
    },
    /// Time has passed, and who is idle may have changed.
    Retry(Moment),
    /// An instance of an earlier scheduler, which is there already.
    Adopted {
        /// Its seat.
        reservation: ReservationId,
        /// Whose it is.
        model: Arc<str>,
        /// What it may use.
        need: Amounts,
        /// What it comes from.
        zygote: Option<Zygote>,
        /// The model's `min`.
        min: u32,
    },
    /// A model's `min` is this from now on. One without a seat says it when it asks.
    MinInstances {
        /// Of this model.
        model: Arc<str>,
        /// Instances that are kept without requests.
        min: u32,
    },
    /// It takes requests.
    Serving {
        /// The instance's seat.
        reservation: ReservationId,
        /// Since when it has none; `None` while it has one.
        idle_since: Option<Moment>,
    },
    /// It is on its way out, for whatever reason.
    Leaving(ReservationId),
    /// It is gone, or does not want to start any more.
    Gone {
        /// The instance's seat.
        reservation: ReservationId,
        /// The time.
        now: Moment,
    },
}

/// Why an instance is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StartReason {
    /// Requests, a person's word, or the model's `min`.
    Load,
    /// A new version, beside the one that serves.
    Rollout,
    /// A start has failed, and since then nothing has asked.
    Retry,
}

/// What an instance is for: that decides who makes room for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// The first one of its model that serves: a request waits for it.
    First,
    /// A new version, beside the one that serves.
    Candidate,
    /// One more of a model that serves.
    ScaleUp,
    /// Another try of a model that failed to start, for which nobody waits: no instance makes room for it.
    Retry,
}

/// Why there is no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The node's whole budget is less.
    TooBig {
        /// Of this.
        resource: Resource,
        /// The whole budget.
        budget: u64,
    },
    /// Reclaimable have it, and cannot be displaced.
    Full(Shortage),
}

/// What others have, and why they keep it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shortage {
    /// This is missing.
    pub resource: Resource,
    /// What is left of it.
    pub free: u64,
    /// What all that may be displaced have of it together.
    pub idle: u64,
    /// Idle instances that their models keep for their `min`.
    pub kept: usize,
    /// Idle instances that had a request too short a while ago.
    pub recent: usize,
    /// There would be room in place of the model's own instances that serve.
    pub recreate_fits: bool,
}

/// What to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// It may start.
    Grant(ReservationId),
    /// It may not start, now or ever.
    Refuse {
        /// The asker.
        reservation: ReservationId,
        /// Why.
        refusal: Refusal,
    },
    /// This instance has to go: its room is needed.
    Displace {
        /// Its seat.
        reservation: ReservationId,
        /// The model that has its room then.
        by: Arc<str>,
        /// What that needs it for.
        purpose: Purpose,
    },
    /// The zygotes of this model that have no instances have to go: their room is needed.
    EndZygotes(Arc<str>),
}

/// The node's budgets and what is promised of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct View {
    /// What there is.
    pub budget: Amounts,
    /// What all who have a seat, wait for one or leave one may use, and zygotes that wait for the next instance.
    pub committed: Amounts,
    /// Instances that have a seat.
    pub reservations: usize,
    /// Instances that wait for one.
    pub waiting: usize,
}
