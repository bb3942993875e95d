//! The node's room for instances: memory, processor time and processes, shared out by [`crate::policy::capacity`].
//!
//! A model's task asks for a [`Reservation`] before it starts an instance, and drops it when the instance is gone. The
//! ledger is behind a lock that nobody holds for longer than one step; answers come into the model's inbox as [`Decision`],
//! carried by one task, in the order in which they were decided. Being busy or idle, which changes with every request,
//! is a number in the seat that is looked at when somebody asks.

mod card_displacement;
mod messages;
mod reservation;
mod settings;
mod waiters;

pub use messages::retained;
pub use reservation::{CapacityHandle, Decision, DisplacedFrom, Reservation, ReservationRequest};
pub use settings::{need, zygote_need};

use crate::machine;
use crate::metrics::CapacityMetrics;
use crate::policy::capacity::ZYGOTE_LINGER;
use crate::watchdog::Pulse;
use omni_config::node::Capacity;
use omni_node_protocol::zygote::LINGER;
use std::time::Instant;

const _: () =
    assert!(ZYGOTE_LINGER.as_nanos() == LINGER.as_nanos(), "the policy counts a zygote for as long as it waits");

/// Starts the task that carries the answers. `started`: when the scheduler did.
#[must_use]
pub fn start(config: &Capacity, metrics: CapacityMetrics, started: Instant, pulse: Pulse) -> CapacityHandle {
    let (handle, answers) = reservation::new(settings::budget(config, machine::memory()), metrics, started);
    pulse.spawn(|pulse| answers.run(pulse));
    handle
}
