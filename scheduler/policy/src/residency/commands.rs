//! Commands to instances and their results; measurements of NVML against what instances report.
//!
//! Invariants: one command at a time to an instance, each answered within `evict_timeout` or the instance is ended; an
//! eviction that was not carried out is sent once more and no third time.

use super::events::{Action, EndCause, InstanceKey};
use super::events::{Command, Report, Usage};
use super::ledger::{Instance, PendingCommand, ResidencyState};
use super::{Moment, Residency};
use std::time::Duration;

/// Time between the first excessive measurement and the one that counts: less than the time between two polls.
const CONFIRM_AFTER: Duration = Duration::from_secs(1);

impl Residency {
    /// Sends a command to an instance that has none.
    pub(super) fn command(&mut self, key: InstanceKey, command: Command, now: Moment, actions: &mut Vec<Action>) {
        let Some(instance) = self.instances.get_mut(&key) else { return };
        debug_assert!(instance.command.is_none(), "two commands at a time to {key:?}");
        self.commands_sent += 1;
        let number = self.commands_sent;
        instance.command =
            Some(PendingCommand { number, command, at: now, managed: instance.managed, resident: instance.resident });
        actions.push(Action::Command { instance: key, number, command });
    }

    pub(super) fn on_report(&mut self, key: InstanceKey, report: &Report, actions: &mut Vec<Action>) {
        let Some(instance) = self.instances.get_mut(&key) else { return };
        let Some(pending) = instance.command.filter(|pending| pending.number == report.number) else { return };
        instance.command = None;
        instance.set_usage(&report.usage);
        instance.usage_known = true;
        match pending.command {
            Command::Evict { bytes } => {
                // Memory allocated meanwhile is on the card, and does not count as a failure.
                let grown = instance.managed.saturating_sub(pending.managed);
                let left = pending.resident.saturating_sub(bytes).saturating_add(grown);
                let failed = report.unanswered > 0 || instance.resident > left;
                let again = std::mem::replace(&mut instance.eviction_failed, failed);
                if failed && again {
                    self.end(key, EndCause::DidNotLeave { error: report.error }, actions);
                }
            }
            Command::Restore => {
                // Even if not all of it came back: the rest comes by page faults, which is slow but correct.
                if let ResidencyState::Admitted { restored, .. } = &mut instance.state {
                    *restored = true;
                }
            }
            Command::Report => {}
        }
    }

    /// Takes over usage sampled from the accounting file, except while a command is moving memory.
    pub(super) fn on_usage_sampled(&mut self, key: InstanceKey, usage: &Usage) {
        if let Some(instance) = self.instances.get_mut(&key)
            && instance.command.is_none()
        {
            instance.set_usage(usage);
        }
    }

    /// Ends an instance whose measurements exceed what is allowed for [`CONFIRM_AFTER`] without exception: a single one
    /// may be older than the last report, and the driver takes time to notice what was given back.
    pub(super) fn on_measured(
        &mut self,
        key: InstanceKey,
        seen: u64,
        processes: u32,
        now: Moment,
        actions: &mut Vec<Action>,
    ) {
        let margin = self.settings.process_margin.saturating_mul(u64::from(processes.max(1)));
        let Some(instance) = self.instances.get_mut(&key) else { return };
        let rests = matches!(instance.state, ResidencyState::Inactive | ResidencyState::Waiting { .. })
            && instance.command.is_none();
        let is_away = rests && instance.usage_known && instance.is_movable();
        let allowed = margin.saturating_add(if is_away { instance.on_card() } else { instance.limit });
        let since = instance.over_limit_since.filter(|_| seen > allowed);
        instance.over_limit_since = (seen > allowed).then(|| since.unwrap_or(now));
        if since.is_some_and(|since| now.saturating_sub(since) >= CONFIRM_AFTER) {
            let reason = if is_away && seen <= margin.saturating_add(instance.limit) {
                EndCause::StillOnCard { seen, allowed }
            } else {
                EndCause::BeyondLimit { seen, allowed: margin.saturating_add(instance.limit) }
            };
            self.end(key, reason, actions);
        }
    }

    pub(super) fn end_unanswered(&mut self, now: Moment, actions: &mut Vec<Action>) {
        let late = |instance: &Instance| {
            instance.command.is_some_and(|pending| now.saturating_sub(pending.at) >= self.settings.evict_timeout)
        };
        let unanswered: Vec<_> =
            self.instances.iter().filter(|(_, instance)| late(instance)).map(|(key, _)| *key).collect();
        for key in unanswered {
            self.end(key, EndCause::Silent, actions);
        }
    }

    /// Ends an instance, once; its bytes count until it is gone.
    pub(super) fn end(&mut self, key: InstanceKey, reason: EndCause, actions: &mut Vec<Action>) {
        let Some(instance) = self.instances.get_mut(&key) else { return };
        if matches!(instance.state, ResidencyState::Ending { .. }) {
            return;
        }
        instance.state = ResidencyState::Ending { holds: instance.present() };
        instance.command = None;
        actions.push(Action::End { instance: key, reason });
    }

    /// Earliest deadline of a command.
    pub(super) fn first_deadline(&self) -> Option<Moment> {
        let pending = self.instances.values().filter_map(|instance| instance.command);
        pending.map(|pending| pending.at + self.settings.evict_timeout).min()
    }
}
