//! Events of other processes: the end of what was recorded stands in a file without a name that both have.
//!
//! The time of an end is the machine's monotonic clock, which means the same everywhere. Functions of the host that one
//! process still has in its stream are not waited for by another.

use crate::abi::{Handle, Out, api};
use crate::error::{Answer, Error};
use crate::event::{Event, FLAGS_OF_SHARED, INTERPROCESS};
use crate::objects::objects;
use crate::sharable::Sharable;
use std::sync::Arc;

api! {
    fn cuIpcGetEventHandle(handle: Out<Shared>, event: Handle) = get;
    fn cuIpcOpenEventHandle(event: Out<Handle>, handle: Shared) = open;
}

/// `CUipcEventHandle`: 64 bytes, which only we understand.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct Shared {
    magic: u64,
    pid: u32,
    descriptor: i32,
    /// Inode, so that a reused number is not taken for the same file.
    inode: u64,
    _reserved: [u64; 5],
}

const _: () = assert!(size_of::<Shared>() == 64);
const MAGIC: u64 = u64::from_le_bytes(*b"omni-evt");
/// The file has one number.
const BYTES: u64 = 8;

fn get(handle: Out<Shared>, event: Handle) -> Answer {
    handle.check()?;
    let mut objects = objects()?;
    let event = objects.event(event)?;
    if event.flags & INTERPROCESS == 0 {
        return Err(Error::INVALID_HANDLE);
    }
    let file = match &event.shared {
        Some(file) => file.clone(),
        None => Arc::new(Sharable::new("omni-cuda-sim event", BYTES)?),
    };
    file.store(event.recorded.as_ref().map_or(0, |recorded| recorded.end));
    event.shared = Some(file.clone());
    let (pid, descriptor, inode) = (std::process::id(), file.descriptor(), file.inode());
    handle.put(Shared { magic: MAGIC, pid, descriptor, inode, _reserved: [0; 5] })
}

fn open(event: Out<Handle>, handle: Shared) -> Answer {
    event.check()?;
    let mut objects = objects()?;
    let (context, _) = objects.current()?;
    let Shared { magic, pid, descriptor, inode, .. } = handle;
    if magic != MAGIC {
        return Err(Error::INVALID_HANDLE);
    }
    if pid == std::process::id() {
        return Err(Error::INVALID_CONTEXT);
    }
    let file = Sharable::open(pid, descriptor).map_err(|_| Error::INVALID_HANDLE)?;
    if file.inode() != inode || file.bytes() != BYTES {
        return Err(Error::INVALID_HANDLE);
    }
    let made = objects.handle();
    let shared = Some(Arc::new(file));
    objects.events.insert(made, Event { context, flags: FLAGS_OF_SHARED, recorded: None, shared });
    event.put(made)
}
