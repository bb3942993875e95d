//! Loop devices over image files. A device detaches itself when its last user is gone: nothing to clean up.
//!
//! Called by [`super::cache`], which holds the image's lock. The `/dev` of a container has only the nodes that its
//! engine was configured to put there, while devices are given out among the whole machine: a missing node is made.
#![allow(unsafe_code, reason = "LOOP_* requests have no safe wrapper")]

use nix::errno::Errno;
use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

// `linux/loop.h`
const LOOP_CTL_GET_FREE: libc::c_ulong = 0x4C82;
const LOOP_CONFIGURE: libc::c_ulong = 0x4C0A;
const LOOP_GET_STATUS64: libc::c_ulong = 0x4C05;
const LO_FLAGS_AUTOCLEAR: u32 = 4;
/// The image is read and written past the page cache, where its file system can: what a model has cached of its files is
/// in memory once, and is the model's; and what it writes is not written a second time, by threads of the kernel that no
/// control group bounds.
const LO_FLAGS_DIRECT_IO: u32 = 16;

/// Nodes of devices.
const DEV: &str = "/dev";
const CONTROL: &str = "/dev/loop-control";
/// Attributes of each block device, its numbers among them.
const BLOCK: &str = "/sys/block";

/// `struct loop_info64`.
#[repr(C)]
#[derive(Clone, Copy)]
struct LoopInfo {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

/// `struct loop_config`.
#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    info: LoopInfo,
    reserved: [u64; 8],
}

const EMPTY: LoopInfo = LoopInfo {
    device: 0,
    inode: 0,
    rdevice: 0,
    offset: 0,
    size_limit: 0,
    number: 0,
    encrypt_type: 0,
    encrypt_key_size: 0,
    flags: 0,
    file_name: [0; 64],
    crypt_name: [0; 64],
    encrypt_key: [0; 32],
    init: [0; 2],
};

/// An attached device. It stays attached while this or a mount of it is there.
pub(super) struct LoopDevice {
    pub(super) path: PathBuf,
    _held: File,
}

/// The device of `image`: the one that is attached already, so that all mounts share one file system, else a new one.
pub(super) fn attach(image: &File) -> io::Result<LoopDevice> {
    if let Some(device) = attached(image)? {
        return Ok(device);
    }
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{CONTROL}: {error}"));
    let control = read_write(Path::new(CONTROL)).map_err(named)?;
    loop {
        // SAFETY: the request takes no argument.
        let number = Errno::result(unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE) })?;
        let name = format!("loop{number}");
        let device = open(&name)?;
        let config = LoopConfig {
            fd: image.as_raw_fd().unsigned_abs(),
            block_size: 0,
            info: LoopInfo { flags: LO_FLAGS_AUTOCLEAR | LO_FLAGS_DIRECT_IO, ..EMPTY },
            reserved: [0; 8],
        };
        // SAFETY: `config` is what LOOP_CONFIGURE reads, and lives for the call.
        match Errno::result(unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE, &raw const config) }) {
            Ok(_) => return Ok(LoopDevice { path: Path::new(DEV).join(name), _held: device }),
            Err(Errno::EBUSY) => {} // somebody else was quicker with this number; each round one of us succeeds
            Err(errno) => return Err(errno.into()),
        }
    }
}

fn attached(image: &File) -> io::Result<Option<LoopDevice>> {
    let image = image.metadata()?;
    for entry in fs::read_dir(BLOCK)? {
        let entry = entry?;
        if !entry.path().join("loop/backing_file").exists() {
            continue;
        }
        let name = entry.file_name().to_string_lossy().into_owned();
        let Ok(device) = open(&name) else { continue };
        let mut info = EMPTY;
        // SAFETY: `info` is room for what LOOP_GET_STATUS64 writes.
        let status = Errno::result(unsafe { libc::ioctl(device.as_raw_fd(), LOOP_GET_STATUS64, &raw mut info) });
        // Compare again: the device may have been detached since it was listed. From here on `device` holds it.
        if status.is_ok() && info.device == image.dev() && info.inode == image.ino() {
            return Ok(Some(LoopDevice { path: Path::new(DEV).join(name), _held: device }));
        }
    }
    Ok(None)
}

/// Opens a device by its name, after its node is made where this /dev has none.
fn open(name: &str) -> io::Result<File> {
    let path = Path::new(DEV).join(name);
    match read_write(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        found => return found,
    }
    let numbers = fs::read_to_string(format!("{BLOCK}/{name}/dev"))?;
    let numbers =
        numbers.trim().split_once(':').and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
    let (major, minor) = numbers.ok_or(io::ErrorKind::InvalidData)?;
    match mknod(&path, SFlag::S_IFBLK, Mode::S_IRUSR | Mode::S_IWUSR, makedev(major, minor)) {
        Ok(()) | Err(Errno::EEXIST) => read_write(&path), // somebody else, or the kernel, was quicker
        Err(errno) => Err(errno.into()),
    }
}

fn read_write(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(path)
}
