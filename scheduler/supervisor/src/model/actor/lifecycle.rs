//! The fleet policy of a model, its events and its timer.

use omni_policy::Moment;
use omni_policy::fleet::{Action, Event, Fleet};
use std::collections::VecDeque;

/// The fleet with the events that it has yet to take.
///
/// Invariant: an event that comes of an action is taken after all actions of the event before it, as routes are disabled
/// and enabled in that order.
#[derive(Debug)]
pub(super) struct Lifecycle {
    pub(super) fleet: Fleet,
    /// When the fleet's next timer expires; it changes with events only.
    wakes_at: Option<Moment>,
    /// The event whose actions are being carried out, then those that came of them.
    events: VecDeque<Event>,
}

impl Lifecycle {
    pub(super) fn new(fleet: Fleet) -> Self {
        Self { fleet, wakes_at: None, events: VecDeque::new() }
    }

    /// Queues an event. Returns whether the caller has to process the queue: `false` while a caller further up does.
    #[must_use]
    pub(super) fn queue(&mut self, event: Event) -> bool {
        self.events.push_back(event);
        self.events.len() == 1
    }

    /// The event at the head of the queue, and its actions.
    pub(super) fn step(&mut self, now: Moment, jitter: f64) -> Option<(Event, Vec<Action>)> {
        let event = *self.events.front()?;
        Some((event, self.fleet.step(&event, now, jitter)))
    }

    /// Drops the event at the head of the queue, whose actions are done.
    pub(super) fn finish_step(&mut self) {
        self.events.pop_front();
        if self.events.is_empty() {
            self.wakes_at = self.fleet.wake_at();
        }
    }

    pub(super) fn wakes_at(&self) -> Option<Moment> {
        self.wakes_at
    }

    /// Returns whether the fleet's timer has expired.
    pub(super) fn is_due(&self, now: Moment) -> bool {
        self.wakes_at.is_some_and(|at| at <= now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_of_actions_wait_for_the_event_before_them() {
        let mut lifecycle = Lifecycle::new(Fleet::new(false, 0));
        assert!(lifecycle.queue(Event::Start), "the first event is processed by its sender");
        let (event, _) = lifecycle.step(Moment::ZERO, 0.0).unwrap();
        assert_eq!(event, Event::Start);
        assert!(!lifecycle.queue(Event::Stop), "one that comes meanwhile is not");
        lifecycle.finish_step();
        assert_eq!(lifecycle.step(Moment::ZERO, 0.0).unwrap().0, Event::Stop);
        lifecycle.finish_step();
        assert!(lifecycle.step(Moment::ZERO, 0.0).is_none());
        assert!(lifecycle.queue(Event::Start));
    }
}
