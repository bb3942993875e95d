//! Why a model has as many instances as it has.

use crate::{State, Stop};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How the number of a model's instances comes about.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Explain {
    /// The model's name.
    pub name: String,
    /// Where it is in its life.
    pub state: State,
    /// Instances that take requests.
    pub ready: u32,
    /// Instances that are there: also those that start or drain.
    pub instances: u32,
    /// Instances that are wanted.
    pub wanted: u32,
    /// Why.
    pub because: Because,
    /// `min-instances`.
    pub min: u32,
    /// `max-instances`.
    pub max: u32,
    /// Requests that one instance takes at once.
    pub concurrency: u32,
    /// Requests that run and wait.
    pub load: u32,
    /// Average of `load` over `average_seconds`.
    pub average: f64,
    /// The window of the average.
    pub average_seconds: f64,
    /// The greatest sustained load within `greatest_seconds`.
    pub greatest: f64,
    /// The window of the greatest load: what was wanted within it is wanted still.
    pub greatest_seconds: f64,
    /// Reason why there are fewer than wanted, or why the model is not ready.
    pub message: Option<String>,
    /// Why the last instance that did well was stopped.
    #[serde(default)]
    pub last_stop: Option<Stop>,
    /// Budgets of the node, and the share of one instance of this model.
    pub budgets: Budgets,
}

/// Reason for the wanted number of instances.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Because {
    /// Nothing asks for more than `min-instances`.
    Min,
    /// The load of now.
    Load,
    /// The load of the last while.
    RecentLoad,
    /// The load asks for more than `max-instances`.
    Max,
    /// The model was stopped by hand.
    Held,
}

impl Because {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Min, Self::Load, Self::RecentLoad, Self::Max, Self::Held];

    /// Name on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Min => "min",
            Self::Load => "load",
            Self::RecentLoad => "recent-load",
            Self::Max => "max",
            Self::Held => "held",
        }
    }
}

/// The node's budgets for all instances together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Budgets {
    /// Memory, in bytes.
    pub memory_bytes: Budget,
    /// Processor time, in thousandths of a core.
    pub cpu_millis: Budget,
    /// Processes and threads.
    pub processes: Budget,
}

/// A budget of the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Budget {
    /// Limit of one instance of this model.
    pub instance: u64,
    /// Sum of the limits of all instances of the node.
    pub committed: u64,
    /// The most of it; `None`: without a bound.
    pub limit: Option<u64>,
}
