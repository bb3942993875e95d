//! Mounts that are made first and attached later, by descriptor: no path is resolved twice, and none that a model
//! could have changed is resolved at all.

use super::kernel;
use nix::errno::Errno;
use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Nothing in here is set-user-id or a device.
pub(super) const PLAIN: u64 = libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV;
/// As [`PLAIN`], and this mount cannot be written through.
pub(super) const READ_ONLY: u64 = PLAIN | libc::MOUNT_ATTR_RDONLY;

/// A mount, attached or not. An unattached one ends with its descriptor.
#[derive(Debug)]
pub(super) struct Mount(OwnedFd);

impl Mount {
    /// A new file system of a kind. An option is a key with a value, or a flag without one.
    pub(super) fn new(kind: &CStr, options: &[(&CStr, Option<&CStr>)], attributes: u64) -> Result<Self, Errno> {
        let context = kernel::fsopen(kind)?;
        for (key, value) in options {
            kernel::fsconfig_set(context.as_fd(), key, *value)?;
        }
        kernel::fsconfig_create(context.as_fd())?;
        kernel::fsmount(context.as_fd(), attributes).map(Self)
    }

    /// A copy of what is mounted at `path` and below it, with the given attributes on all of it.
    pub(super) fn copy_of(dir: impl AsFd, path: &CStr, attributes: u64) -> Result<Self, Errno> {
        let copy = kernel::open_tree_clone(dir, path)?;
        kernel::mount_setattr(&copy, true, attributes, None)?;
        Ok(Self(copy))
    }

    /// Adds attributes to this mount alone.
    pub(super) fn restrict(&self, attributes: u64) -> Result<(), Errno> {
        kernel::mount_setattr(&self.0, false, attributes, None)
    }

    /// Shows the owners of this unattached mount's files as a user namespace maps them.
    pub(super) fn map_owners(&self, user_namespace: BorrowedFd<'_>) -> Result<(), Errno> {
        kernel::mount_setattr(&self.0, false, libc::MOUNT_ATTR_IDMAP, Some(user_namespace))
    }

    /// Attaches the mount over an open file or directory of this mount namespace.
    pub(super) fn attach(&self, target: impl AsFd) -> Result<(), Errno> {
        kernel::move_mount(&self.0, target)
    }
}

impl AsFd for Mount {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
