//! View of one control group: its memory and its processors, file by file.
//!
//! Used on the server's thread for every `open`.

use crate::processors::Processors;
use crate::render;
use crate::sample::{MemorySource, SampleError};
use crate::snapshots::Text;

/// File of the file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum File {
    /// `/proc/meminfo`
    Meminfo,
    /// `/proc/cpuinfo`
    Cpuinfo,
    /// `/proc/stat`
    Stat,
    /// `/proc/loadavg`
    Loadavg,
    /// `/proc/uptime`
    Uptime,
    /// `/proc/swaps`
    Swaps,
    /// `/sys/devices/system/cpu/online`
    Online,
    /// `/sys/devices/system/cpu/possible`
    Possible,
    /// `/sys/devices/system/cpu/present`
    Present,
}

impl File {
    /// Every file.
    pub const ALL: [Self; 9] = [
        Self::Meminfo,
        Self::Cpuinfo,
        Self::Stat,
        Self::Loadavg,
        Self::Uptime,
        Self::Swaps,
        Self::Online,
        Self::Possible,
        Self::Present,
    ];

    /// Path at which programs look for it.
    #[must_use]
    pub fn place(self) -> &'static str {
        match self {
            Self::Meminfo => "/proc/meminfo",
            Self::Cpuinfo => "/proc/cpuinfo",
            Self::Stat => "/proc/stat",
            Self::Loadavg => "/proc/loadavg",
            Self::Uptime => "/proc/uptime",
            Self::Swaps => "/proc/swaps",
            Self::Online => "/sys/devices/system/cpu/online",
            Self::Possible => "/sys/devices/system/cpu/possible",
            Self::Present => "/sys/devices/system/cpu/present",
        }
    }

    /// Name in the root directory of the file system: the last part of its path.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.place().rsplit('/').next().unwrap_or_default()
    }
}

/// Group as its readers see it.
pub struct View {
    memory: Box<dyn MemorySource>,
    processors: Processors,
}

impl View {
    /// View of a group with this memory and these processors.
    pub fn new(memory: impl MemorySource, processors: Processors) -> Self {
        Self { memory: Box::new(memory), processors }
    }

    /// Checks that all numbers can be read, before a reader asks for them.
    pub(crate) fn check(&self) -> Result<(), SampleError> {
        self.memory.sample()?;
        self.processors.sample().map(drop)
    }

    /// Writes the text of a file as of now.
    pub(crate) fn write(&self, file: File, text: &mut Text) -> Result<(), SampleError> {
        let shown = self.processors.shown();
        match file {
            File::Meminfo => render::meminfo(&self.memory.sample()?, text.fresh()),
            File::Cpuinfo => text.share(shown.cpuinfo()?),
            File::Stat => render::stat(&self.processors.sample()?, text.fresh()),
            File::Loadavg => render::loadavg(&self.processors.load()?, text.fresh()),
            File::Uptime => render::uptime(&self.processors.sample()?, text.fresh()),
            File::Swaps => text.fresh().extend_from_slice(render::SWAPS),
            File::Online | File::Possible | File::Present => text.fresh().extend_from_slice(shown.list().as_bytes()),
        }
        Ok(())
    }
}
