//! Pools that several processes have.

use crate::caller::Caller;
use crate::{MIB, Machine};

/// A pool of device 0 that can be exported, in a cell.
fn shared_pool(caller: &mut Caller, cell: usize) {
    // Pinned memory, whose handle is a descriptor; on a device; number 0.
    caller.ok(&format!("set 30 0 {}", 1_u64 | 1 << 32));
    caller.ok("set 30 1 1");
    caller.ok(&format!("cuMemPoolCreate &{cell} &30"));
}

/// Imports into a cell the pool that another process has exported as a descriptor.
fn import_pool(caller: &mut Caller, cell: usize, owner: u32, descriptor: u64) -> u64 {
    let own = caller.call(&format!("open '/proc/{owner}/fd/{descriptor} 2"));
    let answer = caller.call(&format!("cuMemPoolImportFromShareableHandle &{cell} {own} 1 0"));
    caller.ok(&format!("close {own}"));
    answer
}

/// Brings 64 bytes from a cell of one process to the same cell of another.
fn carry(from: &mut Caller, to: &mut Caller, cell: usize) {
    from.ok(&format!("set 31 0 &{cell}"));
    let address = from.cell(31);
    for word in 0..8 {
        let value = from.call(&format!("load {}", address + 8 * word));
        to.ok(&format!("set {cell} {word} {value}"));
    }
}

#[test]
fn processes_share_the_memory_of_a_pool() {
    let machine = Machine::one();
    let (mut owner, mut other) = (machine.caller(), machine.caller());
    shared_pool(&mut owner, 1);
    owner.ok(&format!("cuMemAllocFromPoolAsync &2 {MIB} $1 0"));
    owner.ok("cuMemsetD32_v2 $2 77 2");
    assert_eq!(owner.call("cuMemPoolExportPointer &3 $2"), 1, "a pool that was not exported");
    owner.ok("cuMemPoolExportToShareableHandle &4 $1 1 0");
    owner.ok("cuMemPoolExportPointer &3 $2");

    let descriptor = owner.cell(4);
    assert_eq!(import_pool(&mut other, 1, owner.pid(), descriptor), 0);
    carry(&mut owner, &mut other, 3);
    other.ok("cuMemPoolImportPointer &2 $1 &3");
    other.ok("cuMemcpyDtoH_v2 &5 $2 8");
    assert_eq!(other.cell(5), 77 << 32 | 77, "what was there before it was exported");
    other.ok("cuMemsetD32_v2 $2 78 1");
    owner.ok("cuMemcpyDtoH_v2 &5 $2 8");
    assert_eq!(owner.cell(5), 77 << 32 | 78, "the same bytes");
    assert_eq!(machine.cards[0].state().unwrap().used(), MIB, "on the card once");

    other.ok("cuPointerGetAttribute &6 17 $2");
    assert_eq!(other.cell(6), other.cell(1), "the pool of the memory");
    other.ok("cuMemFreeAsync $2 0");
    assert_eq!(other.call("cuMemcpyDtoH_v2 &5 $2 8"), 1, "it is gone here");
    other.ok("cuMemPoolDestroy $1");
    owner.ok("cuMemcpyDtoH_v2 &5 $2 8");
    owner.ok("cuMemFree_v2 $2");
    assert_eq!(import_pool(&mut other, 1, owner.pid(), descriptor), 0);
    assert_eq!(other.call("cuMemPoolImportPointer &2 $1 &3"), 1, "it is gone there");
}

#[test]
fn an_imported_pool_has_no_memory_of_its_own() {
    let machine = Machine::one();
    let (mut owner, mut other) = (machine.caller(), machine.caller());
    shared_pool(&mut owner, 1);
    owner.ok("cuMemPoolExportToShareableHandle &4 $1 1 0");
    let descriptor = owner.cell(4);
    assert_eq!(import_pool(&mut other, 1, owner.pid(), descriptor), 0);
    for call in [
        "cuMemAllocFromPoolAsync &2 4096 $1 0",
        "cuDeviceSetMemPool 0 $1",
        "cuMemPoolExportToShareableHandle &4 $1 1 0",
        // Made up.
        "cuMemPoolImportPointer &2 $1 &9",
    ] {
        assert_eq!(other.call(call), 1, "{call}");
    }
}

#[test]
fn invalid_pool_handles_are_refused() {
    let machine = Machine::one();
    let (mut owner, mut other) = (machine.caller(), machine.caller());
    owner.ok("cuDeviceGetDefaultMemPool &1 0");
    assert_eq!(owner.call("cuMemPoolExportToShareableHandle &4 $1 1 0"), 1, "made without handles");
    for (one, cell) in [(&mut owner, 1), (&mut other, 2)] {
        shared_pool(one, cell);
        one.ok(&format!("cuMemPoolExportToShareableHandle &4 ${cell} 1 0"));
        assert_eq!(one.call(&format!("cuMemPoolExportToShareableHandle &4 ${cell} 2 0")), 1, "another kind of handle");
        assert_eq!(one.call(&format!("cuMemPoolExportToShareableHandle 0 ${cell} 1 0")), 1);
    }
    assert_eq!(other.call("cuMemPoolImportFromShareableHandle &1 0 1 0"), 1, "some descriptor");
    assert_eq!(other.call("cuMemPoolImportFromShareableHandle &1 -1 1 0"), 1, "none");
    // Memory of one pool, by way of another that was imported.
    owner.ok(&format!("cuMemAllocFromPoolAsync &2 {MIB} $1 0"));
    owner.ok("cuMemPoolExportPointer &3 $2");
    shared_pool(&mut owner, 5);
    owner.ok("cuMemPoolExportToShareableHandle &6 $5 1 0");
    let descriptor = owner.cell(6);
    assert_eq!(import_pool(&mut other, 1, owner.pid(), descriptor), 0);
    carry(&mut owner, &mut other, 3);
    assert_eq!(other.call("cuMemPoolImportPointer &7 $1 &3"), 1, "it is not of this pool");
    owner.ok("cuMemAllocManaged &7 4096 1");
    assert_eq!(owner.call("cuMemPoolExportPointer &3 $7"), 1, "of no pool");
}
