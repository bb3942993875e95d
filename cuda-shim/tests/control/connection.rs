//! Connection to the worker: which process has one, what ends it, and that its end ends nothing else.

use crate::instance::MIB;
use crate::node::{Client, DRIVERS, Node, Shim, until};
use omni_cuda_card::Settings;
use omni_gpu_protocol::control::{Command, Report};
use std::fs;

/// Lets the client allocate and free until its shim has found the worker: it tries once a second.
fn connects_again(node: &Node, client: &mut Client) -> (Shim, Report) {
    until("the shim connects again", || {
        let address = client.ask("take 1");
        assert_eq!(client.ask(&format!("free {address}")), 0);
        node.try_accept()
    })
}

fn sockets(pid: u64) -> usize {
    let is_socket = |entry: &fs::DirEntry| {
        fs::read_link(entry.path()).is_ok_and(|target| target.to_string_lossy().starts_with("socket:"))
    };
    fs::read_dir(format!("/proc/{pid}/fd")).unwrap().filter(|entry| is_socket(entry.as_ref().unwrap())).count()
}

#[test]
fn a_lost_worker_changes_nothing_and_the_next_one_is_found() {
    let mut node = Node::new(DRIVERS[1]);
    let (mut client, _) = Client::holding(&node, &[2 * MIB, 2 * MIB]);
    let (mut shim, _) = node.accept();
    assert_eq!(shim.evict(2 * MIB).moved, 2 * MIB);
    drop(shim);
    node.end_worker();
    for _ in 0..100 {
        let address = client.ask("take 4096");
        assert_eq!(client.ask(&format!("free {address}")), 0);
    }
    assert_eq!(node.instance.used().resident, 2 * MIB, "nothing was moved");
    node.begin_worker();
    let (mut shim, hello) = connects_again(&node, &mut client);
    assert_eq!(hello.pid, client.pid());
    let report = shim.carry_out(Command::Restore);
    assert_eq!((report.moved, report.managed, report.resident), (2 * MIB, 4 * MIB, 4 * MIB));
}

#[test]
fn a_worker_that_sends_malformed_packets_is_left() {
    let node = Node::new(DRIVERS[1]);
    let (mut client, _) = Client::holding(&node, &[2 * MIB]);
    let (mut shim, _) = node.accept();
    shim.send_bytes(&[0; 24]);
    assert_eq!(shim.receive(), None);
    let (mut shim, _) = connects_again(&node, &mut client);
    assert_eq!(shim.evict(u64::MAX).moved, 2 * MIB);
}

#[test]
fn without_memory_there_is_no_connection() {
    let node = Node::new(DRIVERS[1]);
    let mut client = node.start();
    client.ask("begin");
    client.tell("exit");
    client.end();
    assert!(node.try_accept().is_none());
}

#[test]
fn a_child_has_a_connection_of_its_own() {
    let node = Node::new(DRIVERS[1]);
    let mut client = node.start();
    let child = client.ask("fork");
    client.ask("begin");
    client.ask(&format!("take {}", 2 * MIB));
    let (mut shim, hello) = node.accept();
    assert_eq!((u64::from(hello.pid), hello.pid == client.pid()), (child, false));
    assert_eq!(shim.evict(u64::MAX).moved, 2 * MIB);
}

#[test]
fn a_child_does_not_keep_the_connection_of_its_parent() {
    let node = Node::new(DRIVERS[1]);
    let mut client = node.start();
    client.ask("begin");
    let before = sockets(client.pid().into());
    client.ask(&format!("take {}", 2 * MIB));
    let (mut shim, _) = node.accept();
    assert_eq!(sockets(client.pid().into()), before + 1);
    let child = client.ask("orphan");
    assert_eq!(shim.evict(u64::MAX).moved, 2 * MIB, "the parent is as before");
    until("the child has no copy", || (sockets(child) == before).then_some(()));
    client.kill();
    assert_eq!(shim.receive(), None);
}

#[test]
fn a_descriptor_that_replaced_the_socket_is_never_written_to() {
    let node = Node::new(DRIVERS[1]);
    let (mut client, _) = Client::holding(&node, &[2 * MIB]);
    let (mut shim, _) = node.accept();
    // The thread is back at its socket, or about to be, which decides whether that socket is closed at once.
    shim.send(Command::Report);
    assert!(shim.receive().is_some());
    assert_eq!(client.ask("replace"), 1);
    shim.try_send(Command::Report);
    assert_eq!(shim.receive(), None, "it cannot be answered");
    assert_eq!(client.ask("heard"), 0);
    let (mut shim, _) = connects_again(&node, &mut client);
    assert_eq!(shim.evict(u64::MAX).moved, 2 * MIB);
    assert_eq!(client.ask("heard"), 0);
}

#[test]
fn a_program_may_end_in_the_middle_of_a_move() {
    let settings = Settings { to_host: 200 * MIB, ..Settings::numbered(0) };
    for _ in 0..5 {
        let node = Node::with(settings.clone());
        let (mut client, _) = Client::holding(&node, &[64 * MIB]);
        let (mut shim, _) = node.accept();
        shim.send(Command::Evict { bytes: u64::MAX });
        until("the move runs", || (node.instance.card().counters.prefetch_calls > 0).then_some(()));
        client.tell("exit");
        client.end();
        while shim.receive().is_some() {}
    }
}
