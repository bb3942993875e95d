//! Load of a model and of the cards that it uses, from what the supervisor publishes. Pure.

use omni_jobs::Load;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// Requests that clients wait for, of one model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Interactive {
    /// Requests that wait or are in flight.
    pub(crate) open: u32,
    /// End of the last other interactive request.
    pub(crate) last_end: Option<Instant>,
    /// Cards that they use.
    pub(crate) cards: Cards,
}

/// Cards of a model. Models on one card take turns on it, so the requests to one are the load of the others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Cards {
    /// The model uses no card.
    None,
    /// None of its instances has a place yet: the next one may come to any card.
    Unplaced,
    /// Indices of the cards that its instances are on.
    On(BTreeSet<u32>),
}

impl Cards {
    /// Cards of a model with instances on these. `uses_card`: its next instance has memory of one.
    pub(crate) fn new(uses_card: bool, placed: Option<&BTreeSet<u32>>) -> Self {
        match placed {
            Some(cards) if !cards.is_empty() => Self::On(cards.clone()),
            Some(_) | None if uses_card => Self::Unplaced,
            Some(_) | None => Self::None,
        }
    }

    fn is_on_a_card(&self) -> bool {
        *self != Self::None
    }

    /// Returns whether requests to one model may have to wait for those to the other.
    fn meets(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::None, _) | (_, Self::None) => false,
            (Self::Unplaced, _) | (_, Self::Unplaced) => true,
            (Self::On(own), Self::On(others)) => !own.is_disjoint(others),
        }
    }
}

/// Instances of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Instances {
    /// Requests that wait for an instance, of batches too.
    pub(crate) queued: u32,
    /// Requests that an instance can have in flight.
    pub(crate) per_instance: u32,
    /// Instances that are ready.
    pub(crate) ready: u32,
    /// Most instances.
    pub(crate) most: u32,
}

/// Time over which the load is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    /// Time from which requests are known of.
    pub(crate) since: Instant,
    pub(crate) now: Instant,
    /// Time without requests after which a card is idle.
    pub(crate) idle: Duration,
}

/// The load of the model at this position, among all models; `None`: there is none.
pub(crate) fn load(models: &[Interactive], at: usize, instances: Instances, span: Span) -> Option<Load> {
    let own = models.get(at)?;
    let others = models.iter().enumerate().filter(|(other, _)| *other != at).map(|(_, other)| other);
    let (mut elsewhere, mut last_end, mut all_idle) = (0, own.last_end, true);
    for other in others.filter(|other| own.cards.is_on_a_card() && other.cards.is_on_a_card()) {
        all_idle &= other.open == 0 && span.idle_for(other.last_end) >= span.idle;
        if own.cards.meets(&other.cards) {
            elsewhere += other.open;
            last_end = last_end.max(other.last_end);
        }
    }
    let Instances { queued, per_instance, ready, most } = instances;
    let capacity = per_instance.saturating_mul(ready);
    // An instance beyond those that are ready: what waits for it lets the model grow.
    let seats = per_instance.saturating_mul((ready + 1).min(most.max(1)));
    let waiting = queued.min(own.open);
    Some(Load {
        waiting,
        in_flight: own.open - waiting + elsewhere,
        idle_for: span.idle_for(last_end),
        seats,
        ready_seats: capacity,
        // The further instance may come to any card, so for a model that has a place all of them have to be idle.
        idle_seats: if all_idle || ready == 0 { seats } else { capacity },
        free_seats: if elsewhere > 0 { 0 } else { capacity.saturating_sub(kept_free(own.open)) },
    })
}

impl Span {
    fn idle_for(&self, last_end: Option<Instant>) -> Duration {
        self.now.saturating_duration_since(last_end.unwrap_or(self.since))
    }
}

/// Seats that items leave to interactive requests: those in use, as many for requests that come meanwhile, and one
/// more. With fewer, one request in a hundred would wait for an item.
fn kept_free(interactive: u32) -> u32 {
    interactive.saturating_mul(2).saturating_add(1)
}

#[cfg(test)]
mod tests;
