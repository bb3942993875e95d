//! The other instances of the node as what they could leave to one that asks: for a ledger of something else than the
//! node's own capacity, which are the places on cards. Called by [`super::Ledger`]'s owner.
//!
//! Who is idle, who is kept and who was in use a moment ago is the same for both, and is known here alone.

use super::Cause;
use super::events::{Purpose, SeatKey};
use super::{Ledger, Moment, Phase, Seat};
use std::sync::Arc;

/// The others, by what they could do for an asker. `K` names an instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Others<K> {
    /// On their way out anyhow.
    pub leaving: Vec<K>,
    /// Idle, and may go for it; the one that is idle longest first. Any part of them may.
    pub idle: Vec<K>,
    /// Those that may go if everybody were idle; none for an asker that does not wait for that.
    pub hoped: Vec<K>,
    /// Instances of its own model that serve, in place of which a new version could be; none for other askers.
    pub own: Vec<K>,
    /// Idle, and kept for the `min` of their model.
    pub kept: Vec<K>,
    /// Idle, and in use too short a while ago.
    pub recent: Vec<K>,
}

impl<K> Default for Others<K> {
    fn default() -> Self {
        let [leaving, idle, hoped, own, kept, recent] = [const { Vec::new() }; 6];
        Self { leaving, idle, hoped, own, kept, recent }
    }
}

impl<K> Others<K> {
    /// The same by other names; those that have none are left out.
    #[must_use]
    pub fn renamed<L>(self, name: impl Fn(K) -> Option<L>) -> Others<L> {
        let all = |keys: Vec<K>| keys.into_iter().filter_map(&name).collect();
        Others {
            leaving: all(self.leaving),
            idle: all(self.idle),
            hoped: all(self.hoped),
            own: all(self.own),
            kept: all(self.kept),
            recent: all(self.recent),
        }
    }
}

impl Ledger {
    /// What the others could do for an instance that has its seat here; `None` when it has none (any more).
    #[must_use]
    pub fn others(&self, asker: SeatKey, cause: Cause, now: Moment) -> Option<(Purpose, Others<SeatKey>)> {
        let model = &self.seats.get(&asker)?.model;
        let purpose = self.purpose(model, cause);
        let keys = |which: &dyn Fn(&Seat) -> bool| -> Vec<SeatKey> {
            self.seats.iter().filter(|(_, seat)| which(seat)).map(|(key, _)| *key).collect()
        };
        let may_go = |hoping| -> Vec<SeatKey> {
            self.displaceable(model, purpose, hoping, now).into_iter().map(|(key, _)| key).collect()
        };
        let idle = may_go(false);
        let serves = |seat: &Seat| matches!(seat.phase, Phase::Serving { .. });
        let stays = |key: &SeatKey| {
            let is_idle = |seat: &Seat| matches!(seat.phase, Phase::Serving { idle_since: Some(_) });
            self.seats.get(key).is_some_and(|seat| is_idle(seat) && seat.model != *model) && !idle.contains(key)
        };
        let is_kept = |key: &SeatKey| self.seats.get(key).is_some_and(|seat| self.mins.contains_key(&seat.model));
        let (kept, recent) = self.seats.keys().copied().filter(stays).partition(is_kept);
        let others = Others {
            leaving: keys(&|seat| seat.phase == Phase::Leaving),
            hoped: if matches!(purpose, Purpose::Further | Purpose::Retry) { Vec::new() } else { may_go(true) },
            own: if purpose == Purpose::Candidate {
                keys(&|seat| serves(seat) && seat.model == *model)
            } else {
                Vec::new()
            },
            idle,
            kept,
            recent,
        };
        Some((purpose, others))
    }

    /// The model of a seat.
    #[must_use]
    pub fn model(&self, seat: SeatKey) -> Option<&Arc<str>> {
        self.seats.get(&seat).map(|seat| &seat.model)
    }
}
