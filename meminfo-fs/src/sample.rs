//! What is known about a group's memory at one moment, and who can say it.
//!
//! Plain values between the sources (`cgroup`) and the text (`render`). A source that does not know says so with an
//! error; a number in a sample was read from the kernel.

use std::io;
use std::path::PathBuf;

/// The memory of one control group and its descendants at one moment. Every field is in bytes.
///
/// The counters are read one after another while the group runs, so they need not add up;
/// [`meminfo`](fn@crate::meminfo) makes a consistent picture of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemorySample {
    /// The most the group may use: what is shown as the machine's memory.
    pub limit: u64,
    /// All that is charged to the group: anonymous memory, page cache and kernel memory. May exceed `limit`.
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

/// Where samples come from. Asked once for every `open` of `meminfo`, on the server's thread: a slow answer makes every
/// reader of the file system wait.
pub trait MemorySource: Send + Sync + 'static {
    /// The group's memory now.
    ///
    /// # Errors
    /// When a number is not known; the reader then gets `EIO`.
    fn sample(&self) -> Result<MemorySample, SampleError>;
}

/// For a caller that finds out at run time which version of the controller it has.
impl<S: MemorySource + ?Sized> MemorySource for Box<S> {
    fn sample(&self) -> Result<MemorySample, SampleError> {
        (**self).sample()
    }
}

/// Why there is no sample.
#[derive(Debug, thiserror::Error)]
pub enum SampleError {
    /// A counter's file could not be opened: no such group, or the controller is not enabled for it.
    #[error("cannot open {}: is this a control group with its controllers?", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A counter's file could not be read; `ENODEV` says that the group was removed.
    #[error("cannot read {file} of the control group")]
    Read {
        /// The file's name in the group's directory.
        file: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A file is not in the kernel's format.
    #[error("{file} of the control group has no number for `{field}`")]
    Malformed {
        /// The file's name in the group's directory.
        file: &'static str,
        /// The field looked for.
        field: &'static str,
    },
    /// The group has no limit, so there is nothing to show as its total.
    #[error("{file} of the control group is unlimited: set a limit before its memory is shown")]
    Unlimited {
        /// The file's name in the group's directory.
        file: &'static str,
    },
}
