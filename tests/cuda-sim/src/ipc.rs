//! IPC handles: plain device memory of one process, used by another.
//!
//! The first handle of an allocation moves its bytes into a file without a name (see [`crate::sharable`]); the handle
//! says which process has that file open, so nothing stays when the process is gone. As documented, only memory of
//! `cuMemAlloc` has handles: not managed memory (frameworks meet `CUDA_ERROR_INVALID_VALUE` there, as in cupy issue
//! 9306), not that of pools or memory handles. The opener is not charged: the card has the bytes once.

use crate::abi::{Handle, Out, api};
use crate::error::{Answer, Error};
use crate::machine;
use crate::memory::allocation::{Allocation, Kind};
use crate::objects::objects;
use crate::sharable::{self, Place, Sharable};
use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

api! {
    fn cuIpcGetMemHandle(handle: Out<Shared>, pointer: u64) = get;
    fn cuIpcOpenMemHandle(pointer: Out<u64>, handle: Shared, flags: u32) = open;
    fn cuIpcOpenMemHandle_v2(pointer: Out<u64>, handle: Shared, flags: u32) = open;
    fn cuIpcCloseMemHandle(pointer: u64) = close;
}

/// `CUipcMemHandle`: 64 bytes, which only we understand.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct Shared {
    magic: u64,
    pid: u32,
    descriptor: i32,
    /// Inode, so that a reused number is not taken for the same file.
    inode: u64,
    bytes: u64,
    card: [u8; 16],
    _reserved: [u64; 2],
}

const _: () = assert!(size_of::<Shared>() == 64);
const MAGIC: u64 = u64::from_le_bytes(*b"omni-ipc");
/// `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`: must be given.
const LAZY_PEER_ACCESS: u32 = 1;

#[derive(Debug, Default)]
struct Table {
    /// Memory of this process that has handles, by address.
    given: HashMap<u64, Sharable>,
    /// Memory of other processes, by address.
    opened: HashMap<u64, Opened>,
}

/// Memory of another process.
#[derive(Debug)]
struct Opened {
    _place: Place,
    inode: u64,
    context: Handle,
    /// Number of opens that have to be closed.
    references: u32,
}

static TABLE: LazyLock<Mutex<Table>> = LazyLock::new(Mutex::default);

/// Taken after the lock of [`crate::objects`].
fn table() -> MutexGuard<'static, Table> {
    TABLE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The memory at this address was freed: its handles mean nothing from now on.
pub(crate) fn forget(base: u64) {
    let mut table = table();
    table.given.remove(&base);
    table.opened.remove(&base);
}

fn get(handle: Out<Shared>, pointer: u64) -> Answer {
    handle.check()?;
    let objects = objects()?;
    objects.current()?;
    let allocation = objects.allocations.exact(pointer).ok_or(Error::INVALID_VALUE)?;
    // External memory is of this kind too, but nothing is charged for it here.
    let (Kind::Device, Some(region), true) = (&allocation.kind, &allocation.region, allocation.charged > 0) else {
        return Err(Error::INVALID_VALUE);
    };
    let card = machine::all()?.get(allocation.device).ok_or(Error::INVALID_DEVICE)?.settings.uuid;
    let mut table = table();
    let bytes = allocation.bytes;
    let file = sharable::give(&mut table.given, "omni-cuda-sim ipc", pointer, bytes, region)?;
    let (pid, descriptor, inode) = (std::process::id(), file.descriptor(), file.inode());
    handle.put(Shared { magic: MAGIC, pid, descriptor, inode, bytes, card, _reserved: [0; 2] })
}

fn open(pointer: Out<u64>, handle: Shared, flags: u32) -> Answer {
    pointer.check()?;
    let mut objects = objects()?;
    let (context, _) = objects.current()?;
    let Shared { magic, pid, descriptor, inode, bytes, card, .. } = handle;
    if flags != LAZY_PEER_ACCESS {
        return Err(Error::INVALID_VALUE);
    }
    if magic != MAGIC {
        return Err(Error::INVALID_HANDLE);
    }
    if pid == std::process::id() {
        return Err(Error::INVALID_CONTEXT);
    }
    let mut table = table();
    let mut known = table.opened.iter_mut();
    if let Some((base, opened)) = known.find(|(_, opened)| opened.inode == inode && opened.context == context) {
        opened.references += 1;
        return pointer.put(*base);
    }
    let device = machine::all()?.iter().position(|device| device.settings.uuid == card);
    let device = device.ok_or(Error::INVALID_DEVICE)?;
    let file = Sharable::open(pid, descriptor).map_err(|_| Error::INVALID_HANDLE)?;
    if file.inode() != inode || file.bytes() != bytes {
        return Err(Error::INVALID_HANDLE);
    }
    let place = file.map(0, bytes)?;
    let (base, kind) = (place.base, Kind::Elsewhere);
    objects.allocations.add(Allocation { base, bytes, context, device, charged: 0, id: 0, region: None, kind });
    table.opened.insert(base, Opened { _place: place, inode, context, references: 1 });
    pointer.put(base)
}

fn close(pointer: u64) -> Answer {
    let mut objects = objects()?;
    objects.current()?;
    let mut table = table();
    let opened = table.opened.get_mut(&pointer).ok_or(Error::INVALID_VALUE)?;
    opened.references -= 1;
    if opened.references == 0 {
        objects.allocations.remove(pointer);
        table.opened.remove(&pointer);
    }
    Ok(())
}
