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

/// Report of a command.
pub(super) fn report(report: &ResidencyReport) -> Report {
    let ResidencyReport { number, usage, error, unanswered, moved_bytes: _, micros: _ } = *report;
    Report { number, usage: self::usage(usage), error, unanswered }
}

/// Usage as an instance's accounting has it; its pinned host memory is of no account to the policy.
pub(super) fn usage(usage: GpuUsage) -> Usage {
    let GpuUsage { managed_bytes: managed, resident_bytes: resident, device_bytes: device, host_bytes: _ } = usage;
    Usage { managed, resident, device }
}

/// Mode of an instance's memory.
pub(super) fn mode(mode: launcher::GpuMode) -> GpuMode {
    match mode {
        launcher::GpuMode::Unified => GpuMode::Unified,
        launcher::GpuMode::Device => GpuMode::Device,
    }
}
