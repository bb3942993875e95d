//! The calls of virtual memory management.

use super::shapes::{ACCESS, Access, DESCRIPTOR, GRANULARITY, Location, NO_ACCESS, PINNED, Properties};
use super::table::{Mapping, Memory, table};
use crate::abi::{Handle, In, Out, api};
use crate::error::{Answer, Error};
use crate::machine;
use crate::memory::residency;
use crate::objects::objects;
use crate::sharable::{LABEL, Place, Sharable};
use crate::time;
use std::collections::BTreeMap;
use std::ffi::c_void;

api! {
    fn cuMemAddressReserve(pointer: Out<u64>, bytes: usize, alignment: usize, hint: u64, flags: u64) = reserve;
    fn cuMemAddressFree(pointer: u64, bytes: usize) = free_addresses;
    fn cuMemCreate(handle: Out<Handle>, bytes: usize, properties: In<Properties>, flags: u64) = create;
    fn cuMemRelease(handle: Handle) = release;
    fn cuMemMap(pointer: u64, bytes: usize, offset: usize, handle: Handle, flags: u64) = map;
    fn cuMemUnmap(pointer: u64, bytes: usize) = unmap;
    fn cuMemSetAccess(pointer: u64, bytes: usize, access: In<Access>, count: usize) = set_access;
    fn cuMemGetAccess(flags: Out<u64>, location: In<Location>, pointer: u64) = get_access;
    fn cuMemExportToShareableHandle(shared: Out<c_void>, handle: Handle, kind: u32, flags: u64) = export;
    fn cuMemImportFromShareableHandle(handle: Out<Handle>, shared: u64, kind: u32) = import;
    fn cuMemGetAllocationGranularity(bytes: Out<usize>, properties: In<Properties>, option: u32) = granularity;
    fn cuMemGetAllocationPropertiesFromHandle(properties: Out<Properties>, handle: Handle) = properties_of;
    fn cuMemRetainAllocationHandle(handle: Out<Handle>, pointer: u64) = retain;
}

/// Unit of reserved addresses.
const PAGE: u64 = 4096;
/// Stands for the card in the label of a handle's memory that is on the host.
const NO_CARD: &str = "host";

fn reserve(pointer: Out<u64>, bytes: usize, alignment: usize, hint: u64, flags: u64) -> Answer {
    machine::all()?;
    pointer.check()?;
    let (bytes, alignment) = (bytes as u64, alignment as u64);
    let odd = alignment != 0 && !alignment.is_power_of_two();
    if bytes == 0 || !bytes.is_multiple_of(PAGE) || !hint.is_multiple_of(PAGE) || odd || flags != 0 {
        return Err(Error::INVALID_VALUE);
    }
    let place = Place::reserve(bytes, alignment.max(GRANULARITY), hint)?;
    let base = place.base;
    table().places.insert(base, place);
    pointer.put(base)
}

fn free_addresses(pointer: u64, bytes: usize) -> Answer {
    machine::all()?;
    let mut table = table();
    let fits = table.places.get(&pointer).is_some_and(|place| place.bytes == bytes as u64);
    if !fits || !table.is_empty(pointer, bytes as u64) {
        return Err(Error::INVALID_VALUE);
    }
    table.places.remove(&pointer);
    Ok(())
}

fn create(handle: Out<Handle>, bytes: usize, properties: In<Properties>, flags: u64) -> Answer {
    handle.check()?;
    let properties = properties.get()?;
    let device = properties.check()?;
    let bytes = bytes as u64;
    if bytes == 0 || !bytes.is_multiple_of(GRANULARITY) || flags != 0 {
        return Err(Error::INVALID_VALUE);
    }
    let mut objects = objects()?;
    let (charged, ready) = match device {
        Some(device) => (bytes, residency::charge(&mut objects.allocations, device, bytes)?),
        None => (0, 0),
    };
    let file = Sharable::new(&label(device, properties.location)?, bytes).inspect_err(|_| {
        if let Some(device) = device {
            residency::release(device, charged);
        }
    })?;
    let number = objects.handle();
    table().memories.insert(number, Memory { file, bytes, properties, device, charged, references: 1 });
    drop(objects);
    time::wait(ready);
    handle.put(number)
}

fn label(device: Option<usize>, location: Location) -> Result<String, Error> {
    let card = match device {
        Some(device) => machine::all()?.get(device).ok_or(Error::INVALID_DEVICE)?.settings.uuid_text(),
        None => NO_CARD.to_owned(),
    };
    Ok(format!("{LABEL} {card} {} {}", location.kind, location.id))
}

fn release(handle: Handle) -> Answer {
    let _objects = objects()?;
    let mut table = table();
    let memory = table.memory(handle)?;
    memory.references = memory.references.checked_sub(1).ok_or(Error::INVALID_VALUE)?;
    table.forget(handle);
    Ok(())
}

fn map(pointer: u64, bytes: usize, offset: usize, handle: Handle, flags: u64) -> Answer {
    let _objects = objects()?;
    let mut table = table();
    let (bytes, memory) = (bytes as u64, table.memory(handle)?);
    let whole = bytes > 0 && bytes.is_multiple_of(GRANULARITY) && pointer.is_multiple_of(GRANULARITY);
    // The offset must be 0 as yet, says the documentation.
    if !whole || offset != 0 || flags != 0 || bytes > memory.bytes || memory.references == 0 {
        return Err(Error::INVALID_VALUE);
    }
    if !table.is_reserved(pointer, bytes) || !table.is_empty(pointer, bytes) {
        return Err(Error::INVALID_VALUE);
    }
    table.memory(handle)?.file.map_over(pointer, 0, bytes)?;
    table.mappings.insert(pointer, Mapping { bytes, handle, access: BTreeMap::new() });
    Ok(())
}

fn unmap(pointer: u64, bytes: usize) -> Answer {
    let mut objects = objects()?;
    let mut table = table();
    let mappings = table.filling(pointer, bytes as u64)?;
    table.unmap(&mut objects, &mappings)
}

fn set_access(pointer: u64, bytes: usize, access: In<Access>, count: usize) -> Answer {
    let mut objects = objects()?;
    if count == 0 || count > machine::all()?.len() + 3 {
        return Err(Error::INVALID_VALUE);
    }
    let access = access.get_all(count)?;
    let mut table = table();
    let mappings = table.filling(pointer, bytes as u64)?;
    for Access { location, flags } in &access {
        let of_host = location.device()?.is_none();
        let on_card = |base: &u64| {
            let memory = table.mappings.get(base).and_then(|mapping| table.memories.get(&mapping.handle));
            memory.is_some_and(|memory| memory.device.is_some())
        };
        if !ACCESS.contains(flags) || (of_host && mappings.iter().any(on_card)) {
            return Err(Error::INVALID_VALUE);
        }
    }
    mappings.iter().try_for_each(|base| table.set_access(&mut objects, *base, &access))
}

fn get_access(flags: Out<u64>, location: In<Location>, pointer: u64) -> Answer {
    machine::all()?;
    flags.check()?;
    let location = location.get()?;
    location.device()?;
    let table = table();
    let mapping = table.mapping(pointer).ok_or(Error::INVALID_VALUE)?;
    flags.put(u64::from(mapping.access.get(&location.normal()).copied().unwrap_or(NO_ACCESS)))
}

fn export(shared: Out<c_void>, handle: Handle, kind: u32, flags: u64) -> Answer {
    machine::all()?;
    let shared = shared.of::<i32>();
    shared.check()?;
    let mut table = table();
    let memory = table.memory(handle)?;
    if kind != DESCRIPTOR {
        return Err(Error::NOT_SUPPORTED);
    }
    if flags != 0 || memory.properties.handle_types & DESCRIPTOR == 0 {
        return Err(Error::INVALID_VALUE);
    }
    shared.put(memory.file.hand_out()?)
}

fn import(handle: Out<Handle>, shared: u64, kind: u32) -> Answer {
    let mut objects = objects()?;
    handle.check()?;
    if kind != DESCRIPTOR {
        return Err(Error::NOT_SUPPORTED);
    }
    let file = Sharable::of(i32::try_from(shared).map_err(|_| Error::INVALID_VALUE)?)?;
    let (device, location) = read_label(&file.label())?;
    let mut table = table();
    // Memory of this process: one more reference to what is there.
    let inode = file.inode();
    if let Some((own, memory)) = table.memories.iter_mut().find(|(_, memory)| memory.file.inode() == inode) {
        memory.references += 1;
        return handle.put(*own);
    }
    let (number, bytes) = (objects.handle(), file.bytes());
    let properties = Properties { kind: PINNED, handle_types: DESCRIPTOR, location, windows: 0, flags: [0; 8] };
    table.memories.insert(number, Memory { file, bytes, properties, device, charged: 0, references: 1 });
    handle.put(number)
}

/// The device, and where it is, of memory with this label.
fn read_label(label: &str) -> Result<(Option<usize>, Location), Error> {
    let [LABEL, card, kind, id] = label.split(' ').collect::<Vec<_>>()[..] else { return Err(Error::INVALID_VALUE) };
    let kind = kind.parse().map_err(|_| Error::INVALID_VALUE)?;
    if card == NO_CARD {
        return Ok((None, Location { kind, id: id.parse().map_err(|_| Error::INVALID_VALUE)? }));
    }
    let device = machine::all()?.iter().position(|device| device.settings.uuid_text() == card);
    let device = device.ok_or(Error::INVALID_DEVICE)?;
    // The number that the card has here.
    Ok((Some(device), Location { kind, id: i32::try_from(device).map_err(|_| Error::INVALID_DEVICE)? }))
}

fn granularity(bytes: Out<usize>, properties: In<Properties>, option: u32) -> Answer {
    bytes.check()?;
    properties.get()?.check()?;
    // Minimum and recommended: both are one page of the device.
    if option > 1 {
        return Err(Error::INVALID_VALUE);
    }
    bytes.put(usize::try_from(GRANULARITY).map_err(|_| Error::UNKNOWN)?)
}

fn properties_of(properties: Out<Properties>, handle: Handle) -> Answer {
    machine::all()?;
    let found = table().memory(handle)?.properties;
    properties.put(found)
}

fn retain(handle: Out<Handle>, pointer: u64) -> Answer {
    machine::all()?;
    handle.check()?;
    let mut table = table();
    let found = table.mapping(pointer).ok_or(Error::INVALID_VALUE)?.handle;
    table.memory(found)?.references += 1;
    handle.put(found)
}
