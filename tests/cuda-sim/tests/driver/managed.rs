//! Places of managed memory: bytes, order, eviction.

use crate::caller::Caller;
use crate::{MIB, Machine};
use omni_cuda_card::{Cause, Direction};

/// Allocates managed memory of so many MiB; its address is in the cell.
fn allocate(caller: &mut Caller, cell: usize, mib: u64) {
    caller.ok(&format!("cuMemAllocManaged &{cell} {} 1", mib * MIB));
}

fn prefetch(caller: &mut Caller, cell: usize, mib: u64, place: i32) {
    caller.ok(&format!("cuMemPrefetchAsync ${cell} {} {place} 0", mib * MIB));
}

/// The moves over the link: MiB, direction, cause.
fn moves(machine: &Machine) -> Vec<(u64, Direction, Cause)> {
    let state = machine.cards[0].state().unwrap();
    state.moves.iter().map(|one| (one.bytes / MIB, one.direction, one.cause)).collect()
}

#[test]
fn a_process_uses_the_card_only_while_it_lives() {
    let machine = Machine::one();
    let mut caller = machine.caller();
    allocate(&mut caller, 1, 400);
    let state = machine.cards[0].state().unwrap();
    assert_eq!((state.used(), state.processes[0].managed), (0, 400 * MIB));
    prefetch(&mut caller, 1, 400, 0);
    assert_eq!(machine.cards[0].state().unwrap().resident(), 400 * MIB);
    prefetch(&mut caller, 1, 400, -1);
    assert_eq!(machine.cards[0].state().unwrap().used(), 0);
    prefetch(&mut caller, 1, 400, 0);
    use Cause::{Populate, Prefetch};
    use Direction::{ToDevice, ToHost};
    assert_eq!(moves(&machine), [(400, ToDevice, Populate), (400, ToHost, Prefetch), (400, ToDevice, Prefetch)]);
    let counters = machine.cards[0].state().unwrap().counters;
    assert_eq!(counters.prefetch_calls, 3);
    assert_eq!((counters.prefetch_to_device, counters.prefetch_to_host), (400 * MIB, 400 * MIB));
    caller.ok("cuMemFree_v2 $1");
    let state = machine.cards[0].state().unwrap();
    assert_eq!((state.used(), state.processes[0].managed), (0, 0));
}

#[test]
fn a_full_card_evicts_the_least_recently_used_memory() {
    let machine = Machine::one();
    let mut caller = machine.caller();
    for cell in 1..=3 {
        allocate(&mut caller, cell, 400);
        prefetch(&mut caller, cell, 400, 0);
    }
    use Cause::{Eviction, Populate, Prefetch};
    use Direction::{ToDevice, ToHost};
    let before =
        [(400, ToDevice, Populate), (400, ToDevice, Populate), (176, ToHost, Eviction), (400, ToDevice, Populate)];
    assert_eq!(moves(&machine), before);
    // The first is used again: now the second is the oldest.
    prefetch(&mut caller, 1, 400, 0);
    assert_eq!(moves(&machine)[4..], [(176, ToHost, Eviction), (176, ToDevice, Prefetch)]);
    let oldest = machine.cards[0].state().unwrap().moves[4].address;
    assert_eq!(oldest, caller.cell(2), "the second one's");
    // Memory that cannot move needs its room too, and gets it.
    caller.ok(&format!("cuMemAlloc_v2 &4 {}", 1000 * MIB));
    let state = machine.cards[0].state().unwrap();
    assert_eq!((state.device(), state.resident()), (1000 * MIB, 24 * MIB));
    assert_eq!(caller.call(&format!("cuMemAlloc_v2 &5 {}", 25 * MIB)), 2);
}

#[test]
fn memory_that_prefers_the_card_is_evicted_last() {
    let machine = Machine::one();
    let (mut one, mut other) = (machine.caller(), machine.caller());
    // The oldest prefers the card; the next, of another process, does not.
    allocate(&mut one, 1, 400);
    one.ok(&format!("cuMemAdvise $1 {} 3 0", 400 * MIB));
    prefetch(&mut one, 1, 400, 0);
    allocate(&mut other, 1, 400);
    prefetch(&mut other, 1, 400, 0);
    allocate(&mut one, 2, 400);
    prefetch(&mut one, 2, 400, 0);
    let resident = |pid: u32| {
        let state = machine.cards[0].state().unwrap();
        state.processes.iter().find(|process| process.pid == pid).unwrap().resident / MIB
    };
    assert_eq!((resident(one.pid()), resident(other.pid())), (800, 224));
    // Nothing else is left to evict.
    one.ok(&format!("cuMemAlloc_v2 &3 {}", 900 * MIB));
    assert_eq!((resident(one.pid()), resident(other.pid())), (124, 0));
    let last = machine.cards[0].state().unwrap().moves.last().unwrap().address;
    assert_eq!(last, one.cell(1), "only then what prefers it");
}

#[test]
fn a_prefetch_moves_as_much_as_fits() {
    let machine = Machine::one();
    let mut caller = machine.caller();
    caller.ok(&format!("cuMemAlloc_v2 &1 {}", 1000 * MIB));
    allocate(&mut caller, 2, 100);
    prefetch(&mut caller, 2, 100, 0);
    assert_eq!(machine.cards[0].state().unwrap().used(), 1024 * MIB);
}

#[test]
fn memory_comes_to_the_device_that_uses_it() {
    let machine = Machine::one();
    let mut caller = machine.caller();
    allocate(&mut caller, 1, 8);
    prefetch(&mut caller, 1, 8, -1);
    caller.ok(&format!("cuMemsetD8_v2 $1 7 {}", 2 * MIB));
    use Cause::Fault;
    use Direction::ToDevice;
    assert_eq!(moves(&machine), [(2, ToDevice, Fault)]);
    caller.ok("cuMemcpyDtoH_v2 &2 $1 8");
    assert_eq!(caller.cell(2), 0x0707_0707_0707_0707);
    assert_eq!(moves(&machine).len(), 1, "it was there already");
    // Accessed by the device where it is: no move.
    allocate(&mut caller, 3, 8);
    prefetch(&mut caller, 3, 8, -1);
    caller.ok(&format!("cuMemAdvise $3 {} 5 0", 8 * MIB));
    caller.ok("cuMemsetD8_v2 $3 7 4096");
    assert_eq!(moves(&machine).len(), 1);
}

#[test]
fn pages_written_by_the_host_are_moved() {
    let machine = Machine::one();
    let mut caller = machine.caller();
    allocate(&mut caller, 1, 8);
    caller.ok("store $1 77");
    prefetch(&mut caller, 1, 8, 0);
    let state = machine.cards[0].state().unwrap();
    assert!((4096..=2 * MIB).contains(&state.counters.prefetch_to_device), "one page, or a large one: {state:?}");
    assert_eq!(state.counters.populated + state.counters.prefetch_to_device, 8 * MIB);
    assert_eq!(caller.call("load $1"), 77);
}

#[test]
fn read_mostly_memory_needs_no_way_back() {
    let machine = Machine::one();
    let mut caller = machine.caller();
    allocate(&mut caller, 1, 8);
    prefetch(&mut caller, 1, 8, -1);
    caller.ok(&format!("cuMemAdvise $1 {} 1 0", 8 * MIB));
    prefetch(&mut caller, 1, 8, 0);
    prefetch(&mut caller, 1, 8, -1);
    use Cause::{Discard, Prefetch};
    use Direction::{ToDevice, ToHost};
    assert_eq!(moves(&machine), [(8, ToDevice, Prefetch), (8, ToHost, Discard)]);
    // Once the device writes, it does.
    prefetch(&mut caller, 1, 8, 0);
    caller.ok(&format!("cuMemsetD8_v2 $1 1 {}", 2 * MIB));
    prefetch(&mut caller, 1, 8, -1);
    let last = moves(&machine).split_off(3);
    assert_eq!(last, [(2, ToHost, Prefetch), (6, ToHost, Discard)]);
}

#[test]
fn a_batch_is_one_call_and_a_discard_moves_nothing() {
    let machine = Machine::new(1, |settings| settings.driver = 13000);
    let mut caller = machine.caller();
    caller.ok("cuStreamCreate &9 1");
    for (cell, word) in [(1, 0), (2, 1)] {
        allocate(&mut caller, cell, 4);
        prefetch(&mut caller, cell, 4, -1);
        let address = caller.cell(cell);
        caller.ok(&format!("set 10 {word} {address}"));
        caller.ok(&format!("set 11 {word} {}", 4 * MIB));
    }
    // Both on device 0.
    caller.ok("set 12 0 1");
    caller.ok("cuMemPrefetchBatchAsync &10 &11 2 &12 &13 1 0 $9");
    caller.ok("cuStreamSynchronize $9");
    let counters = machine.cards[0].state().unwrap().counters;
    assert_eq!((counters.prefetch_calls, counters.prefetch_to_device), (3, 8 * MIB));
    caller.ok("cuMemDiscardBatchAsync &10 &11 2 0 $9");
    let state = machine.cards[0].state().unwrap();
    assert_eq!((state.used(), state.counters.discarded, state.counters.prefetch_to_host), (0, 8 * MIB, 0));
    assert_eq!(caller.call("cuMemPrefetchBatchAsync &10 &11 2 &12 &11 1 0 $9"), 1, "a batch begins at 0");
}

#[test]
fn both_versions_of_prefetch_and_their_attributes() {
    let machine = Machine::one();
    let mut caller = machine.caller();
    allocate(&mut caller, 1, 4);
    let last = |caller: &mut Caller| {
        caller.ok(&format!("cuMemRangeGetAttribute &2 4 4 $1 {}", 4 * MIB));
        u32::try_from(caller.cell(2)).unwrap().cast_signed()
    };
    assert_eq!(last(&mut caller), -2);
    // A location is kind and number: device 0; then the host.
    caller.ok(&format!("cuMemPrefetchAsync_v2 $1 {} 1 0 0", 4 * MIB));
    assert_eq!(last(&mut caller), 0);
    caller.ok(&format!("cuMemPrefetchAsync_v2 $1 {} 2 0 0", 2 * MIB));
    assert_eq!(last(&mut caller), -2, "not all of it has one place");
    caller.ok(&format!("cuMemPrefetchAsync_v2 $1 {} 2 0 0", 4 * MIB));
    assert_eq!(last(&mut caller), -1);
    assert_eq!(caller.call(&format!("cuMemPrefetchAsync_v2 $1 {} 2 1 0", 4 * MIB)), 1, "flags");
    assert_eq!(caller.call(&format!("cuMemPrefetchAsync_v2 $1 {} 77 0 0", 4 * MIB)), 1, "a kind of place");
}

#[test]
fn without_concurrent_access_nothing_is_prefetched() {
    let machine = Machine::new(1, |settings| settings.concurrent_managed = false);
    let mut caller = machine.caller();
    allocate(&mut caller, 1, 4);
    assert_eq!(caller.call("cuMemPrefetchAsync $1 4096 0 0"), 101);
    assert_eq!(caller.call("cuMemAdvise $1 4096 3 0"), 101);
    caller.ok("cuDeviceGetAttribute &2 89 0");
    assert_eq!(caller.cell(2), 0);
}
