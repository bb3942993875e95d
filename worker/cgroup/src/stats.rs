//! Current use of a group: a few `pread`s on files that stay open, for metrics and `omnictl top`.

use crate::{CgroupPaths, Error};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Use of one group at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// Memory charged to the group, page cache included, in bytes.
    pub memory_bytes: u64,
    /// Limit of its memory in bytes, `None` when there is none.
    pub memory_limit_bytes: Option<u64>,
    /// CPU time since the group was made, in microseconds.
    pub cpu_usec: u64,
    /// Number of processes and threads.
    pub pids: u64,
}

/// Open files of one group.
#[derive(Debug)]
pub struct Stats {
    memory: Counter,
    limit: Counter,
    cpu: Counter,
    pids: Counter,
}

/// Number of the kernel, in a file that stays open.
#[derive(Debug)]
pub(crate) struct Counter {
    file: File,
    path: PathBuf,
    parse: fn(&str) -> Option<Option<u64>>,
}

impl Stats {
    /// Opens the files of an existing group.
    ///
    /// # Errors
    /// [`Error::Io`] when one is missing.
    pub fn open(paths: &CgroupPaths) -> Result<Self, Error> {
        match paths {
            CgroupPaths::V2 { dir } => Ok(Self {
                memory: Counter::open(dir, "memory.current", number)?,
                limit: Counter::open(dir, "memory.max", limit)?,
                cpu: Counter::of_cpu(paths)?,
                pids: Counter::open(dir, "pids.current", number)?,
            }),
            CgroupPaths::V1 { memory, pids, .. } => Ok(Self {
                memory: Counter::open(memory, "memory.usage_in_bytes", number)?,
                limit: Counter::open(memory, "memory.limit_in_bytes", limit)?,
                cpu: Counter::of_cpu(paths)?,
                pids: Counter::open(pids, "pids.current", number)?,
            }),
        }
    }

    /// Reads all of them.
    ///
    /// # Errors
    /// [`Error::Io`] once the group is removed.
    pub fn read(&self) -> Result<Usage, Error> {
        Ok(Usage {
            memory_bytes: self.memory.read()?.unwrap_or(0),
            memory_limit_bytes: self.limit.read()?,
            cpu_usec: self.cpu.read()?.unwrap_or(0),
            pids: self.pids.read()?.unwrap_or(0),
        })
    }
}

impl Counter {
    /// Opens the counter of processor time, in microseconds.
    pub(crate) fn of_cpu(paths: &CgroupPaths) -> Result<Self, Error> {
        match paths {
            CgroupPaths::V2 { dir } => Self::open(dir, "cpu.stat", usage_usec),
            CgroupPaths::V1 { cpuacct, .. } => Self::open(cpuacct, "cpuacct.usage", nanoseconds),
        }
    }

    fn open(dir: &Path, name: &str, parse: fn(&str) -> Option<Option<u64>>) -> Result<Self, Error> {
        let path = dir.join(name);
        let file = File::open(&path).map_err(Error::io("open", &path))?;
        Ok(Self { file, path, parse })
    }

    pub(crate) fn read(&self) -> Result<Option<u64>, Error> {
        // `usage_usec` is the first line of `cpu.stat`; the other files are one number.
        let mut buffer = [0; 128];
        let length = self.file.read_at(&mut buffer, 0).map_err(Error::io("read", &self.path))?;
        let text = String::from_utf8_lossy(&buffer[..length]);
        (self.parse)(text.trim()).ok_or_else(|| Error::content(&self.path, &text))
    }
}

fn number(text: &str) -> Option<Option<u64>> {
    text.parse().ok().map(Some)
}

fn nanoseconds(text: &str) -> Option<Option<u64>> {
    text.parse::<u64>().ok().map(|nanos| Some(nanos / 1000))
}

fn usage_usec(text: &str) -> Option<Option<u64>> {
    text.lines().find_map(|line| line.strip_prefix("usage_usec ")?.parse().ok()).map(Some)
}

/// Parses a limit: "no limit" is a word on v2, and on v1 the largest whole number of pages in an `i64`.
fn limit(text: &str) -> Option<Option<u64>> {
    match text {
        "max" => Some(None),
        _ => text.parse().ok().map(|bytes: u64| (bytes < 0x7fff_ffff_ffff_0000).then_some(bytes)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms() {
        assert_eq!(limit("max"), Some(None));
        assert_eq!(limit("9223372036854771712"), Some(None));
        assert_eq!(limit("1048576"), Some(Some(1_048_576)));
        assert_eq!(limit("-1"), None);
        assert_eq!(nanoseconds("12345678"), Some(Some(12_345)));
        assert_eq!(usage_usec("usage_usec 77\nuser_usec 70\nsystem_usec 7\nnr_peri"), Some(Some(77)));
        assert_eq!(number(""), None);
    }
}
