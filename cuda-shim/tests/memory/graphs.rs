//! Memory nodes: refused beyond the limit when they are added and when they are launched, and counted while they have
//! memory.

use crate::calls::*;
use crate::client::{allocate, begin, free};
use crate::entries::NODES;
use crate::instance::{DRIVERS, Instance, MIB, MODES, say, wait};
use omni_cuda_entries::ENTRIES;
use omni_gpu_protocol::account::Use;

const LIMIT: u64 = 64 * MIB;

#[test]
fn a_graph_has_its_memory_from_its_launch_until_it_is_trimmed() {
    for (driver, mode) in DRIVERS.iter().flat_map(|driver| MODES.map(|mode| (*driver, mode))) {
        let instance = Instance::new(driver, mode, LIMIT);
        let mut client = instance.start("graph");
        for entry in ENTRIES.iter().filter(|entry| NODES.contains(&entry.symbol) && entry.version <= driver) {
            client.expect(&format!("{} 0 2", entry.symbol));
        }
        client.expect("made");
        assert_eq!(instance.used(), Use::default(), "a node has no memory yet");
        client.go_on();
        client.expect("launched");
        assert_eq!(instance.used().device, instance.card().used(), "what the driver says, driver {driver}, {mode}");
        assert!(instance.used().device >= 4 * MIB);
        client.go_on();
        client.expect("no room: 2");
        client.go_on();
        client.expect("trimmed");
        assert_eq!(instance.used(), Use::default(), "driver {driver}, {mode}");
        client.go_on();
        client.end();
    }
}

fn add(symbol: &str, graph: u64, bytes: u64) -> Option<i32> {
    let (mut node, bytes) = (0, usize::try_from(bytes).unwrap());
    let out = &raw mut node;
    is_ours(symbol).then(|| match symbol {
        "cuGraphAddMemAllocNode" => cuGraphAddMemAllocNode(out, graph, 0, 0, &mut AllocNode::of(bytes)),
        "cuGraphAddNode" => cuGraphAddNode(out, graph, 0, 0, &mut Node::of(bytes)),
        "cuGraphAddNode_v2" => cuGraphAddNode_v2(out, graph, 0, 0, 0, &mut Node::of(bytes)),
        _ => cuGraphAddNode_v3(out, graph, 0, 0, 0, &mut Node::of(bytes)),
    })
}

/// Adds one memory node to a graph and launches it: the first answer that is not success.
pub(crate) fn launch_by(symbol: &str, bytes: u64) -> i32 {
    let [mut stream, mut graph, mut exec] = [0; 3];
    assert_eq!((cuStreamCreate(&raw mut stream, 0), cuGraphCreate(&raw mut graph, 0)), (0, 0));
    match add(symbol, graph, bytes).expect("one of ours") {
        0 => {}
        refused => return refused,
    }
    assert_eq!(cuGraphInstantiateWithFlags(&raw mut exec, graph, 1), 0);
    cuGraphLaunch(exec, stream)
}

pub(crate) fn client() {
    begin();
    let [mut stream, mut graph, mut exec] = [0; 3];
    let mut version = 0;
    assert_eq!(cuDriverGetVersion(&raw mut version), 0);
    assert_eq!(cuStreamCreate(&raw mut stream, 0), 0);
    for entry in
        ENTRIES.iter().filter(|entry| NODES.contains(&entry.symbol) && i64::from(entry.version) <= version.into())
    {
        assert_eq!(cuGraphCreate(&raw mut graph, 0), 0);
        let [within, beyond] = [MIB, LIMIT + 1].map(|bytes| add(entry.symbol, graph, bytes).unwrap());
        say(&format!("{} {within} {beyond}", entry.symbol));
        assert_eq!(cuGraphDestroy(graph), 0);
    }
    assert_eq!(cuGraphCreate(&raw mut graph, 0), 0);
    let (mut node, mut alloc) = (0, AllocNode::of(4 << 20));
    assert_eq!(cuGraphAddMemAllocNode(&raw mut node, graph, 0, 0, &raw mut alloc), 0);
    assert_eq!(cuGraphInstantiateWithFlags(&raw mut exec, graph, 1), 0);
    assert_eq!(cuGraphDestroy(graph), 0);
    say("made");
    wait();
    assert_eq!(cuGraphLaunch(exec, stream), 0);
    assert_eq!(cuStreamSynchronize(stream), 0);
    say("launched");
    wait();
    // Memory that a graph allocates and does not free outlives it.
    assert_eq!((cuMemFreeAsync(alloc.address, stream), cuStreamSynchronize(stream)), (0, 0));
    assert_eq!((cuGraphExecDestroy(exec), cuDeviceGraphMemTrim(0)), (0, 0));
    no_room(stream);
    wait();
    assert_eq!(cuDeviceGraphMemTrim(0), 0);
    say("trimmed");
    wait();
}

/// Launches a graph that was made when there was room, when there is none.
fn no_room(stream: u64) {
    let [mut graph, mut exec] = [0; 2];
    assert_eq!(cuGraphCreate(&raw mut graph, 0), 0);
    assert_eq!(add("cuGraphAddMemAllocNode", graph, 4 * MIB), Some(0));
    assert_eq!(cuGraphInstantiateWithFlags(&raw mut exec, graph, 1), 0);
    let filler = allocate(LIMIT - MIB).unwrap();
    say(&format!("no room: {}", cuGraphLaunch(exec, stream)));
    free(filler);
    assert_eq!((cuGraphExecDestroy(exec), cuGraphDestroy(graph)), (0, 0));
}

#[test]
fn nothing_is_converted_during_a_capture() {
    for driver in DRIVERS {
        let instance = Instance::new(driver, "unified", LIMIT);
        let mut client = instance.start("capture");
        client.expect("a node");
        assert_eq!(instance.used(), Use::default(), "a node has no memory yet");
        client.go_on();
        client.expect("beyond the limit: 2");
        client.expect("captured: 2 nodes");
        client.end();
    }
}

pub(crate) fn capture() {
    begin();
    let [mut stream, mut graph, mut address, mut other] = [0; 4];
    let mut nodes = 0;
    assert_eq!(cuStreamCreate(&raw mut stream, 0), 0);
    assert_eq!(cuStreamBeginCapture_v2(stream, 0), 0);
    assert_eq!(cuMemAllocAsync(&raw mut address, 4 << 20, stream), 0);
    say("a node");
    wait();
    let beyond = usize::try_from(LIMIT).unwrap() + 1;
    say(&format!("beyond the limit: {}", cuMemAllocAsync(&raw mut other, beyond, stream)));
    assert_eq!(cuMemFreeAsync(address, stream), 0);
    assert_eq!(cuStreamEndCapture(stream, &raw mut graph), 0);
    assert_eq!(cuGraphGetNodes(graph, std::ptr::null_mut(), &raw mut nodes), 0);
    say(&format!("captured: {nodes} nodes"));
}
