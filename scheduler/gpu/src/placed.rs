//! State of an instance in the GPU task ([`super::task`]) beside the policy's.

use super::moves::Moves;
use super::queue::{InstanceEvent, PlacementRequest};
use super::wire::Memory;
use omni_policy::residency::{CardIndex, Command};
use std::time::Instant;

/// Instance that requested a place, until it is gone.
pub(super) struct PlacedInstance {
    pub(super) request: PlacementRequest,
    pub(super) card: Option<CardIndex>,
    /// Command that is not answered yet.
    pub(super) command: Option<(u64, Command)>,
    /// The instance is starting, or has requests in flight.
    works: bool,
    /// The instance worked since its last usage report.
    has_unreported_use: bool,
    /// Time of the last event that moves memory; measurements that began earlier are outdated.
    pub(super) last_event_at: Instant,
    /// A server that has gone to sleep, by its own word; not known of an adopted one.
    pub(super) is_asleep: bool,
    /// Number of moves of its memory.
    pub(super) moves: Moves,
}

impl PlacedInstance {
    /// `works`: the instance is to be started, or is starting.
    pub(super) fn new(request: PlacementRequest, card: Option<CardIndex>, works: bool) -> Self {
        let (last_event_at, moves) = (Instant::now(), Moves::default());
        Self { request, card, command: None, works, has_unreported_use: true, last_event_at, is_asleep: false, moves }
    }

    /// Memory of the instance, for what its accounting means.
    pub(super) fn memory(&self) -> Memory {
        let PlacementRequest { mode, limit, .. } = self.request;
        Memory { mode, limit, is_asleep: self.is_asleep }
    }

    /// Returns whether its usage may differ from the last report.
    pub(super) fn may_have_changed(&self) -> bool {
        self.works || self.has_unreported_use
    }

    /// Updates the state from an event of the instance.
    pub(super) fn observe(&mut self, event: &InstanceEvent) {
        if event.moves_memory() {
            self.last_event_at = Instant::now();
        }
        match event {
            InstanceEvent::Busy => self.works = true,
            InstanceEvent::Ready | InstanceEvent::Idle => (self.works, self.has_unreported_use) = (false, true),
            InstanceEvent::Used(_) => self.has_unreported_use = false,
            InstanceEvent::Place(_)
            | InstanceEvent::Adopted { .. }
            | InstanceEvent::Want
            | InstanceEvent::Unwanted
            | InstanceEvent::Yielded
            | InstanceEvent::Moved(_)
            | InstanceEvent::Gone => {}
        }
    }
}
