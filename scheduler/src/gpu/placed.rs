//! What the GPU task ([`super::task`]) knows of an instance beside the policy.

use super::queue::{InstanceEvent, PlacementRequest};
use crate::policy::residency::{CardIndex, Command};
use std::time::Instant;

/// An instance that asked for a place, and has it until it is gone.
pub(super) struct PlacedInstance {
    pub(super) request: PlacementRequest,
    pub(super) card: Option<CardIndex>,
    /// The order that is not answered yet.
    pub(super) command: Option<(u64, Command)>,
    /// It starts, or has something in flight.
    works: bool,
    /// It worked since it last said what it has.
    has_unreported_use: bool,
    /// A look at the card that began before this moment says nothing of what was said or moved since.
    pub(super) last_event_at: Instant,
}

impl PlacedInstance {
    /// `works`: it is to be started, or is starting.
    pub(super) fn new(request: PlacementRequest, card: Option<CardIndex>, works: bool) -> Self {
        Self { request, card, command: None, works, has_unreported_use: true, last_event_at: Instant::now() }
    }

    /// Whether what it has may be other than what it said.
    pub(super) fn may_have_changed(&self) -> bool {
        self.works || self.has_unreported_use
    }

    /// What a word of it says of itself.
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
