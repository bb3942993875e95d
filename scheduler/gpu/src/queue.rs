//! Queue of events from models' actors to the GPU task: a handle for all, a [`Placement`] for each instance.
//!
//! Events wait here until the GPU task takes them. The queue is bounded by the instances that exist, so an event is
//! never refused: an instance sends each event once until it is answered, and of alternating `Busy` and `Idle` events
//! the last two are enough. Decisions go into the model's mailbox.

use super::view::View;
use omni_control_api as api;
use omni_node_protocol::id::InstanceId;
use omni_node_protocol::instance::{GpuUsage, ResidencyCommand, ResidencyReport};
use omni_node_protocol::launcher::{GpuMode, GpuSpec};
use omni_policy::capacity::{ReservationId, StartReason};
use omni_policy::residency::InstanceKey;
use omni_task::Mailbox;
use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{Notify, watch};

/// Decision about an instance's GPU memory, for its model's actor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// Start the instance with this specification.
    Placed(GpuSpec),
    /// Do not start the instance.
    Refused {
        /// Another try cannot help before the model or the node is changed.
        permanent: bool,
        /// The instance would fit if the model's serving instances went first.
        recreate_fits: bool,
        /// Reason for the node's operators; names no other model.
        message: String,
    },
    /// Send requests until [`Decision::Yield`]: the memory is on the card.
    Granted,
    /// Send no more requests, and call [`Placement::yielded`] when nothing is in flight.
    Yield,
    /// Send the worker this command; its report is passed to [`Placement::on_report`].
    Command {
        /// Number that the report carries.
        number: u64,
        /// The command, as the worker receives it.
        command: ResidencyCommand,
    },
    /// Ask the worker for its usage; the answer is passed to [`Placement::on_usage`].
    SampleUsage,
    /// End the instance.
    End {
        /// Another instance needs the place of this one, which did nothing wrong: its next request starts it again.
        displaced: bool,
        /// Reason for the node's operators; names no other model.
        message: String,
    },
}

/// Request for a place on a card.
#[derive(Debug)]
pub struct PlacementRequest {
    /// Name of the model.
    pub model: String,
    /// The instance.
    pub instance: InstanceId,
    /// Limit in bytes.
    pub limit: u64,
    /// Mode of its memory.
    pub mode: GpuMode,
    /// Reservation of the instance's capacity.
    pub reservation: ReservationId,
    /// Why the instance is started.
    pub reason: StartReason,
    /// Destination of the decisions.
    pub mailbox: Mailbox<(InstanceKey, Decision)>,
}

/// Event of an instance.
#[derive(Debug)]
pub(super) enum InstanceEvent {
    Place(Box<PlacementRequest>),
    Adopted { request: Box<PlacementRequest>, uuid: String, ready: bool },
    Ready,
    Want,
    Unwanted,
    Busy,
    Idle,
    Yielded,
    Used(GpuUsage),
    Moved(Box<ResidencyReport>),
    Gone,
}

impl InstanceEvent {
    /// Returns whether the event changes where the instance's memory is or moves. Others are frequent: they are
    /// published a little later, and no measurement of the card can contradict them.
    pub(super) fn moves_memory(&self) -> bool {
        match self {
            Self::Busy | Self::Idle | Self::Used(_) => false,
            Self::Place(_)
            | Self::Adopted { .. }
            | Self::Ready
            | Self::Want
            | Self::Unwanted
            | Self::Yielded
            | Self::Moved(_)
            | Self::Gone => true,
        }
    }
}

#[derive(Debug, Default)]
struct EventQueue {
    events: Mutex<Vec<(InstanceKey, InstanceEvent)>>,
    notify: Notify,
    keys: AtomicU64,
}

impl EventQueue {
    fn events(&self) -> MutexGuard<'_, Vec<(InstanceKey, InstanceEvent)>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, key: InstanceKey, event: InstanceEvent) {
        let mut events = self.events();
        match event {
            InstanceEvent::Busy | InstanceEvent::Idle if cancels_out(&mut events, key, &event) => {}
            InstanceEvent::Place(_)
            | InstanceEvent::Adopted { .. }
            | InstanceEvent::Ready
            | InstanceEvent::Want
            | InstanceEvent::Unwanted
            | InstanceEvent::Busy
            | InstanceEvent::Idle
            | InstanceEvent::Yielded
            | InstanceEvent::Used(_)
            | InstanceEvent::Moved(_)
            | InstanceEvent::Gone => events.push((key, event)),
        }
        drop(events);
        self.notify.notify_one();
    }
}

/// Removes the instance's last event if it is the opposite of this one and the event before equals this one. Returns
/// whether it did.
fn cancels_out(events: &mut Vec<(InstanceKey, InstanceEvent)>, key: InstanceKey, event: &InstanceEvent) -> bool {
    let mut own = events.iter().enumerate().rev().filter(|(_, (whose, _))| *whose == key);
    let (Some((last, (_, opposite))), Some((_, (_, same)))) = (own.next(), own.next()) else { return false };
    let back = matches!(
        (same, opposite, event),
        (InstanceEvent::Busy, InstanceEvent::Idle, InstanceEvent::Busy)
            | (InstanceEvent::Idle, InstanceEvent::Busy, InstanceEvent::Idle)
    );
    if back {
        events.remove(last);
    }
    back
}

/// Handle of the GPUs, for models' actors and for views.
#[derive(Debug, Clone)]
pub struct GpuHandle {
    queue: Arc<EventQueue>,
    view: watch::Receiver<View>,
}

impl GpuHandle {
    /// Requests a place for an instance: [`Decision::Placed`] or [`Decision::Refused`] follows.
    #[must_use]
    pub fn place(&self, request: PlacementRequest) -> Placement {
        self.placement(InstanceEvent::Place(Box::new(request)))
    }

    /// Adopts an instance of an earlier scheduler, on the card with this uuid. It is not granted.
    #[must_use]
    pub fn adopt(&self, request: PlacementRequest, uuid: &str, ready: bool) -> Placement {
        self.placement(InstanceEvent::Adopted { request: Box::new(request), uuid: uuid.to_owned(), ready })
    }

    fn placement(&self, event: InstanceEvent) -> Placement {
        let key = InstanceKey(self.queue.keys.fetch_add(1, Ordering::Relaxed));
        self.queue.push(key, event);
        Placement { key, queue: Arc::clone(&self.queue) }
    }

    /// View of the cards and the instances on them.
    #[must_use]
    pub fn view(&self) -> api::Gpus {
        self.view.borrow().now()
    }

    /// Ids of instances whose memory is not, or not all, on their card.
    #[must_use]
    pub fn away(&self) -> HashSet<String> {
        self.view.borrow().away()
    }
}

/// Place of an instance on a card. Dropped when the instance is gone, which frees it.
#[derive(Debug)]
pub struct Placement {
    key: InstanceKey,
    queue: Arc<EventQueue>,
}

impl Placement {
    /// Key that decisions about the instance carry.
    #[must_use]
    pub fn key(&self) -> InstanceKey {
        self.key
    }

    /// The engine is ready: the instance is granted from now on.
    pub fn ready(&self) {
        self.queue.push(self.key, InstanceEvent::Ready);
    }

    /// A request waits, and the instance is ready but not granted.
    pub fn request_grant(&self) {
        self.queue.push(self.key, InstanceEvent::Want);
    }

    /// No request waits any more.
    pub fn withdraw_request(&self) {
        self.queue.push(self.key, InstanceEvent::Unwanted);
    }

    /// The instance has requests in flight now, or none any more.
    pub fn busy(&self, busy: bool) {
        self.queue.push(self.key, if busy { InstanceEvent::Busy } else { InstanceEvent::Idle });
    }

    /// Answers [`Decision::Yield`]: nothing is in flight, and nothing will be until the next grant.
    pub fn yielded(&self) {
        self.queue.push(self.key, InstanceEvent::Yielded);
    }

    /// Passes on usage from the instance's accounting.
    pub fn on_usage(&self, usage: GpuUsage) {
        self.queue.push(self.key, InstanceEvent::Used(usage));
    }

    /// Passes on the report of a command.
    pub fn on_report(&self, report: ResidencyReport) {
        self.queue.push(self.key, InstanceEvent::Moved(Box::new(report)));
    }
}

impl Drop for Placement {
    fn drop(&mut self) {
        self.queue.push(self.key, InstanceEvent::Gone);
    }
}

/// Receiving side of the queue and publishing side of the view, for the GPU task.
#[derive(Debug)]
pub(super) struct QueueReceiver {
    queue: Arc<EventQueue>,
    pub(super) view: watch::Sender<View>,
}

impl QueueReceiver {
    /// Removes and returns the events since the last call, in order.
    pub(super) fn take(&self) -> Vec<(InstanceKey, InstanceEvent)> {
        std::mem::take(&mut *self.queue.events())
    }

    /// Waits for events.
    pub(super) async fn changed(&self) {
        self.queue.notify.notified().await;
    }
}

/// New queue: handle and receiver.
pub(super) fn new() -> (GpuHandle, QueueReceiver) {
    let (sender, view) = watch::channel(View::asking());
    let queue = Arc::new(EventQueue::default());
    (GpuHandle { queue: Arc::clone(&queue), view }, QueueReceiver { queue, view: sender })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::request;

    fn placements() -> ([Placement; 2], QueueReceiver) {
        let (handle, receiver) = new();
        let placed = [0, 1].map(|_| handle.place(request()));
        assert_eq!(receiver.take().len(), 2);
        (placed, receiver)
    }

    fn events(receiver: &QueueReceiver) -> String {
        let events = receiver.take();
        events.iter().map(|(key, event)| format!("{} {event:?}", key.0)).collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn requests_that_begin_and_end_take_two_events_at_most() {
        let ([one, two], receiver) = placements();
        for round in 0..1000 {
            one.busy(true);
            two.busy(round % 2 == 0);
            one.busy(false);
        }
        assert_eq!(events(&receiver), "0 Busy, 1 Busy, 1 Idle, 0 Idle");
        one.busy(true);
        one.busy(false);
        one.busy(true);
        assert_eq!(events(&receiver), "0 Busy");
    }

    #[test]
    fn events_in_between_keep_their_place() {
        let ([one, _two], receiver) = placements();
        one.busy(true);
        one.busy(false);
        one.yielded();
        one.request_grant();
        one.busy(true);
        assert_eq!(events(&receiver), "0 Busy, 0 Idle, 0 Yielded, 0 Want, 0 Busy");
    }

    #[test]
    fn a_dropped_placement_reports_that_the_instance_is_gone() {
        let ([one, two], receiver) = placements();
        drop(two);
        one.request_grant();
        assert_eq!(events(&receiver), "1 Gone, 0 Want");
    }

    #[tokio::test]
    async fn an_event_that_came_first_wakes_the_task() {
        let ([one, _two], receiver) = placements();
        one.request_grant();
        receiver.changed().await;
        assert_eq!(events(&receiver), "0 Want");
    }
}
