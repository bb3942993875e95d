//! The node's folders, and the disks that they are on or would be made on.

use super::tried;
use crate::Settings;
use nix::sys::statfs::{FsType, TMPFS_MAGIC, statfs};
use nix::sys::statvfs::{FsFlags, statvfs};
use omni_machine::{Disk, Folder, Role};
use std::path::Path;

/// `RAMFS_MAGIC` of `linux/magic.h`.
const RAMFS_MAGIC: FsType = FsType(0x8584_58f6);

pub(super) fn probe(settings: &Settings) -> Vec<Folder> {
    [
        (Role::Models, settings.models.path()),
        (Role::State, &settings.state_dir),
        (Role::Cache, &settings.cache_dir),
        (Role::Runtime, &settings.runtime_dir),
    ]
    .map(|(role, path)| Folder { role, path: path.to_owned(), exists: path.is_dir(), disk: tried(disk(path)) })
    .into()
}

/// Disk of the nearest folder that exists.
fn disk(path: &Path) -> Result<Disk, nix::errno::Errno> {
    let place = path.ancestors().find(|path| path.is_dir()).unwrap_or(Path::new("/"));
    let (kind, found) = (statfs(place)?.filesystem_type(), statvfs(place)?);
    let flags = found.flags();
    Ok(Disk {
        free_bytes: found.blocks_available().saturating_mul(found.fragment_size()),
        // Some file systems make places for files as they need them, and say 0 of 0.
        free_files: Some(found.files_available()).filter(|_| found.files() > 0),
        read_only: flags.contains(FsFlags::ST_RDONLY),
        no_exec: flags.contains(FsFlags::ST_NOEXEC),
        is_memory: kind == TMPFS_MAGIC || kind == RAMFS_MAGIC,
    })
}
