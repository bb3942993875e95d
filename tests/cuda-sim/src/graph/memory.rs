//! Memory of graphs: what each device keeps for them, and what of it is in use.

use super::table::table;
use crate::abi::{Out, api};
use crate::error::{Answer, Error};
use crate::machine;
use crate::memory::residency;
use crate::objects::{Objects, objects};
use std::collections::BTreeMap;
use std::ffi::c_void;

api! {
    fn cuDeviceGraphMemTrim(device: i32) = trim;
    fn cuDeviceGetGraphMemAttribute(device: i32, attribute: u32, value: Out<c_void>) = get;
    fn cuDeviceSetGraphMemAttribute(device: i32, attribute: u32, value: Out<c_void>) = set;
}

/// Graph memory of one device, in bytes.
#[derive(Debug, Default)]
pub(super) struct GraphMemory {
    /// Bytes in use, by address.
    pub(super) live: BTreeMap<u64, u64>,
    used_high: u64,
    /// Charged to this process.
    reserved: u64,
    reserved_high: u64,
}

impl GraphMemory {
    fn used(&self) -> u64 {
        self.live.values().sum()
    }

    /// Answers when it is there.
    ///
    /// # Errors
    /// When it is in use already, or there is no room.
    pub(super) fn allocate(
        &mut self,
        objects: &mut Objects,
        device: usize,
        (address, bytes): (u64, u64),
    ) -> Result<u64, Error> {
        if self.live.contains_key(&address) {
            return Err(Error::INVALID_VALUE);
        }
        let missing = (self.used() + bytes).saturating_sub(self.reserved);
        let ready = if missing > 0 { residency::charge(&mut objects.allocations, device, missing)? } else { 0 };
        self.reserved += missing;
        self.live.insert(address, bytes);
        self.used_high = self.used_high.max(self.used());
        self.reserved_high = self.reserved_high.max(self.reserved);
        Ok(ready)
    }
}

/// Ends the use of an address of a graph; whether it was one. For `cuMemFree` and `cuMemFreeAsync`.
pub(crate) fn free(objects: &mut Objects, address: u64) -> bool {
    let mut table = table();
    let was = table.memory.values_mut().any(|memory| memory.live.remove(&address).is_some());
    if was {
        table.forget(objects, &[address]);
    }
    was
}

fn trim(device: i32) -> Answer {
    let (device, _) = machine::device(device)?;
    let _objects = objects()?;
    let mut table = table();
    let memory = table.memory.entry(device).or_default();
    let unused = memory.reserved - memory.used();
    memory.reserved -= unused;
    residency::release(device, unused);
    Ok(())
}

fn get(device: i32, attribute: u32, value: Out<c_void>) -> Answer {
    let (device, _) = machine::device(device)?;
    let mut table = table();
    let memory = table.memory.entry(device).or_default();
    let found = match attribute {
        0 => memory.used(),
        1 => memory.used_high,
        2 => memory.reserved,
        3 => memory.reserved_high,
        _ => return Err(Error::INVALID_VALUE),
    };
    value.of::<u64>().put(found)
}

/// The highest values can be set back to zero, which means to what is now.
fn set(device: i32, attribute: u32, value: Out<c_void>) -> Answer {
    let (device, _) = machine::device(device)?;
    let wanted = value.of::<u64>().get()?;
    let mut table = table();
    let memory = table.memory.entry(device).or_default();
    match (attribute, wanted) {
        (1, 0) => memory.used_high = memory.used(),
        (3, 0) => memory.reserved_high = memory.reserved,
        _ => return Err(Error::INVALID_VALUE),
    }
    Ok(())
}
