//! Free space and inodes that builds must leave on the disk that they write to, for the node and its other models: the
//! files of environments and of the package cache have no quota. Checked before a build and while it runs.

use nix::sys::statvfs::statvfs;
use std::path::Path;

/// Builds leave this part of a disk, of its bytes and of its files.
const PART: u64 = 20;
/// And no more bytes than these: what a fast disk takes in two seconds.
const MOST: u64 = 4 << 30;

/// Bytes or files of a file system.
#[derive(Debug, Clone, Copy)]
struct Amount {
    left: u64,
    all: u64,
}

/// Checks that builds may write to the file system of `dir`, or explains why not. A file system that does not report
/// its size is not checked further.
///
/// # Errors
/// How much is left, and what to do.
pub fn check(dir: &Path) -> Result<(), String> {
    let Ok(disk) = statvfs(dir) else { return Ok(()) };
    let block = disk.fragment_size();
    let bytes = Amount { left: disk.blocks_available() * block, all: disk.blocks() * block };
    let files = Amount { left: disk.files_available(), all: disk.files() };
    // File systems that make files as they need them say that they have none.
    let what = if let Some(least) = falls_short(bytes, MOST) {
        let [left, all, least] = [bytes.left, bytes.all, least].map(|bytes| bytes >> 20);
        format!("{left} MiB left of {all} MiB, and builds leave {least} MiB")
    } else if let Some(least) = falls_short(files, u64::MAX) {
        format!("{} files left of {}, and builds leave {least}", files.left, files.all)
    } else {
        return Ok(());
    };
    Err(format!("{} has {what} to the node: make room there", dir.display()))
}

/// Bytes that [`check`] wants left on the file system of `dir`; none where it does not report its size.
#[must_use]
pub fn reserve(dir: &Path) -> u64 {
    statvfs(dir).map_or(0, |disk| least(disk.blocks().saturating_mul(disk.fragment_size()), MOST))
}

/// Part of all bytes or files that is to be left.
fn least(all: u64, most: u64) -> u64 {
    (all / PART).min(most)
}

/// How much should be left, where less is.
fn falls_short(amount: Amount, most: u64) -> Option<u64> {
    let least = least(amount.all, most);
    (amount.left < least).then_some(least)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_twentieth_is_left_and_four_gibibytes_at_most() {
        const GIB: u64 = 1 << 30;
        let table = [
            (100, 40 * GIB, MOST, Some(2 * GIB)),
            (2 * GIB, 40 * GIB, MOST, None),
            (2 * GIB - 1, 40 * GIB, MOST, Some(2 * GIB)),
            (5 * GIB, 4000 * GIB, MOST, None),
            (3 * GIB, 4000 * GIB, MOST, Some(4 * GIB)),
            (0, 0, u64::MAX, None),
            (499, 10_000, u64::MAX, Some(500)),
        ];
        for (left, all, most, least) in table {
            assert_eq!(falls_short(Amount { left, all }, most), least, "{left} of {all}");
        }
    }
}
