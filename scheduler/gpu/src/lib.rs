//! GPUs of the node: discovery of the cards, and residency of instances' memory on them.
//!
//! One task ([`task`]) owns all cards. It feeds the policy ([`omni_policy::residency`]) and carries out its
//! decisions; a thread of its own ([`probe`]) talks to the driver. Models' tasks hold a [`Placement`] for each instance
//! with GPU memory ([`queue`]), through which they ask for a place and for grants; answers come as [`Decision`]
//! messages. The task never touches an instance: commands about memory go through the model's actor, which owns it.

mod cuda;
mod displacement;
mod messages;
mod metrics;
mod moves;
mod nvml;
mod placed;
mod probe;
mod queue;
mod settings;
mod task;
mod view;
mod wire;

pub use metrics::{GpuMetrics, SECONDS};
pub use queue::{Decision, GpuHandle, Placement, PlacementRequest};

use omni_capacity::CapacityHandle;
use omni_config::node::Gpu;
use omni_machine::Probe;
use omni_task::Heartbeat;

/// Starts the task, and the thread that discovers the cards. On a node without cards every request for a place is
/// refused with the reason why there are none.
#[must_use]
pub fn start(config: &Gpu, capacity: CapacityHandle, metrics: GpuMetrics, heartbeat: Heartbeat) -> GpuHandle {
    let (handle, receiver) = queue::new();
    let probe = probe::start(config.clone());
    let config = config.clone();
    heartbeat.spawn(|heartbeat| task::run(config, probe, receiver, (capacity, metrics), heartbeat));
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
#[cfg(any(test, feature = "testing"))]
pub mod testing {
    use super::{GpuHandle, PlacementRequest, queue};
    use omni_node_protocol::id::InstanceId;
    use omni_node_protocol::launcher::GpuMode;
    use omni_policy::capacity::{ReservationId, StartReason};
    use omni_task::Mailbox;
    use tokio::sync::mpsc;

    /// Request for one byte of a card, with a mailbox that is not read.
    #[allow(clippy::unwrap_used, reason = "a constant of tests")]
    #[must_use]
    pub fn request() -> PlacementRequest {
        let mailbox = Mailbox::new(mpsc::channel(1).0, |decision| decision);
        let instance = InstanceId::parse("0123456789ab").unwrap();
        let (model, mode, reason) = ("m".into(), GpuMode::Unified, StartReason::Load);
        PlacementRequest { model, instance, limit: 1, mode, reservation: ReservationId(0), reason, mailbox }
    }

    /// Receiver of the events.
    #[derive(Debug)]
    pub struct Listener(queue::QueueReceiver);

    impl Listener {
        /// Events since the last call.
        pub fn heard(&self) -> Vec<String> {
            self.0.take().iter().map(|(_, event)| format!("{event:?}")).collect()
        }
    }

    /// Queue without a task.
    #[must_use]
    pub fn listener() -> (GpuHandle, Listener) {
        let (handle, receiver) = queue::new();
        (handle, Listener(receiver))
    }
}
