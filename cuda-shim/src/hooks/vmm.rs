//! Handles of physical memory and their mappings. They cannot be managed memory: they are limited and never moved.
//!
//! Memory lives as long as a handle or a mapping of it. A handle's number may be reused once it is released, so memory
//! has a number of its own here, and the table is locked over calls that free numbers and addresses: the same one in
//! another thread is recorded afterwards.

use super::entry::hooks;
use super::ledger::{refusal, size};
use super::reclaim::reserve;
use crate::abi::{AllocationProperties, Handle, INVALID_VALUE, In, Out, SUCCESS};
use crate::account;
use crate::driver::cuMemGetAllocationGranularity;
use crate::process::PerProcess;
use crate::ranges::Kind;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

hooks! {
    fn cuMemCreate(handle: Out<Handle>, bytes: usize, properties: In<AllocationProperties>, flags: u64) |real| {
        let (Some(given), false) = (properties.get(), handle.is_null()) else {
            return real(handle, bytes, properties, flags);
        };
        let kind = if given.location.is_host() { Kind::Host } else { Kind::Device };
        if reserve(kind, size(bytes)).is_err() {
            // The driver reports wrong properties before it looks for memory.
            let mut granularity = 0;
            let complaint = cuMemGetAllocationGranularity(Out::of(&mut granularity), properties, 0);
            return match complaint {
                SUCCESS if granularity > 0 && !bytes.is_multiple_of(granularity) => INVALID_VALUE,
                SUCCESS => refusal(),
                complaint => complaint,
            };
        }
        let result = real(handle, bytes, properties, flags);
        match (result, handle.get()) {
            (SUCCESS, Some(handle)) => {
                lock().created(handle, Memory { kind, bytes: size(bytes), holders: 1, is_imported: false });
                crate::control::allocated();
            }
            _ => account::give_back(kind, size(bytes)),
        }
        result
    };
    fn cuMemImportFromShareableHandle(handle: Out<Handle>, shared: u64, kind: i32) |real| {
        let mut table = lock();
        let result = real(handle, shared, kind);
        if let (SUCCESS, Some(handle)) = (result, handle.get()) {
            table.imported(handle);
        }
        result
    };
    fn cuMemRetainAllocationHandle(handle: Out<Handle>, address: u64) |real| {
        let mut table = lock();
        let result = real(handle, address);
        if let (SUCCESS, Some(handle)) = (result, handle.get()) {
            table.retained(handle, address);
        }
        result
    };
    fn cuMemRelease(handle: Handle) |real| {
        let mut table = lock();
        let result = real(handle);
        if result == SUCCESS {
            table.released(handle);
        }
        result
    };
    fn cuMemMap(address: u64, bytes: usize, offset: usize, handle: Handle, flags: u64) |real| {
        // The size of imported memory is known only here.
        let mut table = lock();
        let growth = table.growth(handle, size(offset).saturating_add(size(bytes)));
        if growth > 0 && reserve(Kind::Device, growth).is_err() {
            return refusal();
        }
        let result = real(address, bytes, offset, handle, flags);
        if result == SUCCESS {
            table.mapped(address, size(bytes), handle, growth);
        } else if growth > 0 {
            account::give_back(Kind::Device, growth);
        }
        result
    };
    fn cuMemUnmap(address: u64, bytes: usize) |real| {
        let mut table = lock();
        let result = real(address, bytes);
        if result == SUCCESS {
            table.unmapped(address, size(bytes));
        }
        result
    };
}

struct Memory {
    kind: Kind,
    bytes: u64,
    /// Number of handles, each counted as often as it must be released, and of mappings.
    holders: u64,
    is_imported: bool,
}

#[derive(Default)]
struct Table {
    memory: BTreeMap<u64, Memory>,
    next: u64,
    handles: BTreeMap<Handle, Named>,
    /// Address to size and number of the memory.
    mappings: BTreeMap<u64, (u64, u64)>,
}

#[derive(Clone, Copy)]
struct Named {
    memory: u64,
    /// Number of releases that are due.
    references: u64,
}

static TABLE: PerProcess<Mutex<Table>> = PerProcess::new();

fn lock() -> MutexGuard<'static, Table> {
    TABLE.get(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

impl Table {
    fn created(&mut self, handle: Handle, memory: Memory) {
        let number = self.next;
        self.next += 1;
        self.memory.insert(number, memory);
        self.handles.insert(handle, Named { memory: number, references: 1 });
    }

    /// Records an imported handle. Memory of this process that comes back under its own handle is one more reference.
    fn imported(&mut self, handle: Handle) {
        let Some(named) = self.handles.get_mut(&handle) else {
            return self.created(handle, Memory { kind: Kind::Device, bytes: 0, holders: 1, is_imported: true });
        };
        named.references += 1;
        let memory = named.memory;
        self.hold(memory);
    }

    fn retained(&mut self, handle: Handle, address: u64) {
        let Some((begin, (bytes, memory))) = self.mappings.range(..=address).next_back() else { return };
        if address - begin < *bytes {
            let memory = *memory;
            self.handles.entry(handle).or_insert(Named { memory, references: 0 }).references += 1;
            self.hold(memory);
        }
    }

    fn released(&mut self, handle: Handle) {
        let Some(named) = self.handles.get_mut(&handle) else { return };
        let memory = named.memory;
        named.references = named.references.saturating_sub(1);
        if named.references == 0 {
            self.handles.remove(&handle);
        }
        self.let_go(memory);
    }

    /// Growth of imported memory that a mapping reveals.
    fn growth(&self, handle: Handle, end: u64) -> u64 {
        let memory = self.handles.get(&handle).and_then(|named| self.memory.get(&named.memory));
        memory.filter(|memory| memory.is_imported).map_or(0, |memory| end.saturating_sub(memory.bytes))
    }

    fn mapped(&mut self, address: u64, bytes: u64, handle: Handle, growth: u64) {
        let Some(Named { memory, .. }) = self.handles.get(&handle).copied() else { return };
        self.mappings.insert(address, (bytes, memory));
        self.hold(memory);
        if let Some(memory) = self.memory.get_mut(&memory) {
            memory.bytes += growth;
        }
    }

    fn unmapped(&mut self, address: u64, bytes: u64) {
        let gone: Vec<u64> = {
            let end = address.saturating_add(bytes);
            self.mappings.extract_if(address..end, |_, _| true).map(|(_, (_, memory))| memory).collect()
        };
        gone.into_iter().for_each(|memory| self.let_go(memory));
    }

    fn hold(&mut self, memory: u64) {
        if let Some(memory) = self.memory.get_mut(&memory) {
            memory.holders += 1;
        }
    }

    fn let_go(&mut self, number: u64) {
        let Some(memory) = self.memory.get_mut(&number) else { return };
        memory.holders = memory.holders.saturating_sub(1);
        if memory.holders == 0 {
            account::give_back(memory.kind, memory.bytes);
            self.memory.remove(&number);
        }
    }
}
