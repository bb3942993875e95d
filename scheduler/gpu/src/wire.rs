//! Conversions between the residency policy's vocabulary and the worker protocol's.

use omni_node_protocol::instance::{GpuUsage, ResidencyCommand, ResidencyReport};
use omni_node_protocol::launcher;
use omni_policy::residency::{Command, GpuMode, Report, Usage};

/// Command as the worker receives it.
pub(super) fn command(command: Command) -> ResidencyCommand {
    match command {
        Command::Evict { bytes } => ResidencyCommand::Evict { bytes },
        Command::Restore => ResidencyCommand::Restore,
        Command::Report => ResidencyCommand::Report,
    }
}

/// Report of a command to an instance whose memory has this mode and limit.
pub(super) fn report(report: &ResidencyReport, memory: (launcher::GpuMode, u64)) -> Report {
    let ResidencyReport { number, usage, error, unanswered, moved_bytes: _, micros: _ } = *report;
    Report { number, usage: self::usage(usage, memory), error, unanswered }
}

/// Usage as an instance's accounting has it; its pinned host memory is of no account to the policy. Device memory of a server
/// that sleeps leaves the card with it: a sleeping one has freed it, and is taken to want all of its limit back, as such
/// servers fill what they are given.
pub(super) fn usage(usage: GpuUsage, (mode, limit): (launcher::GpuMode, u64)) -> Usage {
    let GpuUsage { managed_bytes: managed, resident_bytes: resident, device_bytes: device, host_bytes: _ } = usage;
    match mode {
        launcher::GpuMode::Unified | launcher::GpuMode::Device => Usage { managed, resident, device },
        launcher::GpuMode::Sleep => {
            let on_card = resident.saturating_add(device);
            let managed = if on_card == 0 { limit } else { managed.saturating_add(device) };
            Usage { managed, resident: on_card, device: 0 }
        }
    }
}

/// Mode of an instance's memory.
pub(super) fn mode(mode: launcher::GpuMode) -> GpuMode {
    match mode {
        // Memory of both can leave the card.
        launcher::GpuMode::Unified | launcher::GpuMode::Sleep => GpuMode::Unified,
        launcher::GpuMode::Device => GpuMode::Device,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_memory_of_a_server_that_sleeps_can_leave() {
        let seen = |managed_bytes, device_bytes, mode| {
            let bytes = GpuUsage { managed_bytes, resident_bytes: managed_bytes, device_bytes, host_bytes: 9 };
            let Usage { managed, resident, device } = usage(bytes, (mode, 100));
            (managed, resident, device)
        };
        assert_eq!(seen(7, 5, launcher::GpuMode::Unified), (7, 7, 5));
        assert_eq!(seen(0, 5, launcher::GpuMode::Device), (0, 0, 5));
        assert_eq!(seen(7, 5, launcher::GpuMode::Sleep), (12, 12, 0));
        assert_eq!(seen(0, 0, launcher::GpuMode::Sleep), (100, 0, 0), "asleep");
    }
}
