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

/// Memory of an instance, as far as its accounting does not say it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Memory {
    pub(super) mode: launcher::GpuMode,
    pub(super) limit: u64,
    /// A server that has gone to sleep, by its own word.
    pub(super) is_asleep: bool,
}

/// Part of its limit that a server may keep on the card while it sleeps: graphs and buffers of libraries, which stay.
const KEPT_ASLEEP: u64 = 4;

/// Report of a command to an instance with this memory.
pub(super) fn report(report: &ResidencyReport, memory: Memory) -> Report {
    let ResidencyReport { number, usage, error, unanswered, moved_bytes: _, micros: _ } = *report;
    Report { number, usage: self::usage(usage, memory), error, unanswered }
}

/// Usage as an instance's accounting has it; its pinned host memory is of no account to the policy. Device memory of a
/// server that sleeps leaves the card with it. A sleeping one is taken to want all of its limit back, as such servers
/// fill what they are given. Its word for the sleep counts only if most of its limit is free: more is memory that has
/// not left.
pub(super) fn usage(usage: GpuUsage, memory: Memory) -> Usage {
    let GpuUsage { managed_bytes: managed, resident_bytes: resident, device_bytes: device, host_bytes: _ } = usage;
    let Memory { mode, limit, is_asleep } = memory;
    match mode {
        launcher::GpuMode::Unified | launcher::GpuMode::Device => Usage { managed, resident, device },
        launcher::GpuMode::Sleep => {
            let on_card = resident.saturating_add(device);
            if on_card == 0 || (is_asleep && on_card <= limit / KEPT_ASLEEP) {
                Usage { managed: limit.saturating_sub(on_card), resident: 0, device: on_card }
            } else {
                Usage { managed: managed.saturating_add(device), resident: on_card, device: 0 }
            }
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
        let seen = |managed_bytes, device_bytes, mode, is_asleep| {
            let bytes = GpuUsage { managed_bytes, resident_bytes: managed_bytes, device_bytes, host_bytes: 9 };
            let Usage { managed, resident, device } = usage(bytes, Memory { mode, limit: 100, is_asleep });
            (managed, resident, device)
        };
        assert_eq!(seen(7, 5, launcher::GpuMode::Unified, false), (7, 7, 5));
        assert_eq!(seen(0, 5, launcher::GpuMode::Device, false), (0, 0, 5));
        assert_eq!(seen(7, 5, launcher::GpuMode::Sleep, false), (12, 12, 0), "awake, however little it has");
        assert_eq!(seen(0, 0, launcher::GpuMode::Sleep, false), (100, 0, 0), "adopted asleep");
        assert_eq!(
            seen(0, 25, launcher::GpuMode::Sleep, true),
            (75, 0, 25),
            "what stays is on the card, and the rest comes"
        );
        assert_eq!(seen(0, 26, launcher::GpuMode::Sleep, true), (26, 26, 0), "it says so, and has not left");
    }
}
