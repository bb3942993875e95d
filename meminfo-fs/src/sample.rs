//! Memory and processors of a group at one moment, and the interface of their sources.
//!
//! Plain values between the sources (`cgroup`, `processors`) and the text (`render`). A source returns an error for a
//! number that it does not know; a number in a sample was read from the kernel.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Memory of one control group and its descendants at one moment. Every field is in bytes.
///
/// The counters are read one after another while the group runs, so they need not add up;
/// [`meminfo`](fn@crate::meminfo) makes a consistent picture of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemorySample {
    /// Limit of the group, which is shown as the machine's memory.
    pub limit: u64,
    /// Memory charged to the group: anonymous memory, page cache and kernel memory. May exceed `limit`.
    pub usage: u64,
    /// Anonymous memory.
    pub anon: u64,
    /// Page cache, with shared memory and tmpfs.
    pub file: u64,
    /// Shared memory and tmpfs; a part of `file`.
    pub shmem: u64,
    /// Page cache mapped into a process.
    pub mapped: u64,
    /// Page cache not yet written back.
    pub dirty: u64,
    /// Page cache being written back now.
    pub writeback: u64,
    /// Anonymous memory (with tmpfs) used of late.
    pub active_anon: u64,
    /// Anonymous memory (with tmpfs) not used of late.
    pub inactive_anon: u64,
    /// Page cache used of late.
    pub active_file: u64,
    /// Page cache not used of late.
    pub inactive_file: u64,
    /// Memory that cannot be reclaimed, such as locked pages.
    pub unevictable: u64,
    /// Kernel objects that can be reclaimed, such as directory entries. 0 on cgroup v1, which does not count them.
    pub slab_reclaimable: u64,
    /// Kernel objects that cannot be reclaimed. 0 on cgroup v1.
    pub slab_unreclaimable: u64,
    /// Kernel stacks. 0 on cgroup v1.
    pub kernel_stack: u64,
    /// Page tables. 0 on cgroup v1.
    pub page_tables: u64,
}

/// Processor time of a group at one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProcessorSample<'a> {
    /// Processors that it is shown.
    pub(crate) numbers: &'a [u32],
    /// Limit, in thousandths of a processor.
    pub(crate) limit_millis: u32,
    /// Time of programs since the start, in microseconds.
    pub(crate) user_usec: u64,
    /// Time of the kernel on their behalf, in microseconds.
    pub(crate) system_usec: u64,
    /// Time since the start.
    pub(crate) up: Duration,
    /// Start, in seconds since 1970.
    pub(crate) began_unix: u64,
}

impl ProcessorSample<'_> {
    /// Time that the limit left unused, in microseconds: a group at its limit is busy all the time.
    pub(crate) fn idle_usec(&self) -> u64 {
        let most = u64::try_from(self.numbers.len()).unwrap_or(u64::MAX).saturating_mul(1000);
        let millis = u128::from(u64::from(self.limit_millis).min(most));
        let given = u64::try_from(self.up.as_micros().saturating_mul(millis) / 1000).unwrap_or(u64::MAX);
        given.saturating_sub(self.user_usec.saturating_add(self.system_usec))
    }
}

/// Source of samples. Read once for every `open` of `meminfo`, on the server's thread: a slow source makes every reader
/// of the file system wait.
pub trait MemorySource: Send + Sync + 'static {
    /// Reads the group's memory.
    ///
    /// # Errors
    /// When a number is not known; the reader then gets `EIO`.
    fn sample(&self) -> Result<MemorySample, SampleError>;
}

/// Source chosen at run time, by the version of the controller.
impl<S: MemorySource + ?Sized> MemorySource for Box<S> {
    fn sample(&self) -> Result<MemorySample, SampleError> {
        (**self).sample()
    }
}

/// Reason why there is no sample.
#[derive(Debug, thiserror::Error)]
pub enum SampleError {
    /// A counter's file could not be opened: no such group, or the controller is not enabled for it.
    #[error("cannot open {}: is this a control group with its controllers?", path.display())]
    Open {
        /// Path of the file.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A counter's file could not be read; `ENODEV` says that the group was removed.
    #[error("cannot read {file} of the control group")]
    Read {
        /// File name in the group's directory.
        file: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A file is not in the kernel's format.
    #[error("{file} of the control group has no number for `{field}`")]
    Malformed {
        /// File name in the group's directory.
        file: &'static str,
        /// Name of the missing field.
        field: &'static str,
    },
    /// The group has no limit, so there is nothing to show as its total.
    #[error("{file} of the control group is unlimited: set a limit before its memory is shown")]
    Unlimited {
        /// File name in the group's directory.
        file: &'static str,
    },
}
