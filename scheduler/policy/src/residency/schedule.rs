//! Which instance is granted a card's memory next, and whose memory leaves for it.
//!
//! Waiting instances (a start for its whole limit, a `Wanted` for its need) stand in one queue per card, by the time of
//! their request. [`Residency::schedule`] examines the queues after every event that may change something:
//!
//! - the head is admitted as soon as what it lacks can leave: first memory of inactive or idle instances, least
//!   recently used first; then memory of instances further back in the queue; then that of busy ones, the longest grant
//!   first. A busy instance is asked to yield no earlier than `quantum` after its grant, and finishes its requests. An
//!   idle instance within its quantum is left alone for one part in [`IDLE_SHARE`] of it, or every gap between two
//!   requests would cost it its place;
//! - until the head has waited for a `quantum`, instances behind it that fit beside what is granted go first, at the
//!   cost of inactive and idle ones only. After that the queue is closed: none overtakes;
//! - admitted instances hold their room from then on. Memory is restored only when the room is really there. If one of
//!   several turns out to need more than was known, the last admitted one waits again, at its old place.
//!
//! **No instance waits for ever.** Let Q be the quantum, R the longest time that requests in flight may take (for a
//! start: its `startup`), E the `evict_timeout`, K the time until a killed instance is gone, and let k instances be
//! ahead in the queue. None overtakes after Q; then each head in turn waits at most for: the last grant that began
//! before it (Q), the requests in flight there (R), a pending command, an eviction and its repetition (3 E), an end
//! (K), its own restore (E). So a `Wanted` is granted, or its instance ended, within `Q + (k + 1) (Q + R + 4 E + K)`,
//! and k is less than the number of instances on the card. While the host's budget is short the exchanges of all cards
//! form one queue, longest waiting first. After an adoption, once, it takes E more until all adopted instances have
//! reported.

use super::events::Command;
use super::events::{Action, CardIndex, EndCause, InstanceKey};
use super::ledger::{Instance, ResidencyState, on, sum};
use super::{Moment, Residency};
use std::cmp::Reverse;

/// Fraction of a quantum (one part in this number) that a granted instance may be idle before it may be asked to yield.
const IDLE_SHARE: u32 = 20;

/// Instance whose memory could leave.
#[derive(Debug, Clone, Copy)]
struct Victim {
    rank: Rank,
    key: InstanceKey,
    /// Earliest time.
    from: Moment,
    bytes: u64,
}

/// Order of leaving, smallest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    /// Inactive or idle; by last use.
    Idle(Moment),
    /// Waiting itself; by the start of its wait, latest first.
    Waits(Reverse<Moment>),
    /// Busy; by the time of its grant.
    Busy(Moment),
}

impl Residency {
    /// Takes every decision that can be taken now.
    pub(super) fn schedule(&mut self, now: Moment, actions: &mut Vec<Action>) {
        self.next_quantum_end = None;
        let mut cards: Vec<_> = self.card_indices().collect();
        let head = |card: &CardIndex| self.queue(*card).first().map_or(Moment::MAX, |(since, _)| *since);
        cards.sort_by_cached_key(head);
        for card in cards {
            // A new grant may leave later and a revoked admission leaves room, so another round is due. Each round but
            // the last grants or revokes one.
            for _ in 0..=2 * self.instances.len() {
                self.admit(card, now, actions);
                let took_back = self.reclaim(card, now, actions);
                if !self.restore_admitted(card, now, actions) && !took_back {
                    break;
                }
            }
        }
    }

    /// Waiting instances of a card, first come first.
    fn queue(&self, card: CardIndex) -> Vec<(Moment, InstanceKey)> {
        let waits = |(key, instance): (_, &Instance)| instance.waits_since().map(|since| (since, key));
        let mut queue: Vec<_> = on(&self.instances, card).filter_map(waits).collect();
        queue.sort_unstable();
        queue
    }

    /// Admits instances from the queue.
    fn admit(&mut self, card: CardIndex, now: Moment, actions: &mut Vec<Action>) {
        let mut passing = false;
        for (since, key) in self.queue(card) {
            if self.instances.get(&key).is_none_or(|instance| instance.waits_since().is_none()) {
                continue; // ended for an instance before it
            }
            if self.can_admit(card, key, passing, now) {
                self.admit_one(key, since, now);
            } else if !passing {
                self.end_blockers(card, key, now, actions);
                if now.saturating_sub(since) >= self.settings.quantum {
                    return;
                }
                passing = true;
            }
        }
    }

    /// Returns whether what an instance lacks can leave now. An instance that overtakes the queue may evict idle memory
    /// only.
    fn can_admit(&mut self, card: CardIndex, key: InstanceKey, passing: bool, now: Moment) -> bool {
        let lacks = self.planned_with(card, key).saturating_sub(self.capacity(card, Some(key)));
        if lacks == 0 {
            return true;
        }
        let allowed = |victim: &Victim| !passing || matches!(victim.rank, Rank::Idle(_));
        let victims: Vec<_> = self.victims(card).into_iter().filter(|victim| victim.key != key).collect();
        let could = victims.iter().filter(|victim| victim.from <= now && allowed(victim)).map(|victim| victim.bytes);
        if could.fold(0, u64::saturating_add) >= lacks {
            return self.host_allows(lacks);
        }
        if !passing {
            self.wake_no_later_than(victims.iter().map(|victim| victim.from), now);
        }
        false
    }

    fn admit_one(&mut self, key: InstanceKey, requested_at: Moment, now: Moment) {
        let Some(instance) = self.instances.get_mut(&key) else { return };
        let is_start = matches!(instance.state, ResidencyState::Queued { .. });
        instance.state = ResidencyState::Admitted { since: now, requested_at, is_start, restored: false };
    }

    /// Revokes the last of several admissions; the instance waits again at its old place in the queue. One of them
    /// turned out to need more than was known, and no memory can leave: they would wait for each other for ever.
    fn take_back(&mut self, card: CardIndex) -> bool {
        let coming = |(key, instance): (_, &Instance)| match instance.state {
            ResidencyState::Admitted { since, requested_at, is_start, .. } => {
                Some((since, key, requested_at, is_start))
            }
            ResidencyState::Queued { .. }
            | ResidencyState::Starting
            | ResidencyState::Inactive
            | ResidencyState::Waiting { .. }
            | ResidencyState::Granted { .. }
            | ResidencyState::Yielding { .. }
            | ResidencyState::Ending { .. } => None,
        };
        let coming: Vec<_> = on(&self.instances, card).filter_map(coming).collect();
        let last = coming.iter().max().filter(|_| coming.len() > 1);
        let Some((_, key, since, is_start)) = last.copied() else { return false };
        if let Some(instance) = self.instances.get_mut(&key) {
            instance.state =
                if is_start { ResidencyState::Queued { since } } else { ResidencyState::Waiting { since } };
        }
        true
    }

    /// Ends idle instances with unmovable memory when the card could not hold an instance beside that memory even if
    /// empty otherwise. Placement excludes this for `device` instances; `unified` ones can still allocate unmovable
    /// memory.
    fn end_blockers(&mut self, card: CardIndex, who: InstanceKey, now: Moment, actions: &mut Vec<Action>) {
        let need = self.instances.get(&who).map_or(0, Instance::need);
        let holds = |(key, instance): (_, &Instance)| {
            if key == who || is_leaving(instance) { 0 } else { instance.unmovable() }
        };
        let holds = on(&self.instances, card).map(holds).fold(0, u64::saturating_add);
        let budget = self.card(card).map_or(0, |card| card.budget);
        let mut excess = need.saturating_add(holds).saturating_sub(budget);
        if excess == 0 {
            return;
        }
        let ranked = |(key, instance): (_, &Instance)| self.rank(instance).map(|(rank, from)| (rank, key, from));
        let mut holders: Vec<_> = on(&self.instances, card).filter_map(ranked).collect();
        holders.sort_unstable();
        self.wake_no_later_than(holders.iter().map(|(_, _, from)| *from), now);
        for (_, key, from) in holders {
            let Some(instance) = self.instances.get(&key) else { continue };
            if excess == 0 || key == who || from > now || instance.unmovable() == 0 || is_leaving(instance) {
                continue;
            }
            excess = excess.saturating_sub(instance.unmovable());
            if matches!(instance.state, ResidencyState::Granted { .. }) {
                self.ask_to_yield(key, 0, actions);
            } else {
                self.end(key, EndCause::InTheWay, actions);
            }
        }
    }

    /// Evicts memory until everything that was admitted fits. Returns whether an admission was revoked. Nothing leaves
    /// while an adopted instance has not reported its usage: its limit stands for it, and is too much. It reports
    /// within `evict_timeout`, or is ended.
    fn reclaim(&mut self, card: CardIndex, now: Moment, actions: &mut Vec<Action>) -> bool {
        if on(&self.instances, card).any(|(_, instance)| instance.is_unreported()) {
            return false;
        }
        let mut lacks = sum(&self.instances, card, Instance::planned).saturating_sub(self.capacity(card, None));
        if lacks == 0 {
            return false;
        }
        let victims = self.victims(card);
        let later = victims.iter().filter(|victim| victim.from > now).map(|victim| victim.bytes);
        let later = later.fold(0, u64::saturating_add);
        for victim in victims.iter().filter(|victim| victim.from <= now) {
            let Some(instance) = self.instances.get_mut(&victim.key).filter(|_| lacks > 0) else { break };
            let bytes = victim.bytes.min(lacks);
            lacks -= bytes;
            match &mut instance.state {
                ResidencyState::Granted { .. } => self.ask_to_yield(victim.key, bytes, actions),
                ResidencyState::Yielding { releases, .. } => *releases += bytes,
                ResidencyState::Inactive | ResidencyState::Waiting { .. } if instance.command.is_none() => {
                    self.command(victim.key, Command::Evict { bytes }, now, actions);
                }
                // With a command pending the eviction follows its answer; the other states do not leave.
                ResidencyState::Inactive
                | ResidencyState::Waiting { .. }
                | ResidencyState::Queued { .. }
                | ResidencyState::Starting
                | ResidencyState::Admitted { .. }
                | ResidencyState::Ending { .. } => {}
            }
        }
        if lacks > 0 {
            self.wake_no_later_than(victims.iter().map(|victim| victim.from), now);
        }
        lacks > later && self.take_back(card)
    }

    /// Restores and grants admitted instances as far as there is room by now. Returns whether one was granted or
    /// started.
    fn restore_admitted(&mut self, card: CardIndex, now: Moment, actions: &mut Vec<Action>) -> bool {
        let mut runs = false;
        let coming = |(key, instance): (_, &Instance)| match instance.state {
            ResidencyState::Admitted { since, is_start, restored, .. } if instance.command.is_none() => {
                Some((since, key, is_start, restored))
            }
            ResidencyState::Admitted { .. }
            | ResidencyState::Queued { .. }
            | ResidencyState::Starting
            | ResidencyState::Inactive
            | ResidencyState::Waiting { .. }
            | ResidencyState::Granted { .. }
            | ResidencyState::Yielding { .. }
            | ResidencyState::Ending { .. } => None,
        };
        let mut coming: Vec<_> = on(&self.instances, card).filter_map(coming).collect();
        coming.sort_unstable();
        for (since, key, is_start, restored) in coming {
            let present = sum(&self.instances, card, Instance::present);
            let capacity = self.capacity(card, None);
            let Some(instance) = self.instances.get_mut(&key) else { continue };
            if present.saturating_sub(instance.present()).saturating_add(instance.need()) > capacity {
                self.end_blockers(card, key, now, actions);
                continue;
            }
            if is_start {
                instance.state = ResidencyState::Starting;
                actions.push(Action::Placed { instance: key, card });
                runs = true;
            } else if restored || !instance.is_movable() || instance.on_host() == 0 {
                instance.state = ResidencyState::Granted { since: now, idle_since: Some(now) };
                actions.push(Action::Grant { instance: key, swap: now.saturating_sub(since) });
                runs = true;
            } else {
                self.command(key, Command::Restore, now, actions);
            }
        }
        runs
    }

    fn ask_to_yield(&mut self, key: InstanceKey, releases: u64, actions: &mut Vec<Action>) {
        let Some(instance) = self.instances.get_mut(&key) else { return };
        instance.state = ResidencyState::Yielding { releases, idle_since: instance.idle_since(), wanted_since: None };
        actions.push(Action::Yield { instance: key });
    }

    /// Instances whose memory could leave, first to leave first.
    fn victims(&self, card: CardIndex) -> Vec<Victim> {
        let victim = |(key, instance): (_, &Instance)| {
            let (rank, from) = self.rank(instance)?;
            let bytes = instance.planned().saturating_sub(instance.unmovable());
            (bytes > 0).then_some(Victim { rank, key, from, bytes })
        };
        let mut victims: Vec<_> = on(&self.instances, card).filter_map(victim).collect();
        victims.sort_unstable_by_key(|victim| (victim.rank, victim.key));
        victims
    }

    /// Rank of an instance for leaving, if it can, and the earliest time for it.
    fn rank(&self, instance: &Instance) -> Option<(Rank, Moment)> {
        match instance.state {
            ResidencyState::Inactive | ResidencyState::Yielding { .. } => {
                Some((Rank::Idle(instance.used_at), Moment::ZERO))
            }
            ResidencyState::Waiting { since } => Some((Rank::Waits(Reverse(since)), Moment::ZERO)),
            ResidencyState::Granted { since, idle_since } => {
                let over = since + self.settings.quantum;
                Some(match idle_since {
                    Some(idle) => (Rank::Idle(instance.used_at), over.min(idle + self.settings.quantum / IDLE_SHARE)),
                    None => (Rank::Busy(since), over),
                })
            }
            ResidencyState::Queued { .. }
            | ResidencyState::Starting
            | ResidencyState::Admitted { .. }
            | ResidencyState::Ending { .. } => None,
        }
    }

    /// Bytes planned on the card if this instance is admitted.
    fn planned_with(&self, card: CardIndex, key: InstanceKey) -> u64 {
        let (planned, need) = self.instances.get(&key).map_or((0, 0), |instance| (instance.planned(), instance.need()));
        sum(&self.instances, card, Instance::planned).saturating_sub(planned).saturating_add(need)
    }

    /// Bytes that instances may have on the card now: the budget, or what foreign processes leave of the card if that
    /// is less. There is always room for one instance at a time, or a foreign process would stop all service instead of
    /// slowing it.
    fn capacity(&self, index: CardIndex, candidate: Option<InstanceKey>) -> u64 {
        let Some(card) = self.card(index) else { return 0 };
        let room = card.total.saturating_sub(card.others).min(card.budget);
        let unmovable = sum(&self.instances, index, Instance::unmovable);
        let alone = on(&self.instances, index)
            .filter(|(key, instance)| instance.is_admitted() || candidate == Some(*key))
            .map(|(_, instance)| instance.need().saturating_add(unmovable.saturating_sub(instance.unmovable())));
        room.max(alone.max().unwrap_or(0).min(card.budget))
    }

    /// Sets the next wake-up to the first of these times that is still to come, if it is earlier.
    fn wake_no_later_than(&mut self, moments: impl Iterator<Item = Moment>, now: Moment) {
        let next = moments.filter(|moment| *moment > now).chain(self.next_quantum_end).min();
        self.next_quantum_end = next;
    }
}

fn is_leaving(instance: &Instance) -> bool {
    matches!(instance.state, ResidencyState::Yielding { .. })
}
