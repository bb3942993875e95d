//! GPUs of the node: discovery of the cards, and residency of instances' memory on them.
//!
//! One task ([`task`]) owns all cards. It feeds the policy ([`crate::policy::residency`]) and carries out its
//! decisions; a thread of its own ([`probe`]) talks to the driver. Models' tasks hold a [`Placement`] for each instance
//! with GPU memory ([`queue`]), through which they ask for a place and for grants; answers come as [`Decision`]
//! messages. The task never touches an instance: commands about memory go through the model's task, which owns it.

mod cuda;
mod displacement;
mod messages;
mod nvml;
mod placed;
mod probe;
mod queue;
mod settings;
mod task;
mod view;
pub(crate) mod wire;

pub use queue::{Decision, GpuHandle, Placement, PlacementRequest};

use crate::capacity::CapacityHandle;
use crate::metrics::GpuMetrics;
use crate::watchdog::Pulse;
use omni_config::node::Gpu;
use omni_machine::Probe;

/// Starts the task, and the thread that discovers the cards. On a node without cards every request for a place is
/// refused with the reason why there are none.
#[must_use]
pub fn start(config: &Gpu, capacity: CapacityHandle, metrics: GpuMetrics, pulse: Pulse) -> GpuHandle {
    let (handle, receiver) = queue::new();
    let probe = probe::start(config.clone());
    let config = config.clone();
    pulse.spawn(|pulse| task::run(config, probe, receiver, (capacity, metrics), pulse));
    handle
}

/// Discovers the cards that models could use here, as the task would. Blocks while the driver is stuck.
#[must_use]
pub fn found(config: &Gpu) -> Probe<Vec<omni_machine::Card>> {
    let card = |card: probe::Card| omni_machine::Card {
        index: card.index,
        minor: card.minor,
        name: card.name,
        total_bytes: card.total_bytes,
        unified: card.unified.into(),
    };
    probe::find(config).map(|(_, cards)| cards.into_iter().map(card).collect()).into()
}

/// Receiving side of the queue, for tests of its senders.
#[cfg(test)]
pub(crate) mod testing {
    use super::{GpuHandle, PlacementRequest, queue};
    use crate::mailbox::Mailbox;
    use crate::policy::capacity::{ReservationId, StartReason};
    use omni_node_protocol::id::InstanceId;
    use omni_node_protocol::launcher::GpuMode;
    use tokio::sync::mpsc;

    /// Request for one byte of a card, with a mailbox that is not read.
    pub(crate) fn request() -> PlacementRequest {
        let mailbox = Mailbox::new(mpsc::channel(1).0, |decision| decision);
        let instance = InstanceId::parse("0123456789ab").unwrap();
        let (model, mode, reason) = ("m".into(), GpuMode::Unified, StartReason::Load);
        PlacementRequest { model, instance, limit: 1, mode, reservation: ReservationId(0), reason, mailbox }
    }

    /// Receiver of the events.
    pub(crate) struct Listener(queue::QueueReceiver);

    impl Listener {
        /// Events since the last call.
        pub(crate) fn heard(&self) -> Vec<String> {
            self.0.take().iter().map(|(_, event)| format!("{event:?}")).collect()
        }
    }

    /// Queue without a task.
    pub(crate) fn listener() -> (GpuHandle, Listener) {
        let (handle, receiver) = queue::new();
        (handle, Listener(receiver))
    }
}
