//! Plan of a move: bytes to move, in which order. Pure.
//!
//! Eviction takes the youngest allocation first and a range from its end, restoring goes by age from the front. So a
//! partial eviction leaves the oldest memory, in a model its weights, which its next request reads first and which no
//! step grows or frees; and a restore begins with what a request needs first. (This order is within a model; the
//! scheduler decides by use which model is evicted.) Neighbours go with one call, which loses their order: the call
//! counts more.

use crate::ranges::Range;

/// Unit in which the driver keeps managed memory together: a range is cut at multiples of this only.
const BLOCK: u64 = 2 * 1024 * 1024;

/// Part of a range that is to be moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Piece {
    /// Address of its range.
    pub range: u64,
    /// Context of its range.
    pub context: u64,
    /// Address of its first byte.
    pub address: u64,
    pub bytes: u64,
    /// Resident bytes of the range once the piece is moved.
    pub resident: u64,
}

/// Adjacent pieces that one call moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stretch {
    pub address: u64,
    pub bytes: u64,
    /// Number of its pieces.
    pub pieces: usize,
}

/// Plans to evict at least `bytes` of resident memory, or all of it; at most one block more. `ranges` are in order of
/// allocation.
pub(super) fn evict(ranges: &[Range], bytes: u64) -> Vec<Piece> {
    let mut left = bytes;
    let mut pieces = Vec::new();
    for range in ranges.iter().rev().filter(|range| range.resident > 0) {
        if left == 0 {
            break;
        }
        let end = range.address.saturating_add(range.resident);
        let cut = end.saturating_sub(left) / BLOCK * BLOCK;
        let address = cut.max(range.address);
        pieces.push(Piece {
            range: range.address,
            context: range.context,
            address,
            bytes: end - address,
            resident: address - range.address,
        });
        left = left.saturating_sub(end - address);
    }
    pieces
}

/// Plans to restore everything that is not resident. `ranges` are in order of allocation.
pub(super) fn restore(ranges: &[Range]) -> Vec<Piece> {
    let away = ranges.iter().filter(|range| range.resident < range.bytes);
    away.map(|range| Piece {
        range: range.address,
        context: range.context,
        address: range.address.saturating_add(range.resident),
        bytes: range.bytes - range.resident,
        resident: range.bytes,
    })
    .collect()
}

/// Joins adjacent pieces that follow one another, upwards or downwards.
pub(super) fn stretches(pieces: &[Piece]) -> Vec<Stretch> {
    let mut stretches: Vec<Stretch> = Vec::new();
    for piece in pieces {
        match stretches.last_mut() {
            Some(last) if last.address + last.bytes == piece.address => {
                last.bytes += piece.bytes;
                last.pieces += 1;
            }
            Some(last) if piece.address + piece.bytes == last.address => {
                last.address = piece.address;
                last.bytes += piece.bytes;
                last.pieces += 1;
            }
            Some(_) | None => stretches.push(Stretch { address: piece.address, bytes: piece.bytes, pieces: 1 }),
        }
    }
    stretches
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ranges::Kind;

    const MIB: u64 = 1024 * 1024;

    fn range(address: u64, bytes: u64, resident: u64) -> Range {
        Range { resident, ..Range::new(address, bytes, Kind::Managed, 1) }
    }

    fn taken(pieces: &[Piece]) -> Vec<(u64, u64, u64)> {
        pieces.iter().map(|piece| (piece.range, piece.bytes, piece.resident)).collect()
    }

    #[test]
    fn eviction_takes_the_youngest_first_and_stops_at_the_requested_bytes() {
        let ranges = [range(100 * MIB, 10 * MIB, 10 * MIB), range(20 * MIB, 5, 5), range(40 * MIB, 6 * MIB, 6 * MIB)];
        let all = vec![(40 * MIB, 6 * MIB, 0), (20 * MIB, 5, 0), (100 * MIB, 10 * MIB, 0)];
        let table = [
            (0, vec![]),
            (1, vec![(40 * MIB, 2 * MIB, 4 * MIB)]),
            (2 * MIB, vec![(40 * MIB, 2 * MIB, 4 * MIB)]),
            (2 * MIB + 1, vec![(40 * MIB, 4 * MIB, 2 * MIB)]),
            (6 * MIB, vec![(40 * MIB, 6 * MIB, 0)]),
            (6 * MIB + 1, vec![(40 * MIB, 6 * MIB, 0), (20 * MIB, 5, 0)]),
            (6 * MIB + 6, vec![(40 * MIB, 6 * MIB, 0), (20 * MIB, 5, 0), (100 * MIB, 2 * MIB, 8 * MIB)]),
            (16 * MIB + 5, all.clone()),
            (u64::MAX, all),
        ];
        for (bytes, expected) in table {
            let pieces = evict(&ranges, bytes);
            assert_eq!(taken(&pieces), expected, "{bytes}");
            assert!(pieces.iter().all(|piece| piece.address == piece.range + piece.resident));
        }
    }

    #[test]
    fn a_range_that_begins_inside_a_block_is_cut_at_the_end_of_the_block() {
        let ranges = [range(3 * MIB, 4 * MIB, 4 * MIB)];
        assert_eq!(taken(&evict(&ranges, MIB)), [(3 * MIB, MIB, 3 * MIB)]);
        assert_eq!(taken(&evict(&ranges, MIB + 1)), [(3 * MIB, 3 * MIB, MIB)]);
        assert_eq!(taken(&evict(&ranges, 3 * MIB + 1)), [(3 * MIB, 4 * MIB, 0)]);
    }

    #[test]
    fn evicted_memory_is_restored_oldest_first() {
        let ranges = [range(100 * MIB, 10 * MIB, 8 * MIB), range(20 * MIB, 5, 5), range(40 * MIB, 6 * MIB, 0)];
        let pieces = restore(&ranges);
        assert_eq!(taken(&pieces), [(100 * MIB, 2 * MIB, 10 * MIB), (40 * MIB, 6 * MIB, 6 * MIB)]);
        assert_eq!(pieces[0].address, 108 * MIB);
        assert_eq!(taken(&evict(&ranges, u64::MAX)), [(20 * MIB, 5, 0), (100 * MIB, 8 * MIB, 0)], "only what is there");
    }

    #[test]
    fn adjacent_pieces_are_moved_with_one_call() {
        let ranges = [0, 2, 4, 12, 10, 8].map(|at| range((100 + at) * MIB, 2 * MIB, 2 * MIB));
        let pieces = evict(&ranges, u64::MAX);
        let joined = stretches(&pieces);
        assert_eq!(
            joined,
            [
                Stretch { address: 108 * MIB, bytes: 6 * MIB, pieces: 3 },
                Stretch { address: 100 * MIB, bytes: 6 * MIB, pieces: 3 },
            ]
        );
        assert_eq!(joined.iter().map(|stretch| stretch.pieces).sum::<usize>(), pieces.len());
        assert_eq!(stretches(&[]), []);
    }
}
