//! Directory `/gpu` of a sandbox with a GPU: a file system of its own with the accounting file of the shims.
//!
//! Made by the worker before the clone, attached by [`super::root`], which puts libraries and the control socket into
//! it.
//!
//! Invariants: the model can write the accounting file, truncate it and fill it with anything, and cannot take a byte
//! of the host's memory beyond it; nothing of this is on the host, so nothing of it is left there.

use super::mount::{Mount, PLAIN};
use super::step::{Step, StepError};
use nix::fcntl::{FallocateFlags, OFlag, fallocate, openat};
use nix::sys::stat::{Mode, fchmod};
use nix::unistd::{Gid, Uid, fchown};
use omni_gpu_protocol::account::{FILE_BYTES, Settings};
use omni_gpu_protocol::env::inside;
use std::ffi::CString;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// The accounting file, the directories, and the places of what is bound in: no more than [`super::root`] makes.
const INODES: &std::ffi::CStr = c"256";

/// The directory, until its sandbox has it, and the worker's own way to the accounting file.
#[derive(Debug)]
pub struct GpuDir {
    pub(super) mount: Mount,
    account: File,
}

impl GpuDir {
    /// A directory for the sandbox whose user has the group `gid`. The accounting file says what the instance may have, and
    /// is all zeros else.
    ///
    /// # Errors
    /// The kernel makes no such file system, or has no memory for the file.
    pub fn new(gid: u32, settings: Settings) -> Result<Self, StepError> {
        let step = || format!("make {}", inside::DIR);
        let size = CString::new(FILE_BYTES.to_string()).step(step)?;
        let options = [
            (c"source", Some(c"omni")),
            (c"size", Some(&*size)),
            (c"nr_inodes", Some(INODES)),
            (c"mode", Some(c"755")),
        ];
        let mount = Mount::new(c"tmpfs", &options, PLAIN | libc::MOUNT_ATTR_NOEXEC).step(step)?;
        let account = Path::new(inside::ACCOUNT);
        let step = || format!("make {}", account.display());
        let name = account.file_name().unwrap_or_default();
        let flags = OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_CLOEXEC;
        let file = File::from(openat(&mount, name, flags, Mode::empty()).step(step)?);
        // Set explicitly: the worker's umask may take bits away.
        fchmod(&file, Mode::from_bits_truncate(0o660)).step(step)?;
        // Root's, so that the model cannot change its mode; its group's, so that the model can write it.
        fchown(&file, Some(Uid::from_raw(0)), Some(Gid::from_raw(gid))).step(step)?;
        // Allocate all of it now: a page that is missing later would be a signal to the process that touches it.
        let length = FILE_BYTES.try_into().step(step)?;
        fallocate(&file, FallocateFlags::empty(), 0, length).step(step)?;
        file.write_all_at(&settings.to_bytes(), Settings::AT as u64).step(step)?;
        Ok(Self { mount, account: file })
    }

    /// The accounting file. The model can change its length and every byte at any time: read it, never map it.
    ///
    /// # Errors
    /// There are no descriptors left.
    pub fn account(&self) -> std::io::Result<File> {
        self.account.try_clone()
    }
}
