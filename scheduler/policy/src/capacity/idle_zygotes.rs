//! Zygotes without instances, which wait for the next one for a while.
//!
//! Invariant: a zygote is here only while no reservation of its generation is granted, and not for longer than it waits
//! by itself; so it is counted once. One that ends earlier, for whatever reason, is counted for the rest of that time.

use super::ZYGOTE_LINGER;
use super::{Amounts, Moment, Reservation};
use crate::Generation;
use std::sync::Arc;

/// Idle zygotes, longest waiting first.
#[derive(Debug, Clone, Default)]
pub(super) struct IdleZygotes(Vec<IdleZygote>);

#[derive(Debug, Clone)]
struct IdleZygote {
    model: Arc<str>,
    generation: Generation,
    need: Amounts,
    until: Moment,
}

impl IdleZygotes {
    /// Sum of what they may use.
    pub(super) fn sum(&self) -> Amounts {
        self.0.iter().map(|zygote_entry| zygote_entry.need).fold(Amounts::default(), Amounts::plus)
    }

    /// Counts the zygote of the last instance of a generation, which is gone.
    pub(super) fn add(&mut self, gone: &Reservation, now: Moment) {
        if let Some(zygote) = gone.zygote {
            let (model, generation) = (Arc::clone(&gone.model), zygote.generation);
            self.0.push(IdleZygote { model, generation, need: zygote.need, until: now.saturating_add(ZYGOTE_LINGER) });
        }
    }

    /// Stops counting the zygote that an instance is forked from.
    pub(super) fn remove_used(&mut self, by: &Reservation) {
        self.0.retain(|zygote_entry| Some((&*zygote_entry.model, zygote_entry.generation)) != by.family());
    }

    /// Stops counting zygotes whose time is over: they have ended by themselves.
    pub(super) fn expire(&mut self, now: Moment) {
        self.0.retain(|zygote_entry| zygote_entry.until > now);
    }

    pub(super) fn next_expiry(&self) -> Option<Moment> {
        self.0.first().map(|zygote_entry| zygote_entry.until)
    }

    /// Removes the longest waiting zygote with all of its model. Returns the model; `None` when there is none.
    pub(super) fn end_first(&mut self) -> Option<Arc<str>> {
        let model = Arc::clone(&self.0.first()?.model);
        self.0.retain(|zygote_entry| zygote_entry.model != model);
        Some(model)
    }
}
