//! The entries about pools.

use crate::abi::{Handle, In, Out, api, out_at};
use crate::error::{Answer, Error};
use crate::machine;
use crate::memory::managed::{CPU, NOWHERE};
use crate::memory::pool::{Pool, managed_pools_exist};
use crate::memory::prefetch::Location;
use crate::objects::objects;

api! {
    fn cuMemPoolCreate(pool: Out<Handle>, properties: In<Properties>) = create;
    fn cuMemPoolDestroy(pool: Handle) = destroy;
    fn cuMemPoolTrimTo(pool: Handle, keep: usize) = trim;
    fn cuMemPoolGetAttribute(pool: Handle, attribute: u32, value: u64) = get_attribute;
    fn cuMemPoolSetAttribute(pool: Handle, attribute: u32, value: u64) = set_attribute;
    fn cuMemPoolSetAccess(pool: Handle, access: In<Access>, count: usize) = set_access;
    fn cuMemPoolGetAccess(flags: Out<u32>, pool: Handle, place: In<Location>) = get_access;
    fn cuDeviceGetDefaultMemPool(pool: Out<Handle>, device: i32) = default_of_device;
    fn cuDeviceGetMemPool(pool: Out<Handle>, device: i32) = of_device;
    fn cuDeviceSetMemPool(device: i32, pool: Handle) = set_of_device;
    fn cuMemGetDefaultMemPool(pool: Out<Handle>, place: In<Location>, kind: u32) = default_of_place;
    fn cuMemGetMemPool(pool: Out<Handle>, place: In<Location>, kind: u32) = of_place;
    fn cuMemSetMemPool(place: In<Location>, kind: u32, pool: Handle) = set_of_place;
}

/// `CUmemPoolProps`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Properties {
    kind: u32,
    handle_types: u32,
    place: Location,
    security: u64,
    max: usize,
    usage: u16,
    rdma: u8,
    reserved: [u8; 53],
}

/// `CUmemAccessDesc`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Access {
    place: Location,
    flags: u32,
}

/// `CU_MEM_ALLOCATION_TYPE_PINNED`, `_MANAGED`.
const PINNED: u32 = 1;
const MANAGED: u32 = 2;
/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
const DESCRIPTOR: u32 = 1;
/// Readable and writable.
const READ_WRITE: u32 = 3;

/// Preferred place of managed memory: also nowhere in particular.
fn place(location: Location) -> Result<i32, Error> {
    if location.kind == 0 { Ok(NOWHERE) } else { location.place().map_err(|_| Error::INVALID_VALUE) }
}

fn create(pool: Out<Handle>, properties: In<Properties>) -> Answer {
    let mut objects = objects()?;
    pool.check()?;
    let Properties { kind, handle_types, place: location, max, .. } = properties.get()?;
    let made = match kind {
        PINNED => {
            if handle_types & !DESCRIPTOR != 0 {
                return Err(Error::NOT_SUPPORTED);
            }
            let device = place(location)?;
            if device == CPU {
                return Err(Error::NOT_SUPPORTED);
            }
            let device = machine::device(device).map_err(|_| Error::INVALID_VALUE)?.0;
            Pool { handle_types, max: max as u64, ..Pool::new(device, None) }
        }
        MANAGED => {
            managed_pools_exist()?;
            if handle_types != 0 || max != 0 {
                return Err(Error::INVALID_VALUE);
            }
            let preferred = place(location)?;
            Pool::new(usize::try_from(preferred).unwrap_or(0), Some(preferred))
        }
        _ => return Err(Error::INVALID_VALUE),
    };
    let handle = objects.handle();
    objects.pools.insert(handle, made);
    pool.put(handle)
}

fn destroy(pool: Handle) -> Answer {
    objects()?.destroy_pool(pool)
}

fn trim(pool: Handle, keep: usize) -> Answer {
    let mut objects = objects()?;
    objects.pool(pool)?;
    objects.shrink_pool(pool, keep as u64);
    Ok(())
}

fn get_attribute(pool: Handle, attribute: u32, value: u64) -> Answer {
    let mut objects = objects()?;
    let pool = objects.pool(pool)?;
    let word = |word: u32| out_at(value).put(word);
    let long = |long: u64| out_at(value).put(long);
    let managed_place = pool.preferred;
    match attribute {
        1..=3 => word(pool.reuse[attribute as usize - 1]),
        4 => long(pool.threshold),
        5 => long(pool.reserved.now),
        6 => long(pool.reserved.high),
        7 => long(pool.used.now),
        8 => long(pool.used.high),
        9 => word(managed_place.map_or(PINNED, |_| MANAGED)),
        10 => word(pool.handle_types),
        11 => word(managed_place.map_or(pool.device, |place| usize::try_from(place).unwrap_or(0)) as u32),
        12 => word(match managed_place {
            Some(CPU) => 2,
            Some(NOWHERE) => 0,
            Some(_) | None => 1,
        }),
        13 => long(pool.max),
        14 => word(0),
        15 => word(u32::MAX),
        _ => Err(Error::INVALID_VALUE),
    }
}

fn set_attribute(pool: Handle, attribute: u32, value: u64) -> Answer {
    let mut objects = objects()?;
    let pool = objects.pool(pool)?;
    let long = || out_at::<u64>(value).get();
    match attribute {
        1..=3 => pool.reuse[attribute as usize - 1] = out_at(value).get()?,
        4 => pool.threshold = long()?,
        6 if long()? == 0 => pool.reserved.high = pool.reserved.now,
        8 if long()? == 0 => pool.used.high = pool.used.now,
        _ => return Err(Error::INVALID_VALUE),
    }
    Ok(())
}

fn set_access(pool: Handle, access: In<Access>, count: usize) -> Answer {
    let mut objects = objects()?;
    let pool = objects.pool(pool)?;
    let wanted = access.get_all(count)?;
    for Access { place, flags } in &wanted {
        let own = usize::try_from(place.id) == Ok(pool.device);
        let is_device = place.kind == Location::DEVICE && machine::device(place.id).is_ok();
        // A pool's own device keeps its access.
        if !is_device || !matches!(flags, 0 | 1 | 3) || (own && *flags != READ_WRITE) || pool.preferred.is_some() {
            return Err(Error::INVALID_VALUE);
        }
    }
    pool.access.extend(wanted.iter().map(|access| (access.place.id, access.flags)));
    Ok(())
}

fn get_access(flags: Out<u32>, pool: Handle, place: In<Location>) -> Answer {
    let mut objects = objects()?;
    let pool = objects.pool(pool)?;
    let place = place.get()?.place()?;
    let own = pool.preferred.is_some() || usize::try_from(place) == Ok(pool.device);
    flags.put(if own { READ_WRITE } else { pool.access.get(&place).copied().unwrap_or(0) })
}

fn default_of_device(pool: Out<Handle>, device: i32) -> Answer {
    let mut objects = objects()?;
    machine::device(device)?;
    pool.put(objects.default_pool(device, false)?)
}

fn of_device(pool: Out<Handle>, device: i32) -> Answer {
    let mut objects = objects()?;
    machine::device(device)?;
    pool.put(objects.current_pool(device, false)?)
}

fn set_of_device(device: i32, pool: Handle) -> Answer {
    let mut objects = objects()?;
    machine::device(device)?;
    objects.set_current_pool(device, false, pool)
}

/// The place, and whether memory there shall be managed.
fn kind_of(location: In<Location>, kind: u32) -> Result<(i32, bool), Error> {
    let place = place(location.get()?)?;
    match kind {
        PINNED => Ok((place, false)),
        MANAGED => Ok((place, true)),
        _ => Err(Error::INVALID_VALUE),
    }
}

fn default_of_place(pool: Out<Handle>, location: In<Location>, kind: u32) -> Answer {
    let mut objects = objects()?;
    let (place, is_managed) = kind_of(location, kind)?;
    pool.put(objects.default_pool(place, is_managed)?)
}

fn of_place(pool: Out<Handle>, location: In<Location>, kind: u32) -> Answer {
    let mut objects = objects()?;
    let (place, is_managed) = kind_of(location, kind)?;
    pool.put(objects.current_pool(place, is_managed)?)
}

fn set_of_place(location: In<Location>, kind: u32, pool: Handle) -> Answer {
    let mut objects = objects()?;
    let (place, is_managed) = kind_of(location, kind)?;
    objects.set_current_pool(place, is_managed, pool)
}
