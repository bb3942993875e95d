//! Writes of a group to a block device that is its model's alone: their number, and their highest speed. The launcher
//! slows down instances that write without end. Needs the io controller of version 2, or of version 1 blkio and a
//! kernel that bounds dirty pages by device (Linux 6.2); without them there is no share to open.
//!
//! Version 1 does not know whose pages are written back, so there the device has the limit, and not the group. Nor does
//! it slow down the process that makes pages dirty: a group at its memory limit would be killed for pages that the
//! device does not take in time. So few may be dirty there while the device is slow.

use crate::file::{read, write};
use crate::mounts;
use crate::{CgroupPaths, Error};
use std::path::{Path, PathBuf};

/// Dirty pages of a device that is slow, on version 1, in bytes.
const DIRTY: u64 = 2 << 20;
/// Sector of the kernel's statistics, whatever the device has (Documentation/block/stat.rst).
const SECTOR: u64 = 512;
/// `sectors written` of the statistics of a device, the seventh field.
const WRITTEN: usize = 6;

/// Existing group and a device.
#[derive(Debug)]
pub struct DiskShare {
    /// `major:minor`.
    device: String,
    bytes: u64,
    statistics: PathBuf,
    bound: Bound,
}

/// Place of the limit.
#[derive(Debug)]
enum Bound {
    /// Line in this file of the group, which goes with it.
    Group(PathBuf),
    /// Line in this file of the hierarchy's root, and files in this folder of the device; all of them stay.
    Device { lines: PathBuf, device: PathBuf },
}

impl DiskShare {
    /// Opens a group's share of the device `major:minor`; `None` where nothing could limit it.
    ///
    /// # Errors
    /// [`Error::Io`] and [`Error::Content`] when the kernel's files are not as they should be, or gone.
    pub fn open(paths: &CgroupPaths, device: &str) -> Result<Option<Self>, Error> {
        let bound = match paths {
            CgroupPaths::V2 { dir } => Some(Bound::Group(dir.join("io.max"))).filter(Bound::is_there),
            CgroupPaths::V1 { .. } => of_device(device)?,
        };
        let Some(bound) = bound else { return Ok(None) };
        let block = Path::new("/sys/dev/block").join(device);
        let size = block.join("size");
        let text = read(&size)?;
        let sectors: u64 = text.trim().parse().map_err(|_| Error::content(&size, &text))?;
        let share = Self {
            device: device.to_owned(),
            bytes: sectors.saturating_mul(SECTOR),
            statistics: block.join("stat"),
            bound,
        };
        Ok(Some(share))
    }

    /// Device number: `major:minor`.
    #[must_use]
    pub fn device(&self) -> &str {
        &self.device
    }

    /// Size in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes written to the device since it exists, by any process.
    ///
    /// # Errors
    /// [`Error::Io`] once it is gone.
    pub fn written(&self) -> Result<u64, Error> {
        let text = read(&self.statistics)?;
        written(&text).ok_or_else(|| Error::content(&self.statistics, &text))
    }

    /// Limits its writes to so many bytes a second.
    ///
    /// # Errors
    /// [`Error::Io`] when the kernel refuses: the group is gone, or the device.
    pub fn slow_down(&self, bytes_per_second: u64) -> Result<(), Error> {
        match &self.bound {
            Bound::Group(file) => write(file, &format!("{} wbps={bytes_per_second}", self.device)),
            Bound::Device { lines, device } => {
                write(&device.join("max_bytes"), &DIRTY.to_string())?;
                write(&device.join("strict_limit"), "1")?;
                write(lines, &format!("{} {bytes_per_second}", self.device))
            }
        }
    }

    /// Lifts the limit.
    ///
    /// # Errors
    /// As [`DiskShare::slow_down`].
    pub fn let_go(&self) -> Result<(), Error> {
        match &self.bound {
            Bound::Group(file) => write(file, &format!("{} wbps=max", self.device)),
            Bound::Device { lines, device } => {
                write(lines, &format!("{} 0", self.device))?;
                write(&device.join("strict_limit"), "0")?;
                write(&device.join("max_ratio"), "100") // as it was, in per cent of the machine's own bound
            }
        }
    }
}

impl Bound {
    fn is_there(&self) -> bool {
        match self {
            Self::Group(file) => file.exists(),
            Self::Device { lines, device } => {
                lines.exists() && ["max_bytes", "strict_limit"].iter().all(|file| device.join(file).exists())
            }
        }
    }
}

fn of_device(device: &str) -> Result<Option<Bound>, Error> {
    let mountinfo = read(Path::new("/proc/self/mountinfo"))?;
    let bound = mounts::hierarchy(&mountinfo, "blkio").map(|root| Bound::Device {
        lines: root.join("blkio.throttle.write_bps_device"),
        device: Path::new("/sys/class/bdi").join(device),
    });
    Ok(bound.filter(Bound::is_there))
}

/// Parses the statistics of a device. Pure.
fn written(text: &str) -> Option<u64> {
    let sectors: u64 = text.split_ascii_whitespace().nth(WRITTEN)?.parse().ok()?;
    sectors.checked_mul(SECTOR)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn written_sectors_are_read_from_the_statistics() {
        let line = "   49103   109517 37135160    42900   107018  2456585 46508318    73943        0    46560";
        assert_eq!(written(line), Some(46_508_318 * 512));
        for bad in ["", "1 2 3 4 5 6", "1 2 3 4 5 6 x", &format!("1 2 3 4 5 6 {}", u64::MAX)] {
            assert_eq!(written(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_limit_of_version_2_is_a_line_of_the_group() {
        let group = tempfile::tempdir().unwrap();
        let file = group.path().join("io.max");
        let bound = Bound::Group(file.clone());
        assert!(!bound.is_there(), "the controller is not passed down");
        fs::write(&file, "").unwrap();
        assert!(bound.is_there());
        let share = DiskShare { device: "7:3".to_owned(), bytes: 0, statistics: PathBuf::new(), bound };
        share.slow_down(1 << 20).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "7:3 wbps=1048576");
        share.let_go().unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "7:3 wbps=max");
    }
}
