//! Where models' tasks and the GPU task meet: a handle for all, a seat for each instance.
//!
//! What an instance says waits here until the GPU task takes it. That is bounded by the instances that exist, so that
//! nothing is ever refused for want of room: an instance says each thing once until it is answered, and of being busy
//! and idle by turns the last two words are enough. What the GPU task says goes into the model's inbox.

use super::view::View;
use crate::mailbox::Mailbox;
use crate::policy::capacity::{ReservationId, StartReason};
use crate::policy::residency::{Command, InstanceKey};
use omni_control_api as api;
use omni_node_protocol::id::InstanceId;
use omni_node_protocol::instance::{GpuReport, GpuUse};
use omni_node_protocol::launcher::{GpuMode, GpuSpec};
use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{Notify, watch};

/// What a model's task is told of its instance's GPU memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// Start it, with this.
    Placed(GpuSpec),
    /// Do not start it.
    Refused {
        /// Trying again cannot help before somebody changes the model or the node.
        permanent: bool,
        /// There would be room in place of the model's instances that serve.
        recreate_fits: bool,
        /// Why, for people on the node; names no other model.
        message: String,
    },
    /// Its memory is on the card: send requests until [`Decision::Yield`].
    Granted,
    /// Send no more requests, and say so ([`Placement::yielded`]) when nothing is in flight.
    Yield,
    /// Send the worker this order; its report goes back with [`Placement::moved`].
    Command {
        /// Comes back in the report.
        number: u64,
        /// What to do.
        command: Command,
    },
    /// Ask the worker what it uses; the answer goes back with [`Placement::used`].
    Report,
    /// End the instance.
    End {
        /// It did nothing wrong: another one needs its place, and its next request starts it again.
        displaced: bool,
        /// Why, for people on the node; names no other model.
        message: String,
    },
}

/// Who asks for a place.
#[derive(Debug)]
pub struct PlacementRequest {
    /// The model's name.
    pub model: String,
    /// The instance.
    pub instance: InstanceId,
    /// Its limit, in bytes.
    pub limit: u64,
    /// Whether its memory can be moved.
    pub mode: GpuMode,
    /// Its share of the node.
    pub reservation: ReservationId,
    /// Why an instance is asked for.
    pub reason: StartReason,
    /// Where the answers go.
    pub mailbox: Mailbox<(InstanceKey, Decision)>,
}

/// What an instance says.
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
    Used(GpuUse),
    Moved(Box<GpuReport>),
    Gone,
}

impl InstanceEvent {
    /// Whether it changes where the instance's memory is or goes. The others are said again and again: they are shown a
    /// little later, and there is nothing in them that a look at the card could contradict.
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

/// Whether the instance said this already and then the opposite, and nothing else since: the opposite is taken back.
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

/// For models' tasks and for who wants to see the cards.
#[derive(Debug, Clone)]
pub struct GpuHandle {
    queue: Arc<EventQueue>,
    view: watch::Receiver<View>,
}

impl GpuHandle {
    /// Asks for a place for an instance that is to be started: [`Decision::Placed`] or [`Decision::Refused`] follows.
    #[must_use]
    pub fn place(&self, request: PlacementRequest) -> Placement {
        self.placement(InstanceEvent::Place(Box::new(request)))
    }

    /// An instance of an earlier scheduler, on the card with this uuid. It is not granted.
    #[must_use]
    pub fn adopt(&self, request: PlacementRequest, uuid: &str, ready: bool) -> Placement {
        self.placement(InstanceEvent::Adopted { request: Box::new(request), uuid: uuid.to_owned(), ready })
    }

    fn placement(&self, event: InstanceEvent) -> Placement {
        let key = InstanceKey(self.queue.keys.fetch_add(1, Ordering::Relaxed));
        self.queue.push(key, event);
        Placement { key, queue: Arc::clone(&self.queue) }
    }

    /// The cards and who is on them.
    #[must_use]
    pub fn view(&self) -> api::Gpus {
        self.view.borrow().now()
    }

    /// The instances whose memory is not, or not all, on their card.
    #[must_use]
    pub fn away(&self) -> HashSet<String> {
        self.view.borrow().away()
    }
}

/// An instance's place in the ledger. Dropped when the instance is gone, which frees what it had.
#[derive(Debug)]
pub struct Placement {
    key: InstanceKey,
    queue: Arc<EventQueue>,
}

impl Placement {
    /// Which instance the answers are for.
    #[must_use]
    pub fn key(&self) -> InstanceKey {
        self.key
    }

    /// Its engine is ready: it is granted from now on.
    pub fn ready(&self) {
        self.queue.push(self.key, InstanceEvent::Ready);
    }

    /// A request waits, and the instance is ready and not granted.
    pub fn want(&self) {
        self.queue.push(self.key, InstanceEvent::Want);
    }

    /// No request waits any more.
    pub fn unwanted(&self) {
        self.queue.push(self.key, InstanceEvent::Unwanted);
    }

    /// Something is in flight now, or nothing is any more.
    pub fn busy(&self, busy: bool) {
        self.queue.push(self.key, if busy { InstanceEvent::Busy } else { InstanceEvent::Idle });
    }

    /// The answer to [`Decision::Yield`]: nothing is in flight, and nothing will be until it is granted again.
    pub fn yielded(&self) {
        self.queue.push(self.key, InstanceEvent::Yielded);
    }

    /// What its accounting says.
    pub fn used(&self, usage: GpuUse) {
        self.queue.push(self.key, InstanceEvent::Used(usage));
    }

    /// What came of an order.
    pub fn moved(&self, report: GpuReport) {
        self.queue.push(self.key, InstanceEvent::Moved(Box::new(report)));
    }
}

impl Drop for Placement {
    fn drop(&mut self) {
        self.queue.push(self.key, InstanceEvent::Gone);
    }
}

/// The ends that stay with the GPU task.
#[derive(Debug)]
pub(super) struct QueueReceiver {
    queue: Arc<EventQueue>,
    pub(super) view: watch::Sender<View>,
}

impl QueueReceiver {
    /// What was said since the last look, in order.
    pub(super) fn take(&self) -> Vec<(InstanceKey, InstanceEvent)> {
        std::mem::take(&mut *self.queue.events())
    }

    /// Waits until something was said.
    pub(super) async fn changed(&self) {
        self.queue.notify.notified().await;
    }
}

/// A desk, seen from both sides.
pub(super) fn new() -> (GpuHandle, QueueReceiver) {
    let (sender, view) = watch::channel(View::asking());
    let queue = Arc::new(EventQueue::default());
    (GpuHandle { queue: Arc::clone(&queue), view }, QueueReceiver { queue, view: sender })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::testing::request;

    fn seats() -> ([Placement; 2], QueueReceiver) {
        let (handle, receiver) = new();
        let seats = [0, 1].map(|_| handle.place(request()));
        assert_eq!(receiver.take().len(), 2);
        (seats, receiver)
    }

    fn said(receiver: &QueueReceiver) -> String {
        let events = receiver.take();
        events.iter().map(|(key, event)| format!("{} {event:?}", key.0)).collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn work_that_begins_and_ends_takes_two_words_at_most() {
        let ([one, two], receiver) = seats();
        for round in 0..1000 {
            one.busy(true);
            two.busy(round % 2 == 0);
            one.busy(false);
        }
        assert_eq!(said(&receiver), "0 Busy, 1 Busy, 1 Idle, 0 Idle");
        one.busy(true);
        one.busy(false);
        one.busy(true);
        assert_eq!(said(&receiver), "0 Busy");
    }

    #[test]
    fn what_was_said_in_between_keeps_its_place() {
        let ([one, _two], receiver) = seats();
        one.busy(true);
        one.busy(false);
        one.yielded();
        one.want();
        one.busy(true);
        assert_eq!(said(&receiver), "0 Busy, 0 Idle, 0 Yielded, 0 Want, 0 Busy");
    }

    #[test]
    fn a_dropped_seat_says_that_the_instance_is_gone() {
        let ([one, two], receiver) = seats();
        drop(two);
        one.want();
        assert_eq!(said(&receiver), "1 Gone, 0 Want");
    }

    #[tokio::test]
    async fn a_word_wakes_the_task_also_when_it_came_first() {
        let ([one, _two], receiver) = seats();
        one.want();
        receiver.changed().await;
        assert_eq!(said(&receiver), "0 Want");
    }
}
