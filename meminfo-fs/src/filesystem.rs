//! File system: a directory of regular files, mode 0444. The only module with fuser's callbacks.
//!
//! fuser calls it on one thread. It answers everything that is absent here (write, flush, ...) with `ENOSYS`, which the
//! kernel remembers; writing is refused by the kernel itself, because the mount is read-only.
//!
//! Size 0 with direct I/O is what `/proc` does too: readers read until a read returns nothing. The directory is read by
//! the process that attaches the files, once, before the model is there: its answer has all names in it, so that no
//! other is asked for.

use std::ffi::OsStr;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

use fuser::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags, KernelConfig,
    LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyOpen, Request,
};

use crate::groups::Groups;
use crate::snapshots::Snapshots;
use crate::view::File;

/// Validity of names and attributes, which never change: the kernel need not ask again.
const VALID: Duration = Duration::from_secs(365 * 24 * 3600);
const GENERATION: Generation = Generation(0);

const fn attributes(ino: INodeNo, kind: FileType, perm: u16) -> FileAttr {
    FileAttr {
        ino,
        size: 0,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind,
        perm,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}

/// First number of a file, after that of the directory.
const FIRST: u64 = INodeNo::ROOT.0 + 1;

fn attributes_at(index: usize) -> FileAttr {
    attributes(INodeNo(FIRST + index as u64), FileType::RegularFile, 0o444)
}

fn file(inode: INodeNo) -> Option<(usize, File)> {
    let index = usize::try_from(inode.0.checked_sub(FIRST)?).ok()?;
    Some((index, *File::ALL.get(index)?))
}

pub(crate) struct Files {
    groups: Groups,
    snapshots: Mutex<Snapshots>,
}

impl Files {
    pub(crate) fn new(groups: Groups) -> Self {
        Self { groups, snapshots: Mutex::default() }
    }

    /// Locks the table, which is consistent between any two of its operations, so a poisoned lock is still good.
    fn snapshots(&self) -> MutexGuard<'_, Snapshots> {
        self.snapshots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Filesystem for Files {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // Without it every name is looked up alone, which takes longer and is no worse.
        let _ = config.add_capabilities(InitFlags::FUSE_DO_READDIRPLUS);
        Ok(())
    }

    fn lookup(&self, _request: &Request, _parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match File::ALL.iter().position(|file| name == file.name()) {
            Some(index) => reply.entry(&VALID, &attributes_at(index), GENERATION),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _request: &Request, inode: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        match file(inode) {
            Some((index, _)) => reply.attr(&VALID, &attributes_at(index)),
            None => reply.attr(&VALID, &attributes(INodeNo::ROOT, FileType::Directory, 0o555)),
        }
    }

    fn readdirplus(
        &self,
        _request: &Request,
        _inode: INodeNo,
        _handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let from = usize::try_from(offset).unwrap_or(usize::MAX);
        for (index, file) in File::ALL.iter().enumerate().skip(from) {
            let attributes = attributes_at(index);
            if reply.add(attributes.ino, index as u64 + 1, file.name(), &VALID, &attributes, GENERATION) {
                break;
            }
        }
        reply.ok();
    }

    fn open(&self, request: &Request, inode: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let Some((_, file)) = file(inode) else { return reply.error(Errno::EISDIR) };
        let (owner, view) = self.groups.of(request.pid());
        let opened = self.snapshots().open(owner, |text| view.write(file, text));
        match opened {
            Ok(Some(handle)) => {
                reply.opened(FileHandle(handle), FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_NOFLUSH);
            }
            Ok(None) => reply.error(Errno::ENFILE),
            Err(_) => reply.error(Errno::EIO),
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
