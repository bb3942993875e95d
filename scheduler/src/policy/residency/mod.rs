//! Whose memory is on which card: `step(event, now) -> actions`.
//!
//! The GPU task owns one [`Residency`] for all cards of the node, feeds it every event and carries out the actions in
//! order.

mod events;

pub use events::{
    Action, CardIndex, CardSettings, CardView, EndCause, Event, InstanceKey, InstanceView, Place, Refusal, Settings,
};

use super::Moment;

/// The cards of the node and the instances on them.
#[derive(Debug, Clone)]
pub struct Residency {
    settings: Settings,
}

impl Residency {
    /// Empty cards.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self { settings }
    }

    /// Takes one event.
    pub fn step(&mut self, event: &Event, now: Moment) -> Vec<Action> {
        let _ = (event, now);
        Vec::new()
    }

    /// When the next [`Event::Tick`] is due.
    #[must_use]
    pub fn wake_at(&self) -> Option<Moment> {
        None
    }

    /// The cards, in the order of the settings.
    #[must_use]
    pub fn cards(&self) -> Vec<CardView> {
        Vec::new()
    }

    /// What evicted instances of all cards may need of the host's memory: what admission compares with the budget.
    #[must_use]
    pub fn host_committed(&self) -> u64 {
        0
    }

    /// What it was made with.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }
}
