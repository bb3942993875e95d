//! Zygotes without instances, which wait for the next one for a while. Called by [`super::Ledger`].
//!
//! What always holds: a zygote is here only while none of its generation has a seat, and not for longer than it waits by
//! itself; so it is counted once. One that has ended earlier, for whatever reason, is counted for that while.

use super::ZYGOTE_LINGER;
use super::{Amounts, Moment, Reservation};
use crate::Generation;
use std::sync::Arc;

/// The one that waits longest first.
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
    /// What they may use.
    pub(super) fn sum(&self) -> Amounts {
        self.0.iter().map(|zygote_entry| zygote_entry.need).fold(Amounts::default(), Amounts::plus)
    }

    /// The last instance of its generation has gone.
    pub(super) fn add(&mut self, gone: &Reservation, now: Moment) {
        if let Some(zygote) = gone.zygote {
            let (model, generation) = (Arc::clone(&gone.model), zygote.generation);
            self.0.push(IdleZygote { model, generation, need: zygote.need, until: now.saturating_add(ZYGOTE_LINGER) });
        }
    }

    /// This instance comes from it.
    pub(super) fn remove_used(&mut self, by: &Reservation) {
        self.0.retain(|zygote_entry| Some((&*zygote_entry.model, zygote_entry.generation)) != by.family());
    }

    /// Those have ended by themselves whose time is over.
    pub(super) fn expire(&mut self, now: Moment) {
        self.0.retain(|zygote_entry| zygote_entry.until > now);
    }

    pub(super) fn next_expiry(&self) -> Option<Moment> {
        self.0.first().map(|zygote_entry| zygote_entry.until)
    }

    /// Whose model is to end them, with all that wait of the same model; `None` when nobody waits.
    pub(super) fn end_first(&mut self) -> Option<Arc<str>> {
        let model = Arc::clone(&self.0.first()?.model);
        self.0.retain(|zygote_entry| zygote_entry.model != model);
        Some(model)
    }
}
