//! Samples from the memory controller of cgroup v1 and v2.
//!
//! Read on the server's thread for every `open` of the file, so the counters' files stay open and are read by `pread`
//! at offset 0 into a buffer on the stack. An open counter does not keep a removed group alive. Both layouts are one
//! table each; the fields were checked against Linux 6.1 to 6.18, and an absent one is an error, not a zero.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::str;

use crate::sample::{MemorySample, MemorySource, SampleError};

/// Longest file: the kernel writes `memory.stat` from a buffer of one page; anything longer is not a file of this kind.
const FILE_MAX: usize = 8192;

/// File names of one version of the controller.
struct Layout {
    limit: &'static str,
    usage: &'static str,
    unlimited: fn(&str) -> bool,
    stat: &'static [Counter],
}

/// Field of `memory.stat`, in bytes, and its place in a sample.
type Counter = (&'static str, fn(&mut MemorySample) -> &mut u64);

const STAT: &str = "memory.stat";

static V1: Layout = Layout {
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    // "No limit" is the largest whole number of pages in an i64: it ends in 0xf000 or, with 64 KiB pages, 0x0000.
    unlimited: |text| text.parse().is_ok_and(|bytes: u64| bytes >= 0x7fff_ffff_ffff_0000),
    // Without the prefix the counters leave out the group's children.
    stat: &[
        ("total_cache", |sample| &mut sample.file),
        ("total_rss", |sample| &mut sample.anon),
        ("total_shmem", |sample| &mut sample.shmem),
        ("total_mapped_file", |sample| &mut sample.mapped),
        ("total_dirty", |sample| &mut sample.dirty),
        ("total_writeback", |sample| &mut sample.writeback),
        ("total_inactive_anon", |sample| &mut sample.inactive_anon),
        ("total_active_anon", |sample| &mut sample.active_anon),
        ("total_inactive_file", |sample| &mut sample.inactive_file),
        ("total_active_file", |sample| &mut sample.active_file),
        ("total_unevictable", |sample| &mut sample.unevictable),
    ],
};

static V2: Layout = Layout {
    limit: "memory.max",
    usage: "memory.current",
    unlimited: |text| text == "max",
    stat: &[
        ("anon", |sample| &mut sample.anon),
        ("file", |sample| &mut sample.file),
        ("kernel_stack", |sample| &mut sample.kernel_stack),
        ("pagetables", |sample| &mut sample.page_tables),
        ("shmem", |sample| &mut sample.shmem),
        ("file_mapped", |sample| &mut sample.mapped),
        ("file_dirty", |sample| &mut sample.dirty),
        ("file_writeback", |sample| &mut sample.writeback),
        ("inactive_anon", |sample| &mut sample.inactive_anon),
        ("active_anon", |sample| &mut sample.active_anon),
        ("inactive_file", |sample| &mut sample.inactive_file),
        ("active_file", |sample| &mut sample.active_file),
        ("unevictable", |sample| &mut sample.unevictable),
        ("slab_reclaimable", |sample| &mut sample.slab_reclaimable),
        ("slab_unreclaimable", |sample| &mut sample.slab_unreclaimable),
    ],
};

/// Group of the cgroup v1 memory controller.
pub struct CgroupV1(Group);

impl CgroupV1 {
    /// Opens the counters of the group at `dir`, a directory of the memory hierarchy. `shown_limit`, in bytes, is shown
    /// instead of the group's own limit; the group may then be unlimited.
    ///
    /// # Errors
    /// When a counter's file cannot be opened.
    pub fn open(dir: &Path, shown_limit: Option<u64>) -> Result<Self, SampleError> {
        Group::open(&V1, dir, shown_limit).map(Self)
    }
}

impl MemorySource for CgroupV1 {
    fn sample(&self) -> Result<MemorySample, SampleError> {
        self.0.sample()
    }
}

/// Group of cgroup v2 with the memory controller.
pub struct CgroupV2(Group);

impl CgroupV2 {
    /// Opens the counters of the group at `dir`. `shown_limit`, in bytes, is shown instead of the group's own limit; the
    /// group may then be unlimited.
    ///
    /// # Errors
    /// When a counter's file cannot be opened.
    pub fn open(dir: &Path, shown_limit: Option<u64>) -> Result<Self, SampleError> {
        Group::open(&V2, dir, shown_limit).map(Self)
    }
}

impl MemorySource for CgroupV2 {
    fn sample(&self) -> Result<MemorySample, SampleError> {
        self.0.sample()
    }
}

struct Group {
    layout: &'static Layout,
    limit: Limit,
    usage: File,
    stat: File,
}

enum Limit {
    Fixed(u64),
    OfGroup(File),
}

impl Group {
    fn open(layout: &'static Layout, dir: &Path, shown_limit: Option<u64>) -> Result<Self, SampleError> {
        let open = |name| {
            let path = dir.join(name);
            File::open(&path).map_err(|source| SampleError::Open { path, source })
        };
        Ok(Self {
            layout,
            limit: match shown_limit {
                Some(bytes) => Limit::Fixed(bytes),
                None => Limit::OfGroup(open(layout.limit)?),
            },
            usage: open(layout.usage)?,
            stat: open(STAT)?,
        })
    }

    fn sample(&self) -> Result<MemorySample, SampleError> {
        let mut buffer = [0; FILE_MAX];
        let mut sample = MemorySample::default();
        read_counters(read(&self.stat, STAT, &mut buffer)?, self.layout.stat, &mut sample)?;
        sample.usage = bytes(read(&self.usage, self.layout.usage, &mut buffer)?, self.layout.usage)?;
        sample.limit = match &self.limit {
            Limit::Fixed(bytes) => *bytes,
            Limit::OfGroup(file) => {
                let text = read(file, self.layout.limit, &mut buffer)?;
                if (self.layout.unlimited)(text) {
                    return Err(SampleError::Unlimited { file: self.layout.limit });
                }
                bytes(text, self.layout.limit)?
            }
        };
        Ok(sample)
    }
}

/// Reads the whole file without its last newline.
fn read<'a>(file: &File, name: &'static str, buffer: &'a mut [u8; FILE_MAX]) -> Result<&'a str, SampleError> {
    let mut length = 0;
    // Usually one round: the kernel returns a file of this kind whole if it fits. The second sees its end.
    loop {
        match file.read_at(&mut buffer[length..], length as u64) {
            Ok(0) => break,
            Ok(count) => length += count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(source) => return Err(SampleError::Read { file: name, source }),
        }
    }
    if length == buffer.len() {
        return Err(SampleError::Malformed { file: name, field: "end of file" });
    }
    str::from_utf8(&buffer[..length]).map(str::trim_end).map_err(|_| SampleError::Malformed { file: name, field: name })
}

fn bytes(text: &str, name: &'static str) -> Result<u64, SampleError> {
    text.parse().map_err(|_| SampleError::Malformed { file: name, field: name })
}

fn read_counters(text: &str, counters: &[Counter], sample: &mut MemorySample) -> Result<(), SampleError> {
    let mut found = 0_u32;
    for (key, value) in text.lines().filter_map(|line| line.split_once(' ')) {
        if let Some(index) = counters.iter().position(|(name, _)| *name == key) {
            let (name, field) = counters[index];
            *field(sample) = value.parse().map_err(|_| SampleError::Malformed { file: STAT, field: name })?;
            found |= 1 << index;
        }
    }
    match counters.iter().enumerate().find(|(index, _)| found & (1 << index) == 0) {
        Some((_, (name, _))) => Err(SampleError::Malformed { file: STAT, field: name }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests;
