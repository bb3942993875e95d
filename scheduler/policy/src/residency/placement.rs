//! Which card a new instance gets, or why none.
//!
//! A card takes an instance when, whatever all its instances do later within their limits, each can be granted:
//! - its limit is not above the budget;
//! - beside the whole limits of `device` instances, which never leave, there is room for the largest of the others;
//! - the sum of all limits stays within budget × overcommit;
//! - what may have to live in host memory stays within the host's budget, over all cards.
//!
//! **What may have to live in host memory.** One card with budget B has `unified` instances with limits U together and
//! `device` instances with limits D. The part that does not fit is `over = U − (B − D)`, and the figure is
//! `max(H, over + min(over, largest limit))`, where H is what is in host memory now:
//! - memory is evicted only while the card is over-full, and only as much as is missing; after that B − D of the card
//!   are reserved or in use by the unified instances, so at most `over` of them is elsewhere;
//! - while two instances change places both are in host memory: the one that left, and the one that is not back yet,
//!   which had at most `over` there, and at most its limit. More than one exchange at a time begins only if the host's
//!   budget has room for it as things are ([`Residency::host_allows`]);
//! - an instance that goes away leaves room on the card and brings no other back: a card that once held more has that
//!   much in the host until its instances have been granted, hence H.
//!
//! Only a placement makes the figure larger, so a check at each placement is enough. An adopted instance is not
//! checked: an earlier scheduler placed it under the same rule.

use super::events::Command;
use super::events::GpuMode;
use super::events::{CardIndex, CardSettings, Refusal};
use super::ledger::Departing;
use super::ledger::{Instance, Instances, ResidencyState, on, sum};
use super::{Card, Residency};
use std::cmp::Reverse;

impl Residency {
    /// Card with most left to commit, not counting departing instances; among equals the one where least has to leave.
    pub(super) fn choose(&self, limit: u64, mode: GpuMode, gone: &Departing) -> Result<CardIndex, Refusal> {
        let mut best: Option<(Reverse<u64>, u64, CardIndex)> = None;
        let mut hurdles: Vec<Refusal> = Vec::new();
        for (index, card) in (0..).map(CardIndex).zip(&self.cards) {
            match self.fits(index, card, (limit, mode), gone) {
                Ok(free) => {
                    let occupied = sum(&self.instances, index, |instance| instance.present());
                    let candidate = (Reverse(free), occupied.saturating_add(limit).saturating_sub(card.budget), index);
                    best = Some(best.map_or(candidate, |best| best.min(candidate)));
                }
                Err(reason) => hurdles.push(reason),
            }
        }
        // Report the reason that is nearest to being overcome.
        let nearest = hurdles.into_iter().max_by_key(|reason| match *reason {
            Refusal::NoCard => (0, 0),
            Refusal::CardLost => (1, 0),
            Refusal::TooBig { budget } => (2, budget),
            Refusal::Pinned { free } => (3, free),
            Refusal::Committed { free } => (4, free),
            Refusal::HostBudget { free } => (5, free),
        });
        best.map(|(_, _, index)| index).ok_or_else(|| nearest.unwrap_or(Refusal::NoCard))
    }

    /// Bytes the card has left to commit, if it can take the instance.
    fn fits(
        &self,
        index: CardIndex,
        card: &Card,
        (limit, mode): (u64, GpuMode),
        gone: &Departing,
    ) -> Result<u64, Refusal> {
        if card.lost {
            return Err(Refusal::CardLost);
        }
        if limit > card.budget {
            return Err(Refusal::TooBig { budget: card.budget });
        }
        let limits = Limits::of(&self.instances, index, gone);
        // Bytes that have to fit beside it: all that never leaves, and for one that never leaves itself, the largest of
        // the rest.
        let beside = match mode {
            GpuMode::Unified => limits.device,
            GpuMode::Device => limits.device.saturating_add(limits.largest_unified),
        };
        let free = card.budget.saturating_sub(beside);
        if limit > free {
            return Err(Refusal::Pinned { free });
        }
        let free = card.commit_limit.saturating_sub(limits.all());
        if limit > free {
            return Err(Refusal::Committed { free });
        }
        let elsewhere = self.host_of_others(Some(index), gone);
        if elsewhere.saturating_add(self.host_of(index, limits.with(limit, mode), gone)) > self.settings.host_budget {
            let now = elsewhere.saturating_add(self.host_of(index, limits, gone));
            return Err(Refusal::HostBudget { free: self.settings.host_budget.saturating_sub(now) });
        }
        Ok(free)
    }

    /// Host memory that a card's instances may need; see the module.
    fn host_of(&self, index: CardIndex, limits: Limits, gone: &Departing) -> u64 {
        let budget = self.card(index).map_or(0, |card| card.budget);
        let over = limits.unified.saturating_sub(budget.saturating_sub(limits.device));
        let at_worst = over.saturating_add(over.min(limits.largest_unified));
        let there = on(&self.instances, index).filter(|(key, _)| !gone.contains(key));
        at_worst.max(there.fold(0, |sum: u64, (_, instance)| sum.saturating_add(instance.on_host())))
    }

    fn host_of_others(&self, except: Option<CardIndex>, gone: &Departing) -> u64 {
        let others = self.card_indices().filter(|index| Some(*index) != except);
        let host_of = |index| self.host_of(index, Limits::of(&self.instances, index, gone), gone);
        others.fold(0, |sum, index| sum.saturating_add(host_of(index)))
    }

    /// Returns whether an exchange that evicts this much may begin now. The first one always may: placement ensures it.
    pub(super) fn host_allows(&self, evicted: u64) -> bool {
        let changes = |instance: &Instance| {
            matches!(instance.state, ResidencyState::Admitted { .. } | ResidencyState::Yielding { .. })
        };
        let leaving = |instance: &Instance| match (instance.state, instance.command.map(|pending| pending.command)) {
            (ResidencyState::Yielding { releases, .. }, _) => releases,
            (_, Some(Command::Evict { bytes })) => bytes,
            (_, Some(Command::Restore | Command::Report) | None) => 0,
        };
        let there = self.instances.values().map(|instance| instance.on_host().saturating_add(leaving(instance)));
        there.fold(evicted, u64::saturating_add) <= self.settings.host_budget
            || !self.instances.values().any(|instance| changes(instance) || leaving(instance) > 0)
    }

    /// Host memory that evicted instances of all cards may need; placement compares it with the host's budget.
    #[must_use]
    pub fn host_committed(&self) -> u64 {
        self.host_of_others(None, &Departing::new())
    }

    /// Sum of the limits on a card.
    pub(super) fn committed(&self, index: CardIndex) -> u64 {
        Limits::of(&self.instances, index, &Departing::new()).all()
    }
}

/// Largest sum of the limits on a card.
pub(super) fn commit_limit(card: &CardSettings, overcommit: f64) -> u64 {
    // Budgets are far below 2⁵³; the cast of a larger float saturates.
    (card.budget as f64 * overcommit.max(1.0)) as u64
}

/// Limits on a card, summed by mode.
#[derive(Debug, Clone, Copy, Default)]
struct Limits {
    unified: u64,
    device: u64,
    largest_unified: u64,
}

impl Limits {
    fn of(instances: &Instances, card: CardIndex, gone: &Departing) -> Self {
        let all = on(instances, card)
            .filter(|(key, _)| !gone.contains(key))
            .map(|(_, instance)| (instance.limit, instance.mode));
        all.fold(Self::default(), |limits, (limit, mode)| limits.with(limit, mode))
    }

    fn with(mut self, limit: u64, mode: GpuMode) -> Self {
        match mode {
            GpuMode::Unified => {
                self.unified = self.unified.saturating_add(limit);
                self.largest_unified = self.largest_unified.max(limit);
            }
            GpuMode::Device => self.device = self.device.saturating_add(limit),
        }
        self
    }

    fn all(self) -> u64 {
        self.unified.saturating_add(self.device)
    }
}
