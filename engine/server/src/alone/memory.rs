//! Memory of a process that is alone: sizes on the command line, and the limit of its control group.

use std::fs;
use std::path::{Path, PathBuf};

/// Units of a size, each with its bytes.
const UNITS: [(&str, u64); 9] = [
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("K", 1000),
    ("M", 1_000_000),
    ("G", 1_000_000_000),
    ("T", 1_000_000_000_000),
    ("", 1),
];

/// Reads a size, such as `4GiB`, `4G` or a number of bytes.
///
/// # Errors
/// The text is none.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let digits = text.len() - text.trim_start_matches(|character: char| character.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let unit = UNITS.iter().find(|(name, _)| *name == unit.trim()).map(|(_, bytes)| *bytes);
    let bytes = number.parse::<u64>().ok().zip(unit).and_then(|(number, unit)| number.checked_mul(unit));
    bytes.ok_or_else(|| format!("{text:?} is no size: write it as 4GiB, 500M, or in bytes"))
}

/// Memory for the model, if the command line does not say: what is left to the process's control group, or half of what the
/// machine has available.
///
/// # Errors
/// The machine's memory cannot be read.
pub(super) fn default_size() -> std::io::Result<u64> {
    let available = crate::memory::available()?;
    Ok(limit(Path::new("/sys/fs/cgroup")).map_or(available / 2, |limit| limit.min(available)))
}

/// Smallest memory limit of the process's control group and those above it; `None`: there is none.
fn limit(root: &Path) -> Option<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    groups.lines().filter_map(|line| limit_of(root, line)).min()
}

/// Limit by a line of `/proc/self/cgroup`: `0::/path` of version 2, `4:memory:/path` of version 1.
fn limit_of(root: &Path, line: &str) -> Option<u64> {
    let mut fields = line.splitn(3, ':');
    let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
    let (root, file) = match controllers {
        "" => (root.to_owned(), "memory.max"),
        list if list.split(',').any(|name| name == "memory") => (root.join("memory"), "memory.limit_in_bytes"),
        _ => return None,
    };
    let group: PathBuf = root.join(path.trim_start_matches('/'));
    let above = group.ancestors().take_while(|folder| folder.starts_with(&root));
    let limits = above.filter_map(|folder| fs::read_to_string(folder.join(file)).ok()?.trim().parse().ok());
    // Version 1 writes a number beyond all memory where there is no limit.
    limits.filter(|limit: &u64| *limit < 1 << 60).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        for (text, expected) in
            [("4GiB", 4 << 30), ("500M", 500_000_000), ("512 MiB", 512 << 20), ("17", 17), ("2T", 2_000_000_000_000)]
        {
            assert_eq!(parse_size(text), Ok(expected), "{text}");
        }
        for bad in ["", "GiB", "4GB", "-1", "1.5GiB", "99999999999TiB"] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_smallest_limit_of_all_groups_above_counts() {
        let root = std::env::temp_dir().join(format!("omni-engine-limits-{}", std::process::id()));
        let group = root.join("a/b");
        fs::create_dir_all(&group).unwrap();
        fs::create_dir_all(root.join("memory/a")).unwrap();
        fs::write(root.join("a/memory.max"), "1000\n").unwrap();
        fs::write(group.join("memory.max"), "max\n").unwrap();
        fs::write(root.join("memory/memory.limit_in_bytes"), "9223372036854771712\n").unwrap();
        assert_eq!(limit_of(&root, "0::/a/b"), Some(1000));
        assert_eq!(limit_of(&root, "0::/other"), None);
        assert_eq!(limit_of(&root, "4:memory:/a"), None);
        fs::write(root.join("memory/a/memory.limit_in_bytes"), "2000\n").unwrap();
        assert_eq!(limit_of(&root, "4:cpu,memory:/a"), Some(2000));
        assert_eq!(limit_of(&root, "3:cpu:/a"), None);
        fs::remove_dir_all(&root).unwrap();
    }
}
