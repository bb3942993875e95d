//! File system in memory that records what is done to it.
//!
//! The store has to be in another process: during a page fault in its file, the kernel holds a lock of the process's
//! memory, which this one needs to answer.

use crate::trace::{Change, Node, Op, Promise, ROOT, Trace};
use fuser::{
    Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, LockOwner, OpenFlags,
    RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite,
    Request, TimeOrNow, WriteFlags,
};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Nothing changes but through the kernel, which may remember everything.
const VALID: Duration = Duration::from_secs(3600);

#[derive(Debug)]
struct State {
    next: u64,
    files: BTreeMap<u64, Vec<u8>>,
    dirs: BTreeMap<u64, BTreeMap<String, Node>>,
}

#[derive(Debug)]
pub(crate) struct Recorder {
    state: Mutex<State>,
    trace: Trace,
}

/// Mounts an empty file system that records into `trace`.
pub(crate) fn mount(target: &Path, trace: &Trace) -> fuser::BackgroundSession {
    let state = State { next: ROOT + 1, files: BTreeMap::new(), dirs: BTreeMap::from([(ROOT, BTreeMap::new())]) };
    let recorder = Recorder { state: Mutex::new(state), trace: trace.clone() };
    fuser::spawn_mount(recorder, target, &Config::default()).unwrap()
}

fn attributes(ino: u64, kind: FileType, size: u64) -> FileAttr {
    FileAttr {
        ino: INodeNo(ino),
        size,
        blocks: size.div_ceil(512),
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind,
        perm: if kind == FileType::Directory { 0o700 } else { 0o600 },
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}

impl State {
    fn attributes(&self, node: Node) -> FileAttr {
        match node {
            Node::Dir(ino) => attributes(ino, FileType::Directory, 0),
            Node::File(ino) => attributes(ino, FileType::RegularFile, self.files.get(&ino).map_or(0, Vec::len) as u64),
        }
    }

    fn node(&self, ino: u64) -> Node {
        if self.dirs.contains_key(&ino) { Node::Dir(ino) } else { Node::File(ino) }
    }

    fn find(&self, parent: INodeNo, name: &OsStr) -> Option<Node> {
        self.dirs.get(&parent.0)?.get(name.to_str()?).copied()
    }

    fn names(&mut self, dir: INodeNo) -> &mut BTreeMap<String, Node> {
        self.dirs.entry(dir.0).or_default()
    }
}

impl Recorder {
    /// Adds a node; its number is new for good.
    fn add(&self, parent: INodeNo, name: &OsStr, node: impl FnOnce(u64) -> Node) -> FileAttr {
        let mut state = self.state.lock().unwrap();
        let node = node(state.next);
        let name = name.to_str().unwrap().to_owned();
        match node {
            Node::Dir(ino) => drop(state.dirs.insert(ino, BTreeMap::new())),
            Node::File(ino) => drop(state.files.insert(ino, Vec::new())),
        }
        state.next += 1;
        state.names(parent).insert(name.clone(), node);
        self.trace.push(Op::Name { dir: parent.0, change: Change::Add { name, node } });
        state.attributes(node)
    }
}

impl Filesystem for Recorder {
    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let state = self.state.lock().unwrap();
        match state.find(parent, name) {
            Some(node) => reply.entry(&VALID, &state.attributes(node), Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _request: &Request, ino: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        let state = self.state.lock().unwrap();
        reply.attr(&VALID, &state.attributes(state.node(ino.0)));
    }

    fn setattr(
        &self,
        _request: &Request,
        ino: INodeNo,
        _mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let mut state = self.state.lock().unwrap();
        if let Some(size) = size {
            let size = usize::try_from(size).unwrap();
            state.files.entry(ino.0).or_default().resize(size, 0);
            self.trace.push(Op::Truncate { ino: ino.0, size });
        }
        reply.attr(&VALID, &state.attributes(state.node(ino.0)));
    }

    fn mkdir(&self, _request: &Request, parent: INodeNo, name: &OsStr, _mode: u32, _umask: u32, reply: ReplyEntry) {
        if let Some(promise) = name.to_str().and_then(Promise::from_name) {
            self.trace.push(Op::Promise(promise));
            return reply.error(Errno::EEXIST);
        }
        reply.entry(&VALID, &self.add(parent, name, Node::Dir), Generation(0));
    }

    fn create(
        &self,
        _request: &Request,
        parent: INodeNo,
        name: &OsStr,
        _mode: u32,
        _umask: u32,
        _flags: i32,
        reply: ReplyCreate,
    ) {
        let attributes = self.add(parent, name, Node::File);
        reply.created(&VALID, &attributes, Generation(0), FileHandle(0), FopenFlags::FOPEN_KEEP_CACHE);
    }

    fn open(&self, _request: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::FOPEN_KEEP_CACHE);
    }

    fn read(
        &self,
        _request: &Request,
        ino: INodeNo,
        _handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let state = self.state.lock().unwrap();
        let bytes = state.files.get(&ino.0).map_or(&[][..], Vec::as_slice);
        let begin = usize::try_from(offset).unwrap().min(bytes.len());
        reply.data(&bytes[begin..(begin + size as usize).min(bytes.len())]);
    }

    fn write(
        &self,
        _request: &Request,
        ino: INodeNo,
        _handle: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let offset = usize::try_from(offset).unwrap();
        let mut state = self.state.lock().unwrap();
        let bytes = state.files.entry(ino.0).or_default();
        if bytes.len() < offset + data.len() {
            bytes.resize(offset + data.len(), 0);
        }
        bytes[offset..offset + data.len()].copy_from_slice(data);
        self.trace.push(Op::Write { ino: ino.0, offset, data: data.to_vec() });
        reply.written(u32::try_from(data.len()).unwrap());
    }

    fn flush(&self, _request: &Request, _ino: INodeNo, _handle: FileHandle, _owner: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fsync(&self, _request: &Request, ino: INodeNo, _handle: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        self.trace.push(Op::Sync { ino: ino.0 });
        reply.ok();
    }

    fn fsyncdir(&self, _request: &Request, ino: INodeNo, _handle: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        self.trace.push(Op::SyncDir { dir: ino.0 });
        reply.ok();
    }

    fn unlink(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = name.to_str().unwrap().to_owned();
        // An open file goes on without a name, so its content stays.
        self.state.lock().unwrap().names(parent).remove(&name);
        self.trace.push(Op::Name { dir: parent.0, change: Change::Remove { name } });
        reply.ok();
    }

    fn rename(
        &self,
        _request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        _flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        if parent != new_parent {
            return reply.error(Errno::EXDEV);
        }
        let (from, to) = (name.to_str().unwrap().to_owned(), new_name.to_str().unwrap().to_owned());
        let mut state = self.state.lock().unwrap();
        let names = state.names(parent);
        let Some(node) = names.remove(&from) else { return reply.error(Errno::ENOENT) };
        names.insert(to.clone(), node);
        self.trace.push(Op::Name { dir: parent.0, change: Change::Rename { from, to } });
        reply.ok();
    }

    fn readdir(&self, _request: &Request, ino: INodeNo, _handle: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let mut state = self.state.lock().unwrap();
        let from = usize::try_from(offset).unwrap();
        for (index, (name, node)) in state.names(ino).iter().enumerate().skip(from) {
            let (ino, kind) = match node {
                Node::Dir(ino) => (*ino, FileType::Directory),
                Node::File(ino) => (*ino, FileType::RegularFile),
            };
            if reply.add(INodeNo(ino), index as u64 + 1, kind, name) {
                break;
            }
        }
        reply.ok();
    }
}
