//! Processors that a group is shown, and the time that it has used of them.
//!
//! Used on the server's thread for every `open`. The counters' files stay open, as those of `cgroup` do. A processor is
//! shown under its own number: `/proc`, `/sys` and the kernel mean the same one.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use crate::render::{self, Load};
use crate::sample::{ProcessorSample, SampleError};

/// Longest text read, more than that of a machine with thousands of processors.
const CPUINFO_MAX: u64 = 16 << 20;
/// Bound of a processor's number, above every kernel's.
const NUMBER_MAX: u32 = 1 << 13;

/// Processors shown to a group with a limit.
#[derive(Clone, Debug)]
pub struct Shown {
    numbers: Arc<[u32]>,
    limit_millis: u32,
    cpuinfo: Arc<OnceLock<Arc<[u8]>>>,
}

impl Shown {
    /// Processors for a limit in thousandths of one: the limit rounded up, at least one, and never more than this
    /// process may run on; the first ones.
    ///
    /// # Errors
    /// When the kernel's list of processors cannot be read.
    pub fn by_limit(limit_millis: u32) -> io::Result<Self> {
        let unreadable = || io::Error::other("the kernel's list of processors is not in its format");
        let online = numbers(&fs::read_to_string("/sys/devices/system/cpu/online")?).ok_or_else(unreadable)?;
        let status = fs::read_to_string("/proc/self/status")?;
        let own = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        let own = own.and_then(numbers).ok_or_else(unreadable)?;
        let wanted = usize::try_from(limit_millis.div_ceil(1000).max(1)).unwrap_or(usize::MAX);
        let numbers: Vec<u32> = online.into_iter().filter(|number| own.contains(number)).take(wanted).collect();
        if numbers.is_empty() {
            return Err(unreadable());
        }
        Ok(Self { numbers: numbers.into(), limit_millis, cpuinfo: Arc::default() })
    }

    /// Numbers of the processors, in order.
    #[must_use]
    pub fn numbers(&self) -> &[u32] {
        &self.numbers
    }

    /// List in the kernel's form, with a newline.
    pub(crate) fn list(&self) -> String {
        list(&self.numbers)
    }

    /// Text of `/proc/cpuinfo`: made once, since it does not change.
    pub(crate) fn cpuinfo(&self) -> Result<Arc<[u8]>, SampleError> {
        if let Some(text) = self.cpuinfo.get() {
            return Ok(Arc::clone(text));
        }
        let read = |source| SampleError::Read { file: "/proc/cpuinfo", source };
        let mut text = String::new();
        File::open("/proc/cpuinfo").map_err(read)?.take(CPUINFO_MAX).read_to_string(&mut text).map_err(read)?;
        let shown = render::cpuinfo(&text, &self.numbers).into_bytes().into();
        Ok(Arc::clone(self.cpuinfo.get_or_init(|| shown)))
    }
}

/// Processor time of one group, from the moment that this is opened on.
pub struct Processors {
    shown: Shown,
    time: Time,
    began: Instant,
    began_unix: u64,
    load: Mutex<Load>,
}

/// Counters of processor time.
enum Time {
    /// Time of programs and of the kernel, in nanoseconds each.
    V1([File; 2]),
    /// Both in one file.
    V2(File),
}

impl Processors {
    /// Opens the counters of the group at `dir`, a directory of cgroup v1's cpuacct hierarchy. `now_unix`, in seconds
    /// since 1970, is shown as its start.
    ///
    /// # Errors
    /// When a counter's file cannot be opened.
    pub fn open_v1(dir: &Path, shown: Shown, now_unix: u64) -> Result<Self, SampleError> {
        Ok(Self::new(Time::V1([open(dir, V1[0])?, open(dir, V1[1])?]), shown, now_unix))
    }

    /// As [`Processors::open_v1`], of the group at `dir`, a directory of cgroup v2.
    ///
    /// # Errors
    /// When the counters' file cannot be opened.
    pub fn open_v2(dir: &Path, shown: Shown, now_unix: u64) -> Result<Self, SampleError> {
        Ok(Self::new(Time::V2(open(dir, V2)?), shown, now_unix))
    }

    fn new(time: Time, shown: Shown, began_unix: u64) -> Self {
        Self { shown, time, began: Instant::now(), began_unix, load: Mutex::default() }
    }

    pub(crate) fn shown(&self) -> &Shown {
        &self.shown
    }

    pub(crate) fn sample(&self) -> Result<ProcessorSample<'_>, SampleError> {
        let (user_usec, system_usec) = match &self.time {
            Time::V1([user, system]) => (number(user, V1[0], "")? / 1000, number(system, V1[1], "")? / 1000),
            Time::V2(file) => (number(file, V2, "user_usec ")?, number(file, V2, "system_usec ")?),
        };
        let Self { shown: Shown { numbers, limit_millis, .. }, began, began_unix, .. } = self;
        let (limit_millis, began_unix) = (*limit_millis, *began_unix);
        Ok(ProcessorSample { numbers, limit_millis, user_usec, system_usec, up: began.elapsed(), began_unix })
    }

    /// Averages now. They are consistent between any two calls, so a poisoned lock is still good.
    pub(crate) fn load(&self) -> Result<Load, SampleError> {
        let sample = self.sample()?;
        let mut load = self.load.lock().unwrap_or_else(PoisonError::into_inner);
        *load = load.at(sample.up, sample.user_usec.saturating_add(sample.system_usec));
        Ok(*load)
    }
}

const V1: [&str; 2] = ["cpuacct.usage_user", "cpuacct.usage_sys"];
const V2: &str = "cpu.stat";

fn open(dir: &Path, name: &str) -> Result<File, SampleError> {
    let path = dir.join(name);
    File::open(&path).map_err(|source| SampleError::Open { path, source })
}

/// Number on the line with this prefix. The fields are at the beginning of the file.
fn number(file: &File, name: &'static str, field: &'static str) -> Result<u64, SampleError> {
    let mut buffer = [0; 256];
    let length = file.read_at(&mut buffer, 0).map_err(|source| SampleError::Read { file: name, source })?;
    let text = String::from_utf8_lossy(&buffer[..length]);
    let found = text.lines().find_map(|line| line.strip_prefix(field)?.trim().parse().ok());
    found.ok_or(SampleError::Malformed { file: name, field: field.trim_end() })
}

/// Parses the kernel's list form, `0-3,8`. Pure.
fn numbers(text: &str) -> Option<Vec<u32>> {
    let number = |text: &str| text.parse().ok().filter(|number| *number < NUMBER_MAX);
    let ranges = text.trim().split(',').map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(number(first)?..=number(last)?)
    });
    Some(ranges.collect::<Option<Vec<_>>>()?.into_iter().flatten().collect())
}

/// Formats ordered numbers in the kernel's list form, with a newline. Pure.
fn list(numbers: &[u32]) -> String {
    let ranges = numbers.chunk_by(|one, next| next - one == 1).filter_map(|range| match range {
        [] => None,
        [one] => Some(one.to_string()),
        [first, .., last] => Some(format!("{first}-{last}")),
    });
    ranges.collect::<Vec<_>>().join(",") + "\n"
}

#[cfg(test)]
mod tests;
