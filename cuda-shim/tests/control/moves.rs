//! Moved memory: exactly as much as commanded, by the card's own counters, with every form of the driver's prefetch.

use crate::instance::MIB;
use crate::node::{Client, DRIVERS, Node};
use omni_cuda_card::{Counters, Direction, Faults, Prefetch};
use omni_gpu_protocol::control::Command;

const ALL: u64 = u64::MAX;

fn counters(node: &Node) -> Counters {
    node.instance.card().counters
}

#[test]
fn all_memory_is_evicted_and_restored() {
    for driver in DRIVERS {
        let node = Node::new(driver);
        let sizes = [4 * MIB, MIB + 1, 64 * MIB + 4096, MIB + 700];
        let whole: u64 = sizes.iter().sum();
        let (client, _) = Client::holding(&node, &sizes);
        let (mut shim, hello) = node.accept();
        assert_eq!(hello.pid, client.pid());
        let report = shim.carry_out(Command::Report);
        assert_eq!((report.moved, report.managed, report.resident, report.device), (0, whole, whole, 0));
        let before = counters(&node);
        let report = shim.evict(ALL);
        assert_eq!((report.error, report.moved, report.managed, report.resident), (0, whole, whole, 0), "{driver}");
        assert_eq!(node.instance.card().resident(), 0);
        assert_eq!((node.instance.used().managed, node.instance.used().resident), (whole, 0));
        assert!(report.nanos > 0);
        assert_eq!(shim.evict(ALL).moved, 0, "there is no more");
        let report = shim.carry_out(Command::Restore);
        assert_eq!((report.error, report.moved, report.resident), (0, whole, whole), "{driver}");
        assert_eq!(shim.carry_out(Command::Restore).moved, 0);
        let after = counters(&node);
        let calls = after.prefetch_calls - before.prefetch_calls;
        assert!(calls >= 2 && calls <= if driver < 13_000 { 8 } else { 2 }, "{driver}: {calls} calls");
        assert_eq!((after.fault_to_device, after.evicted), (before.fault_to_device, before.evicted));
        // The card counts pages.
        let moved = (after.prefetch_to_host - before.prefetch_to_host, after.prefetch_to_device);
        assert_eq!(moved.0, node.instance.card().resident(), "{driver}");
        assert_eq!(moved.0, moved.1, "{driver}");
        assert!(moved.0 >= whole && moved.0 < whole + 4 * 4096, "{driver}: {}", moved.0);
    }
}

#[test]
fn a_part_is_the_youngest_memory_in_blocks_of_2_mib() {
    for driver in DRIVERS {
        let node = Node::new(driver);
        let (_client, addresses) = Client::holding(&node, &[8 * MIB, 6 * MIB, 4 * MIB]);
        let (mut shim, _) = node.accept();
        let mut resident = 18 * MIB;
        for (asked, moved) in [(1, 2), (3 * MIB, 4), (2 * MIB, 2), (5 * MIB + 1, 6), (0, 0), (ALL, 4)] {
            let before = counters(&node).prefetch_to_host;
            let report = shim.evict(asked);
            resident -= moved * MIB;
            assert_eq!((report.moved, report.resident), (moved * MIB, resident), "{driver}: {asked}");
            assert_eq!(counters(&node).prefetch_to_host - before, moved * MIB);
            assert_eq!(node.instance.card().resident(), resident);
        }
        let moves = node.instance.card().moves;
        let out: Vec<u64> =
            moves.iter().filter(|one| one.direction == Direction::ToHost).map(|one| one.address).collect();
        assert_eq!(out.first(), Some(&(addresses[2] + 2 * MIB)), "the end of the youngest");
        assert_eq!(out.last(), Some(&addresses[0]), "the beginning of the oldest");
        assert_eq!(shim.carry_out(Command::Restore).moved, 18 * MIB);
    }
}

#[test]
fn freed_ranges_are_not_moved_and_new_ones_are() {
    let node = Node::new(DRIVERS[2]);
    let (mut client, addresses) = Client::holding(&node, &[2 * MIB, 2 * MIB]);
    let (mut shim, _) = node.accept();
    shim.evict(ALL);
    assert_eq!(client.ask(&format!("free {}", addresses[0])), 0);
    client.ask(&format!("take {}", 4 * MIB));
    let report = shim.carry_out(Command::Report);
    assert_eq!((report.managed, report.resident), (6 * MIB, 4 * MIB));
    assert_eq!(shim.carry_out(Command::Restore).moved, 2 * MIB);
    assert_eq!(node.instance.card().resident(), 6 * MIB);
}

#[test]
fn errors_are_reported_and_nothing_counts_as_moved() {
    for driver in DRIVERS {
        let node = Node::new(driver);
        let (mut client, _) = Client::holding(&node, &[2 * MIB, 2 * MIB]);
        let (mut shim, _) = node.accept();
        node.instance.card.set_faults(&Faults { prefetch: Prefetch::Fails(304), ..Faults::default() }).unwrap();
        let report = shim.evict(ALL);
        assert_eq!((report.error, report.moved, report.resident), (304, 0, 4 * MIB), "{driver}");
        node.instance.card.set_faults(&Faults { lost: 700, ..Faults::default() }).unwrap();
        let report = shim.evict(ALL);
        assert_eq!((report.error, report.moved, report.resident), (700, 0, 4 * MIB), "{driver}");
        node.instance.card.set_faults(&Faults::default()).unwrap();
        assert_eq!((shim.evict(ALL).moved, client.ask("take 1") > 0), (4 * MIB, true), "{driver}: it lives");
        // After a failed restore the model runs on, and may have everything on the device.
        node.instance.card.set_faults(&Faults { prefetch: Prefetch::Fails(304), ..Faults::default() }).unwrap();
        let report = shim.carry_out(Command::Restore);
        assert_eq!((report.error, report.moved, report.resident), (304, 0, report.managed), "{driver}");
        node.instance.card.set_faults(&Faults::default()).unwrap();
        assert_eq!(shim.evict(ALL).resident, 0, "{driver}");
    }
}

#[test]
fn every_context_is_moved_and_a_destroyed_one_is_not() {
    let node = Node::new(DRIVERS[2]);
    let (mut client, _) = Client::holding(&node, &[2 * MIB]);
    let (mut shim, _) = node.accept();
    let second = client.ask("begin");
    client.ask(&format!("take {}", 4 * MIB));
    assert_eq!(shim.evict(ALL).moved, 6 * MIB);
    assert_eq!(shim.carry_out(Command::Restore).moved, 6 * MIB);
    assert_eq!(client.ask(&format!("destroy {second}")), 0);
    let report = shim.evict(ALL);
    assert_eq!((report.error, report.moved, report.managed), (0, 2 * MIB, 2 * MIB));
}

#[test]
fn a_capture_elsewhere_in_the_process_is_not_spoiled() {
    for driver in DRIVERS {
        let node = Node::new(driver);
        let (mut client, _) = Client::holding(&node, &[2 * MIB]);
        let (mut shim, _) = node.accept();
        assert_eq!(client.ask("capture"), 0);
        assert_eq!(shim.evict(ALL).error, 0, "{driver}");
        assert_eq!(shim.carry_out(Command::Restore).error, 0, "{driver}");
        assert_eq!(client.ask("captured"), 0, "{driver}");
    }
}
