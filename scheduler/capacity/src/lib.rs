//! Capacity of the node: memory, processor time and processes, shared out by [`omni_policy::capacity`].
//!
//! A model's actor requests a [`Reservation`] before it starts an instance, and drops it when the instance is gone. The
//! ledger is behind a lock that is held for one step at most; decisions reach the model as [`Decision`] messages,
//! delivered by one task in the order in which they were made. An instance's idle time, which changes with every
//! request, is an atomic of its reservation that is read when a request for capacity is decided.
#![forbid(unsafe_code)]

mod card_displacement;
mod messages;
mod metrics;
mod reservation;
mod settings;

pub use messages::retained;
pub use metrics::CapacityMetrics;
pub use reservation::{CapacityHandle, Decision, DisplacedFrom, Reservation, ReservationRequest};
pub use settings::{need, zygote_need};

use omni_config::node::Capacity;
use omni_node_protocol::zygote::LINGER;
use omni_policy::capacity::ZYGOTE_LINGER;
use omni_task::Heartbeat;
use std::time::Instant;

const _: () =
    assert!(ZYGOTE_LINGER.as_nanos() == LINGER.as_nanos(), "the policy counts a zygote for as long as it waits");

/// Starts the task that delivers decisions. `started` is the start of the scheduler.
#[must_use]
pub fn start(config: &Capacity, metrics: CapacityMetrics, started: Instant, heartbeat: Heartbeat) -> CapacityHandle {
    let (handle, decisions) = reservation::new(settings::budget(config, omni_machine::memory()), metrics, started);
    heartbeat.spawn(|heartbeat| decisions.run(heartbeat));
    handle
}
