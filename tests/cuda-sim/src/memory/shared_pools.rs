//! Pools and their memory in several processes.
//!
//! A sharable pool has a file without a name, whose descriptor is its handle: any process that has it can import the
//! pool. The file is empty: an allocation that is shared is a file of its own (see [`crate::sharable`]), which the data
//! about it names. An imported pool yields only shared allocations, and the importer is not charged: the card has the
//! bytes once, on the account of the process that allocated them. They must outlive every import, which is the
//! program's duty.

use crate::abi::{Handle, In, Out, api};
use crate::backing::Region;
use crate::error::{Answer, Error};
use crate::machine;
use crate::memory::allocation::{Allocation, Kind};
use crate::memory::pool::Pool;
use crate::objects::objects;
use crate::sharable::{self, Sharable};
use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

api! {
    fn cuMemPoolExportToShareableHandle(shared: Out<c_void>, pool: Handle, kind: u32, flags: u64) = export;
    fn cuMemPoolImportFromShareableHandle(pool: Out<Handle>, shared: u64, kind: u32, flags: u64) = import;
    fn cuMemPoolExportPointer(shared: Out<Shared>, pointer: u64) = export_pointer;
    fn cuMemPoolImportPointer(pointer: Out<u64>, pool: Handle, shared: In<Shared>) = import_pointer;
}

/// `CUmemPoolPtrExportData`: 64 bytes, which only we understand.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct Shared {
    magic: u64,
    pid: u32,
    descriptor: i32,
    /// Inode, so that a reused number is not taken for the same file.
    inode: u64,
    bytes: u64,
    /// The inode of the pool's own file.
    pool: u64,
    _reserved: [u64; 3],
}

const _: () = assert!(size_of::<Shared>() == 64);
const MAGIC: u64 = u64::from_le_bytes(*b"omnipool");
/// Beginning of the label of a pool's file; the card's UUID follows.
const LABEL: &str = "omni-cuda-sim pool ";
/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
const DESCRIPTOR: u32 = 1;

/// Exported memory of this process, by address.
static GIVEN: LazyLock<Mutex<HashMap<u64, Sharable>>> = LazyLock::new(Mutex::default);

/// Taken after the lock of [`crate::objects`].
fn given() -> MutexGuard<'static, HashMap<u64, Sharable>> {
    GIVEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The memory at this address was freed: it cannot be imported any more.
pub(crate) fn forget(base: u64) {
    given().remove(&base);
}

fn export(shared: Out<c_void>, pool: Handle, kind: u32, flags: u64) -> Answer {
    let shared = shared.of::<i32>();
    shared.check()?;
    let mut objects = objects()?;
    let pool = objects.pool(pool)?;
    let is_possible = kind == DESCRIPTOR && pool.handle_types & DESCRIPTOR != 0 && !pool.is_imported;
    if !is_possible || flags != 0 {
        return Err(Error::INVALID_VALUE);
    }
    let card = &machine::all()?.get(pool.device).ok_or(Error::INVALID_DEVICE)?.settings;
    let file = match &mut pool.shared {
        Some(file) => file,
        none => none.insert(Sharable::new(&format!("{LABEL}{}", card.uuid_text()), 0)?),
    };
    shared.put(file.hand_out()?)
}

fn import(pool: Out<Handle>, shared: u64, kind: u32, flags: u64) -> Answer {
    pool.check()?;
    let mut objects = objects()?;
    if kind != DESCRIPTOR || flags != 0 {
        return Err(Error::INVALID_VALUE);
    }
    let file = Sharable::of(i32::try_from(shared).map_err(|_| Error::INVALID_VALUE)?)?;
    let label = file.label();
    let card = label.strip_prefix(LABEL).ok_or(Error::INVALID_VALUE)?;
    let device = machine::all()?.iter().position(|device| device.settings.uuid_text() == card);
    let device = device.ok_or(Error::INVALID_DEVICE)?;
    let made = objects.handle();
    objects.pools.insert(made, Pool { shared: Some(file), is_imported: true, ..Pool::new(device, None) });
    pool.put(made)
}

fn export_pointer(shared: Out<Shared>, pointer: u64) -> Answer {
    shared.check()?;
    let objects = objects()?;
    let allocation = objects.allocations.exact(pointer).ok_or(Error::INVALID_VALUE)?;
    let (Kind::Pooled { pool, managed: None }, Some(region)) = (&allocation.kind, &allocation.region) else {
        return Err(Error::INVALID_VALUE);
    };
    let pool = objects.pools.get(pool).filter(|pool| !pool.is_imported).and_then(|pool| pool.shared.as_ref());
    let pool = pool.ok_or(Error::INVALID_VALUE)?.inode();
    let mut given = given();
    let bytes = allocation.bytes;
    let file = sharable::give(&mut given, "omni-cuda-sim memory of a pool", pointer, bytes, region)?;
    let (pid, descriptor, inode) = (std::process::id(), file.descriptor(), file.inode());
    shared.put(Shared { magic: MAGIC, pid, descriptor, inode, bytes, pool, _reserved: [0; 3] })
}

fn import_pointer(pointer: Out<u64>, pool: Handle, shared: In<Shared>) -> Answer {
    pointer.check()?;
    let mut objects = objects()?;
    let (context, _) = objects.current()?;
    let Shared { magic, pid, descriptor, inode, bytes, pool: exported, .. } = shared.get()?;
    let known = objects.pool(pool)?;
    let is_of_pool = known.is_imported && known.shared.as_ref().is_some_and(|file| file.inode() == exported);
    if magic != MAGIC || !is_of_pool || bytes == 0 {
        return Err(Error::INVALID_VALUE);
    }
    let device = known.device;
    let file = Sharable::open(pid, descriptor).map_err(|_| Error::INVALID_VALUE)?;
    if file.inode() != inode || file.bytes() != bytes {
        return Err(Error::INVALID_VALUE);
    }
    let region = Region::at(file.map(0, bytes)?);
    objects.lend_from_pool(pool, bytes);
    let (base, region, kind) = (region.base(), Some(region), Kind::Pooled { pool, managed: None });
    objects.allocations.add(Allocation { base, bytes, context, device, charged: 0, id: 0, region, kind });
    pointer.put(base)
}
