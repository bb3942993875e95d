//! The file system: its root is one regular file, mode 0444. The only place that speaks fuser's callbacks.
//!
//! Called by fuser on its one thread. What is not here (lookup, write, flush, ...) fuser answers with `ENOSYS`, which
//! the kernel remembers; writing is refused by the kernel itself, because the mount is read-only.
//!
//! Size 0 with direct I/O is what `/proc` does too: readers read until a read gives nothing.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

use fuser::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, INodeNo, LockOwner, OpenFlags, ReplyAttr, ReplyData,
    ReplyEmpty, ReplyOpen, Request,
};

use crate::render::render;
use crate::sample::MemorySource;
use crate::snapshots::Snapshots;

/// The attributes never change: the kernel need not ask again.
const ATTRIBUTES_VALID: Duration = Duration::from_secs(365 * 24 * 3600);

const ATTRIBUTES: FileAttr = FileAttr {
    ino: INodeNo::ROOT,
    size: 0,
    blocks: 0,
    atime: UNIX_EPOCH,
    mtime: UNIX_EPOCH,
    ctime: UNIX_EPOCH,
    crtime: UNIX_EPOCH,
    kind: FileType::RegularFile,
    perm: 0o444,
    nlink: 1,
    uid: 0,
    gid: 0,
    rdev: 0,
    blksize: 4096,
    flags: 0,
};

pub(crate) struct MeminfoFile<S> {
    source: S,
    snapshots: Mutex<Snapshots>,
}

impl<S: MemorySource> MeminfoFile<S> {
    pub(crate) fn new(source: S) -> Self {
        Self { source, snapshots: Mutex::default() }
    }

    /// The table is whole between any two of its operations, so a poisoned lock is still good.
    fn snapshots(&self) -> MutexGuard<'_, Snapshots> {
        self.snapshots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S: MemorySource> Filesystem for MeminfoFile<S> {
    fn getattr(&self, _request: &Request, _inode: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&ATTRIBUTES_VALID, &ATTRIBUTES);
    }

    fn open(&self, request: &Request, _inode: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let Ok((owner, sample)) = self.source.sample_for(request.pid()) else {
            return reply.error(Errno::EIO);
        };
        let handle = self.snapshots().open(owner, |text| render(&sample, text));
        match handle {
            Some(handle) => {
                reply.opened(FileHandle(handle), FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_NOFLUSH);
            }
            None => reply.error(Errno::ENFILE),
        }
    }

    fn read(
        &self,
        _request: &Request,
        _inode: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        match self.snapshots().read(handle.0, offset, size) {
            Some(text) => reply.data(text),
            None => reply.error(Errno::EBADF),
        }
    }

    fn release(
        &self,
        _request: &Request,
        _inode: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.snapshots().release(handle.0);
        reply.ok();
    }
}
