//! Input and output of the [`Ledger`](super::Ledger): events, actions, view.

use super::{Amounts, Resource};
use crate::{Generation, Moment};
use std::sync::Arc;

/// Id of a request for capacity and of the reservation that it becomes, unique for the life of the scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReservationId(pub u64);

/// Zygote shared by the instances of one generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Zygote {
    /// Generation of the instances.
    pub generation: Generation,
    /// Limits of the zygote, in addition to theirs.
    pub need: Amounts,
}

/// Something that happened to a reservation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Capacity for an instance is requested.
    Request {
        /// New id.
        reservation: ReservationId,
        /// Model of the instance.
        model: Arc<str>,
        /// Limits of the instance.
        need: Amounts,
        /// Zygote it is forked from.
        zygote: Option<Zygote>,
        /// `min` of the model.
        min: u32,
        /// Why it is started.
        reason: StartReason,
        /// Current time.
        now: Moment,
    },
    /// Time has passed, and other instances may be idle now.
    Retry(Moment),
    /// An instance of an earlier scheduler is running.
    Adopted {
        /// New id.
        reservation: ReservationId,
        /// Model of the instance.
        model: Arc<str>,
        /// Limits of the instance.
        need: Amounts,
        /// Zygote it is forked from.
        zygote: Option<Zygote>,
        /// `min` of the model.
        min: u32,
    },
    /// The `min` of a model with a reservation has changed; one without sends it with its request.
    MinInstances {
        /// The model.
        model: Arc<str>,
        /// Instances kept without requests.
        min: u32,
    },
    /// The instance takes requests.
    Serving {
        /// Reservation of the instance.
        reservation: ReservationId,
        /// Start of its idle time; `None` while it has a request.
        idle_since: Option<Moment>,
    },
    /// The instance is stopping, for whatever reason.
    Leaving(ReservationId),
    /// The instance is gone, or its request is withdrawn.
    Gone {
        /// Reservation of the instance.
        reservation: ReservationId,
        /// Current time.
        now: Moment,
    },
}

/// Why an instance is started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StartReason {
    /// Requests, a command, or the model's `min`.
    Load,
    /// A new version, beside the serving one.
    Rollout,
    /// A start failed, and nothing has asked for an instance since.
    Retry,
}

/// Purpose of an instance, which decides which others make room for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// First serving instance of its model: a request waits for it.
    First,
    /// New version, beside the serving one.
    Candidate,
    /// Further instance of a serving model.
    ScaleUp,
    /// Retry of a model that failed to start, for which no request waits: no instance makes room for it.
    Retry,
}

/// Why a request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The instance needs more than the node's whole budget.
    TooBig {
        /// The exceeded resource.
        resource: Resource,
        /// The whole budget of it.
        budget: u64,
    },
    /// Other instances have the capacity and cannot be displaced.
    Full(Shortage),
}

/// Missing capacity, and why idle instances do not give it up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shortage {
    /// The missing resource.
    pub resource: Resource,
    /// Amount that is free.
    pub free: u64,
    /// Amount that all displaceable instances have together.
    pub idle: u64,
    /// Number of idle instances kept for the `min` of their models.
    pub kept: usize,
    /// Number of idle instances that had a request too short a time ago.
    pub recent: usize,
    /// The instance would fit if the model's own serving instances went first.
    pub recreate_fits: bool,
}

/// Decision to carry out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// The instance may start.
    Grant(ReservationId),
    /// The instance may not start; its id is forgotten.
    Refuse {
        /// Id of the request.
        reservation: ReservationId,
        /// Reason.
        refusal: Refusal,
    },
    /// The instance has to stop: its capacity is needed.
    Displace {
        /// Reservation of the instance.
        reservation: ReservationId,
        /// Model that gets its capacity.
        by: Arc<str>,
        /// Purpose of the instance that gets it.
        purpose: Purpose,
    },
    /// The idle zygotes of this model have to end: their capacity is needed.
    EndZygotes(Arc<str>),
}

/// Budgets of the node and what is committed of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct View {
    /// The budgets.
    pub budget: Amounts,
    /// Limits of all instances with a reservation, waiting and leaving ones included, and of idle zygotes.
    pub committed: Amounts,
    /// Number of granted reservations.
    pub reservations: usize,
    /// Number of instances that wait for one.
    pub waiting: usize,
}
