//! Orders to instances and what came of them; what NVML shows beside what instances say.
//!
//! What always holds: one order at a time to an instance, each answered within `evict-timeout` or the instance ends; an
//! eviction that was not carried out is ordered once more and no third time.

use super::events::{Action, EndCause, InstanceKey};
use super::events::{Command, Report, Usage};
use super::ledger::{Instance, Sent, Turn};
use super::{Moment, Residency};
use std::time::Duration;

/// Between the first look that does not fit and the one that is believed: less than the time between two polls.
const SURE_AFTER: Duration = Duration::from_secs(1);

impl Residency {
    /// Sends an order to an instance that has none.
    pub(super) fn order(&mut self, key: InstanceKey, order: Command, now: Moment, actions: &mut Vec<Action>) {
        let Some(instance) = self.instances.get_mut(&key) else { return };
        debug_assert!(instance.order.is_none(), "two orders at a time to {key}");
        self.orders += 1;
        let number = self.orders;
        instance.order = Some(Sent { number, order, at: now, managed: instance.managed, resident: instance.resident });
        actions.push(Action::Order { instance: key, number, order });
    }

    pub(super) fn on_report(&mut self, key: InstanceKey, report: &Report, actions: &mut Vec<Action>) {
        let Some(instance) = self.instances.get_mut(&key) else { return };
        let Some(sent) = instance.order.filter(|sent| sent.number == report.number) else { return };
        instance.order = None;
        instance.believe(&report.usage);
        instance.known = true;
        match sent.order {
            Command::Evict { bytes } => {
                // What it allocated meanwhile is on the card, and no disobedience.
                let grown = instance.managed.saturating_sub(sent.managed);
                let left = sent.resident.saturating_sub(bytes).saturating_add(grown);
                let disobeys = report.silent > 0 || instance.resident > left;
                let again = std::mem::replace(&mut instance.disobeyed, disobeys);
                if disobeys && again {
                    self.end(key, EndCause::DidNotLeave { error: report.error }, actions);
                }
            }
            Command::Restore => {
                // Whether or not all of it came: what did not comes by page faults, which is slow but right.
                if let Turn::Coming { restored, .. } = &mut instance.turn {
                    *restored = true;
                }
            }
            Command::Report => {}
        }
    }

    /// What the accounting file says between orders. While memory is on its way it is of no use.
    pub(super) fn on_used(&mut self, key: InstanceKey, usage: &Usage) {
        if let Some(instance) = self.instances.get_mut(&key)
            && instance.order.is_none()
        {
            instance.believe(usage);
        }
    }

    /// Looks that do not fit, and none that does for [`SURE_AFTER`], end the instance: one may be older than what was
    /// said since, and the driver takes its time to notice what was given back.
    pub(super) fn on_seen(
        &mut self,
        key: InstanceKey,
        seen: u64,
        processes: u32,
        now: Moment,
        actions: &mut Vec<Action>,
    ) {
        let margin = self.settings.process_margin.saturating_mul(u64::from(processes.max(1)));
        let Some(instance) = self.instances.get_mut(&key) else { return };
        let rests = matches!(instance.turn, Turn::Off | Turn::Waiting { .. }) && instance.order.is_none();
        let is_away = rests && instance.known && instance.is_movable();
        let allowed = margin.saturating_add(if is_away { instance.on_card() } else { instance.limit });
        let since = instance.suspected.filter(|_| seen > allowed);
        instance.suspected = (seen > allowed).then(|| since.unwrap_or(now));
        if since.is_some_and(|since| now.saturating_sub(since) >= SURE_AFTER) {
            let why = if is_away && seen <= margin.saturating_add(instance.limit) {
                EndCause::StillOnCard { seen, allowed }
            } else {
                EndCause::BeyondLimit { seen, allowed: margin.saturating_add(instance.limit) }
            };
            self.end(key, why, actions);
        }
    }

    pub(super) fn end_the_silent(&mut self, now: Moment, actions: &mut Vec<Action>) {
        let late = |instance: &Instance| {
            instance.order.is_some_and(|sent| now.saturating_sub(sent.at) >= self.settings.evict_timeout)
        };
        let silent: Vec<_> =
            self.instances.iter().filter(|(_, instance)| late(instance)).map(|(key, _)| *key).collect();
        for key in silent {
            self.end(key, EndCause::Silent, actions);
        }
    }

    /// Once for each instance; what it holds counts until it is gone.
    pub(super) fn end(&mut self, key: InstanceKey, why: EndCause, actions: &mut Vec<Action>) {
        let Some(instance) = self.instances.get_mut(&key) else { return };
        if matches!(instance.turn, Turn::Ending { .. }) {
            return;
        }
        instance.turn = Turn::Ending { held: instance.present() };
        instance.order = None;
        actions.push(Action::End { instance: key, why });
    }

    /// The first moment at which an order is too late.
    pub(super) fn first_deadline(&self) -> Option<Moment> {
        let sent = self.instances.values().filter_map(|instance| instance.order);
        sent.map(|sent| sent.at + self.settings.evict_timeout).min()
    }
}
