//! The packets between the shims of a GPU model and its worker: one form for each meaning, and none for anything else.

use omni_gpu_protocol::control::{COMMAND_BYTES, CommandPacket, REPORT_BYTES, Report};

/// Reads the bytes as a packet of each direction, and what is left behind it as the next.
///
/// # Panics
/// A packet is taken for what it is not, or written otherwise than it was read.
pub fn holds(data: &[u8]) {
    command(data);
    report(data);
    data.chunks(COMMAND_BYTES).for_each(command);
    data.chunks(REPORT_BYTES).for_each(report);
}

fn word(packet: &[u8], place: usize) -> u64 {
    packet.iter().skip(place * 8).take(8).rev().fold(0, |word, byte| word << 8 | u64::from(*byte))
}

fn command(packet: &[u8]) {
    let code = word(packet, 1);
    let is_command = packet.len() == COMMAND_BYTES && (code == 1 || (matches!(code, 2 | 3) && word(packet, 2) == 0));
    let read = CommandPacket::from_bytes(packet);
    assert_eq!(read.is_some(), is_command, "{packet:?}");
    assert!(read.is_none_or(|command| command.to_bytes() == packet && command.number == word(packet, 0)));
}

fn report(packet: &[u8]) {
    let is_report = packet.len() == REPORT_BYTES && matches!(word(packet, 0), 1 | 2);
    let read = Report::from_bytes(packet);
    assert_eq!(read.is_some(), is_report, "{packet:?}");
    let Some(report) = read else { return };
    assert_eq!(report.to_bytes(), packet);
    assert_eq!(u64::from(report.pid) | u64::from(report.error) << 32, word(packet, 2));
    let words =
        [report.number, report.moved, report.nanos, report.managed, report.resident, report.device, report.host];
    assert_eq!(words, [1, 3, 4, 5, 6, 7, 8].map(|place| word(packet, place)));
}
