//! Processor time of one group: its limit, its use, the processors it may be on, and its lower weight there. The
//! launcher confines instances that compute all the time to few processors. Needs the cpuset controller; without it
//! there is no share to open.

use crate::file::{read, write};
use crate::limits::Setting;
use crate::stats::Counter;
use crate::{CgroupPaths, CpuSet, Error, Limits};
use std::fs;
use std::path::{Path, PathBuf};

/// Existing group with a limit of processor time.
#[derive(Debug)]
pub struct CpuShare {
    used: Counter,
    limit_millis: u32,
    processors: PathBuf,
    /// Text that lifts its own bound: on v2 nothing, and on v1, where a group with processes must name some, those of
    /// the group above.
    inherits: bool,
    /// File with the weight of its instance among the others, and its value there.
    weight: Option<(PathBuf, u64)>,
}

/// Divisor of the weight of a confined instance. A neighbour that was put on the same processors, since it was idle for
/// a moment, then does its work at once, instead of in turns of some milliseconds.
const STANDS_BACK: u64 = 8;

impl CpuShare {
    /// Opens a group; `None` when it has no limit of processor time, or its processors cannot be chosen.
    ///
    /// # Errors
    /// [`Error::Io`] and [`Error::Content`] when the kernel's files are not as they should be, or gone.
    pub fn open(paths: &CgroupPaths) -> Result<Option<Self>, Error> {
        let Some(processors) = paths.cpuset().map(|dir| dir.join("cpuset.cpus")).filter(|file| file.exists()) else {
            return Ok(None);
        };
        let (limit, inherits) = match paths {
            CgroupPaths::V2 { dir } => (read(&dir.join("cpu.max"))?, true),
            CgroupPaths::V1 { cpu, .. } => {
                let quota = read(&cpu.join("cpu.cfs_quota_us"))?;
                (format!("{} {}", quota.trim(), read(&cpu.join("cpu.cfs_period_us"))?), false)
            }
        };
        let Some(limit_millis) = millis(&limit) else { return Ok(None) };
        let limits = Limits { cpu_millis: Some(limit_millis), ..Limits::default() };
        let weight = limits.weight(paths).filter(|setting| setting.file.exists());
        let weight = weight.and_then(|Setting { file, value }| Some((file, value.parse().ok()?)));
        Ok(Some(Self { used: Counter::of_cpu(paths)?, limit_millis, processors, inherits, weight }))
    }

    /// Limit in thousandths of a processor.
    #[must_use]
    pub fn limit_millis(&self) -> u32 {
        self.limit_millis
    }

    /// Processor time since the group was made, in microseconds.
    ///
    /// # Errors
    /// [`Error::Io`] once the group is gone.
    pub fn used_usec(&self) -> Result<u64, Error> {
        Ok(self.used.read()?.unwrap_or(0))
    }

    /// Confines the group to these processors from now on, its running processes as well, and lowers its weight.
    ///
    /// # Errors
    /// [`Error::Io`] when the kernel refuses: a processor is gone, or the group.
    pub fn keep_to(&self, processors: &CpuSet) -> Result<(), Error> {
        write(&self.processors, &processors.to_string())?;
        self.weigh(STANDS_BACK)
    }

    /// Lets the group run on `all` processors again, with its full weight.
    ///
    /// # Errors
    /// As [`CpuShare::keep_to`].
    pub fn let_go(&self, all: &CpuSet) -> Result<(), Error> {
        write(&self.processors, &if self.inherits { "\n".to_owned() } else { all.to_string() })?;
        self.weigh(1)
    }

    fn weigh(&self, part: u64) -> Result<(), Error> {
        // No weight is below 2 on version 1.
        let of = |whole: u64| (whole / part).max(whole.min(2));
        self.weight.as_ref().map_or(Ok(()), |(file, whole)| write(file, &of(*whole).to_string()))
    }
}

/// `CAP_SYS_NICE`, by its number in `linux/capability.h`.
const SYS_NICE: u32 = 23;

/// `true` if this process may choose processors: the kernel demands `CAP_SYS_NICE` when another user's process comes
/// into a group with this controller, and when the controller is enabled above groups with processes.
pub(crate) fn may_choose() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    effective.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).is_some_and(|set| set >> SYS_NICE & 1 == 1)
}

/// Processors of the groups below `dir`, which is in the cpuset hierarchy.
pub(crate) fn available(paths: &CgroupPaths) -> Result<CpuSet, Error> {
    let file = match paths {
        CgroupPaths::V2 { dir } => dir.join("cpuset.cpus.effective"),
        CgroupPaths::V1 { cpuset: Some(dir), .. } => dir.join("cpuset.effective_cpus"),
        CgroupPaths::V1 { cpuset: None, .. } => return Ok(CpuSet::default()),
    };
    let text = read(&file)?;
    CpuSet::parse(&text).ok_or_else(|| Error::content(&file, &text))
}

/// Copies processors and memory nodes from the group above: on v1 a new group has none, and takes no process before it
/// has.
pub(crate) fn inherit(dir: &Path) -> Result<(), Error> {
    let Some(above) = dir.parent() else { return Ok(()) };
    ["cpuset.mems", "cpuset.cpus"].into_iter().try_for_each(|name| {
        let file = dir.join(name);
        if !read(&file)?.trim().is_empty() {
            return Ok(());
        }
        write(&file, read(&above.join(name))?.trim())
    })
}

/// Parses quota and period, of which the quota may be none. Pure.
fn millis(text: &str) -> Option<u32> {
    let (quota, period) = text.trim().split_once(' ')?;
    let (quota, period): (u64, u64) = (quota.parse().ok()?, period.parse().ok()?);
    u32::try_from((quota * 1000).checked_div(period)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits() {
        for (text, expected) in [
            ("150000 100000", Some(1500)),
            ("max 100000\n", None),
            ("-1 100000\n", None),
            ("50000 100000\n", Some(500)),
            ("1 0", None),
            ("", None),
        ] {
            assert_eq!(millis(text), expected, "{text}");
        }
    }
}
