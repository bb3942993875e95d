//! Room for a copy, checked before it is begun: a full disk troubles every model.

use crate::SnapshotError;
use nix::sys::statvfs::statvfs;
use std::path::Path;

/// Copies leave this part of a disk.
const PART: u64 = 20;
/// And no more bytes than these.
const MOST: u64 = 4 << 30;
/// Smaller copies are tried: the disk itself says no.
const SMALL: u64 = 64 << 20;

/// Refuses a copy of `need` bytes that would leave too little of the disk of `dir`. One that does not say what it has is
/// not asked further.
pub(crate) fn check(dir: &Path, need: u64) -> Result<(), SnapshotError> {
    let Ok(disk) = statvfs(dir) else { return Ok(()) };
    let block = disk.fragment_size();
    let have = usable(disk.blocks_available().saturating_mul(block), disk.blocks().saturating_mul(block));
    if need < SMALL || need <= have { Ok(()) } else { Err(SnapshotError::NoRoom { need, have, dir: dir.to_owned() }) }
}

fn usable(left: u64, all: u64) -> u64 {
    left.saturating_sub((all / PART).min(MOST))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_twentieth_is_left_and_four_gibibytes_at_most() {
        const GIB: u64 = 1 << 30;
        for (left, all, expected) in
            [(10 * GIB, 40 * GIB, 8 * GIB), (10 * GIB, 4000 * GIB, 6 * GIB), (GIB, 40 * GIB, 0)]
        {
            assert_eq!(usable(left, all), expected, "{left} of {all}");
        }
    }

    #[test]
    fn the_error_has_both_numbers() {
        let dir = tempfile::tempdir().unwrap();
        check(dir.path(), SMALL - 1).unwrap();
        let error = check(dir.path(), u64::MAX).unwrap_err().to_string();
        assert!(error.contains("needs 16777216.0 TiB") || error.contains("needs 16777215.9 TiB"), "{error}");
        assert!(error.contains("has "), "{error}");
    }
}
