//! The packets between the shims of a GPU model and its worker: one form for each meaning, and none for anything else.

use omni_gpu_protocol::control::{ORDER_BYTES, Order, REPORT_BYTES, Report};

/// Reads the bytes as a packet of each direction, and what is left behind it as the next.
///
/// # Panics
/// A packet is taken for what it is not, or written otherwise than it was read.
pub fn holds(data: &[u8]) {
    order(data);
    report(data);
    data.chunks(ORDER_BYTES).for_each(order);
    data.chunks(REPORT_BYTES).for_each(report);
}

fn word(packet: &[u8], place: usize) -> u64 {
    packet.iter().skip(place * 8).take(8).rev().fold(0, |word, byte| word << 8 | u64::from(*byte))
}

fn order(packet: &[u8]) {
    let verb = word(packet, 1);
    let is_order = packet.len() == ORDER_BYTES && (verb == 1 || (matches!(verb, 2 | 3) && word(packet, 2) == 0));
    let read = Order::from_bytes(packet);
    assert_eq!(read.is_some(), is_order, "{packet:?}");
    assert!(read.is_none_or(|order| order.to_bytes() == packet && order.number == word(packet, 0)));
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
