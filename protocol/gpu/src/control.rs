//! Control socket: the worker listens, and every process of the instance that has GPU memory connects.
//!
//! Each message is one packet. The worker sends [`CommandPacket`]s, one at a time to each shim; the shim answers each
//! with one [`Report`] that carries its number, and sends [`ReportKind::Hello`] first. A shim whose worker is gone goes
//! on without moving anything, and connects again with its next allocation.

/// Bytes of every packet from the worker.
pub const COMMAND_BYTES: usize = 24;
/// Bytes of every packet from a shim.
pub const REPORT_BYTES: usize = 72;

/// Packet from the worker to a shim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommandPacket {
    /// Number of the command, counted up; the report repeats it.
    pub number: u64,
    /// Command to carry out.
    pub command: Command,
}

/// Command to one process about its memory, as the scheduler gives it to the whole instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    /// Move managed memory to the host until at least this much is moved, or all of it is.
    Evict {
        /// `u64::MAX` for all.
        bytes: u64,
    },
    /// Move everything back to the device.
    Restore,
    /// Move nothing, report the memory.
    Report,
}

/// Packet from a shim to the worker.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Report {
    /// Occasion.
    pub kind: ReportKind,
    /// Number of the command that is answered; 0 in `Hello`.
    pub number: u64,
    /// Process id inside the sandbox.
    pub pid: u32,
    /// First `CUresult` other than success of the command's calls; 0 for none.
    pub error: u32,
    /// Bytes that the command moved.
    pub moved: u64,
    /// Nanoseconds from the first call to the last one's end.
    pub nanos: u64,
    /// See [`Slot`](crate::account::Slot); of this process, after the command.
    pub managed: u64,
    /// See [`Slot`](crate::account::Slot).
    pub resident: u64,
    /// See [`Slot`](crate::account::Slot).
    pub device: u64,
    /// See [`Slot`](crate::account::Slot).
    pub host: u64,
}

/// Occasion of a report.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ReportKind {
    /// First message of a connection.
    #[default]
    Hello,
    /// A command was carried out.
    Done,
}

impl CommandPacket {
    /// Encodes the packet.
    #[must_use]
    pub fn to_bytes(self) -> [u8; COMMAND_BYTES] {
        let (code, bytes) = match self.command {
            Command::Evict { bytes } => (1, bytes),
            Command::Restore => (2, 0),
            Command::Report => (3, 0),
        };
        pack([self.number, code, bytes])
    }

    /// Decodes a packet; `None` when it is malformed.
    #[must_use]
    pub fn from_bytes(packet: &[u8]) -> Option<Self> {
        let [number, code, bytes] = unpack(packet)?;
        let command = match (code, bytes) {
            (1, bytes) => Command::Evict { bytes },
            (2, 0) => Command::Restore,
            (3, 0) => Command::Report,
            _ => return None,
        };
        Some(Self { number, command })
    }
}

impl Report {
    /// Encodes the packet.
    #[must_use]
    pub fn to_bytes(self) -> [u8; REPORT_BYTES] {
        let kind = match self.kind {
            ReportKind::Hello => 1,
            ReportKind::Done => 2,
        };
        let who = u64::from(self.pid) | u64::from(self.error) << 32;
        pack([kind, self.number, who, self.moved, self.nanos, self.managed, self.resident, self.device, self.host])
    }

    /// Decodes a packet; `None` when it is malformed.
    #[must_use]
    pub fn from_bytes(packet: &[u8]) -> Option<Self> {
        let [kind, number, who, moved, nanos, managed, resident, device, host] = unpack(packet)?;
        let kind = match kind {
            1 => ReportKind::Hello,
            2 => ReportKind::Done,
            _ => return None,
        };
        let pid = u32::try_from(who & 0xffff_ffff).ok()?;
        let error = u32::try_from(who >> 32).ok()?;
        Some(Self { kind, number, pid, error, moved, nanos, managed, resident, device, host })
    }
}

fn pack<const WORDS: usize, const BYTES: usize>(words: [u64; WORDS]) -> [u8; BYTES] {
    let mut packet = [0; BYTES];
    for (place, word) in packet.chunks_exact_mut(8).zip(words) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    packet
}

fn unpack<const WORDS: usize>(packet: &[u8]) -> Option<[u64; WORDS]> {
    let mut words = [0; WORDS];
    if packet.len() != WORDS * 8 {
        return None;
    }
    for (word, bytes) in words.iter_mut().zip(packet.chunks_exact(8)) {
        *word = u64::from_le_bytes(*bytes.first_chunk()?);
    }
    Some(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_survive_a_round_trip() {
        for command in [Command::Evict { bytes: u64::MAX }, Command::Restore, Command::Report] {
            let packet = CommandPacket { number: 0x0102_0304_0506_0708, command };
            assert_eq!(CommandPacket::from_bytes(&packet.to_bytes()), Some(packet));
        }
        let packet = CommandPacket { number: 1, command: Command::Evict { bytes: 2 } }.to_bytes();
        assert_eq!(packet, [1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn reports_survive_a_round_trip() {
        for kind in [ReportKind::Hello, ReportKind::Done] {
            let report = Report {
                kind,
                number: 2,
                pid: u32::MAX,
                error: 999,
                moved: 5,
                nanos: 6,
                managed: 7,
                resident: 8,
                device: 9,
                host: u64::MAX,
            };
            assert_eq!(Report::from_bytes(&report.to_bytes()), Some(report));
        }
    }

    #[test]
    fn malformed_packets_are_refused() {
        let (order, report) =
            (CommandPacket { number: 1, command: Command::Report }.to_bytes(), Report::default().to_bytes());
        for cut in 0..REPORT_BYTES {
            assert_eq!(Report::from_bytes(&report[..cut]), None);
        }
        assert_eq!(CommandPacket::from_bytes(&order[..23]), None);
        assert_eq!(CommandPacket::from_bytes(&[order.as_slice(), &[0]].concat()), None);
        for code in [0, 4, 255] {
            let mut packet = order;
            packet[8] = code;
            assert_eq!(CommandPacket::from_bytes(&packet), None);
        }
        let mut packet = report;
        packet[0] = 3;
        assert_eq!(Report::from_bytes(&packet), None);
    }
}
