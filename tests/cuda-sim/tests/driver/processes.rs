//! Several processes on a card, and how they end.

use crate::caller::Caller;
use crate::{MIB, Machine};
use omni_cuda_card::{Cause, Direction};

#[test]
fn each_process_sees_the_memory_of_the_others() {
    let machine = Machine::one();
    let (mut one, mut other) = (machine.caller(), machine.caller());
    one.ok(&format!("cuMemAlloc_v2 &1 {}", 600 * MIB));
    other.ok("cuMemGetInfo_v2 &1 &2");
    assert_eq!((other.cell(1), other.cell(2)), (424 * MIB, 1024 * MIB));
    assert_eq!(other.call(&format!("cuMemAlloc_v2 &1 {}", 425 * MIB)), 2);
    one.ok("cuMemFree_v2 $1");
    other.ok(&format!("cuMemAlloc_v2 &1 {}", 1024 * MIB));
}

#[test]
fn a_killed_process_leaves_nothing() {
    let machine = Machine::new(1, |settings| settings.context_bytes = 10 * MIB);
    for _ in 0..5 {
        let mut caller = machine.caller();
        caller.ok(&format!("cuMemAlloc_v2 &1 {}", 600 * MIB));
        caller.ok(&format!("cuMemAllocManaged &2 {} 1", 300 * MIB));
        caller.ok(&format!("cuMemPrefetchAsync $2 {} 0 0", 300 * MIB));
        assert_eq!(machine.cards[0].state().unwrap().used(), 910 * MIB);
        caller.kill();
        assert_eq!(machine.cards[0].state().unwrap().processes, []);
    }
}

#[test]
fn memory_of_other_processes_is_evicted_and_comes_back() {
    let machine = Machine::one();
    let (mut one, mut other) = (machine.caller(), machine.caller());
    for caller in [&mut one, &mut other] {
        caller.ok(&format!("cuMemAllocManaged &1 {} 1", 700 * MIB));
        caller.ok(&format!("cuMemPrefetchAsync $1 {} 0 0", 700 * MIB));
    }
    let state = machine.cards[0].state().unwrap();
    let resident = |pid: u32| state.processes.iter().find(|process| process.pid == pid).unwrap().resident;
    assert_eq!((resident(one.pid()), resident(other.pid())), (324 * MIB, 700 * MIB));
    one.ok(&format!("cuMemPrefetchAsync $1 {} 0 0", 700 * MIB));
    let state = machine.cards[0].state().unwrap();
    let moves: Vec<_> = state.moves.iter().map(|one| (one.pid, one.bytes / MIB, one.direction, one.cause)).collect();
    let (one, other) = (one.pid(), other.pid());
    assert_eq!(
        moves,
        [
            (one, 700, Direction::ToDevice, Cause::Populate),
            (one, 376, Direction::ToHost, Cause::Eviction),
            (other, 700, Direction::ToDevice, Cause::Populate),
            (other, 376, Direction::ToHost, Cause::Eviction),
            (one, 376, Direction::ToDevice, Cause::Prefetch),
        ]
    );
}

#[test]
fn the_child_of_a_fork_has_nothing_and_keeps_nothing() {
    let machine = Machine::one();
    let mut caller = machine.caller();
    caller.ok(&format!("cuMemAlloc_v2 &1 {}", 100 * MIB));
    for call in ["cuMemAlloc_v2 &2 4096", "cuInit 0", "cuMemFree_v2 $1", "cuCtxSynchronize"] {
        assert_eq!(caller.call(&format!("fork {call}")), 3, "{call}");
    }
    assert_eq!(machine.cards[0].state().unwrap().used(), 100 * MIB, "the parent has all of it");
    caller.ok("cuMemFree_v2 $1");
}

#[test]
fn cards_are_chosen_by_the_environment() {
    let machine = Machine::new(3, |_| ());
    let uuid = machine.cards[2].settings().uuid_text();
    let both = format!("{uuid},0");
    let table: &[(&str, &[u8])] = &[("1", &[1]), ("2,0", &[2, 0]), (&uuid, &[2]), (&both, &[2, 0]), ("0,9,1", &[0])];
    for (visible, expected) in table {
        let mut caller = Caller::start(machine.dir.path(), &[("CUDA_VISIBLE_DEVICES", visible)]);
        caller.ok("cuInit 0");
        caller.ok("cuDeviceGetCount &1");
        assert_eq!(caller.cell(1), expected.len() as u64, "{visible}");
        for (ordinal, card) in expected.iter().enumerate() {
            caller.ok(&format!("cuCtxCreate_v2 &2 0 {ordinal}"));
            caller.ok(&format!("cuMemAlloc_v2 &3 {}", MIB));
            assert_eq!(machine.cards[usize::from(*card)].state().unwrap().used(), MIB, "{visible}");
        }
        caller.kill();
    }
    for nothing in ["", "-1", "0,0", "MIG-x"] {
        let mut caller = Caller::start(machine.dir.path(), &[("CUDA_VISIBLE_DEVICES", nothing)]);
        assert_eq!(caller.call("cuInit 0"), 100, "{nothing}");
    }
}

#[test]
fn processes_that_race_get_all_memory_and_no_byte_more() {
    let machine = Machine::one();
    let mut callers: Vec<Caller> = (0..4).map(|_| machine.caller()).collect();
    // 800 requests of 2 MiB for a card of 512 times that; a part of them goes through managed memory that makes room.
    for caller in &mut callers {
        caller.ok(&format!("cuMemAllocManaged &1 {} 1", 100 * MIB));
        for _ in 0..200 {
            caller.send(&format!("cuMemAlloc_v2 &2 {}", 2 * MIB));
        }
        caller.send(&format!("cuMemPrefetchAsync $1 {} 0 0", 100 * MIB));
    }
    let results = callers.iter_mut().flat_map(|caller| (0..200).map(|_| caller.answer()).collect::<Vec<_>>());
    let granted = results.inspect(|result| assert!(matches!(result, 0 | 2), "{result}")).filter(|result| *result == 0);
    assert_eq!(granted.count(), 512);
    let state = machine.cards[0].state().unwrap();
    assert_eq!((state.device(), state.used()), (1024 * MIB, 1024 * MIB));
}

#[test]
fn a_kill_at_any_moment_leaves_nothing() {
    let machine = Machine::one();
    let mut survivor = machine.caller();
    survivor.ok(&format!("cuMemAllocManaged &1 {} 1", 600 * MIB));
    for round in 0..rounds(1000) {
        let mut caller = machine.caller();
        caller.ok(&format!("cuMemAllocManaged &1 {} 1", 700 * MIB));
        for _ in 0..20 {
            caller.send(&format!("cuMemPrefetchAsync $1 {} 0 0", 700 * MIB));
            caller.send(&format!("cuMemAlloc_v2 &2 {}", 200 * MIB));
            caller.send("cuMemFree_v2 $2");
        }
        // Each evicts the other's memory all the while.
        survivor.ok(&format!("cuMemPrefetchAsync $1 {} 0 0", 600 * MIB));
        for _ in 0..round % 60 {
            caller.answer();
        }
        caller.kill();
        survivor.ok(&format!("cuMemPrefetchAsync $1 {} 0 0", 600 * MIB));
        let state = machine.cards[0].state().unwrap();
        assert_eq!((state.processes.len(), state.device(), state.resident()), (1, 0, 600 * MIB), "round {round}");
    }
}

/// A twentieth of the full count, unless all of it is asked for.
fn rounds(full: u32) -> u32 {
    if std::env::var_os("OMNI_SOAK").is_some() { full } else { full / 20 }
}
