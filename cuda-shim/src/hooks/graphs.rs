//! Memory nodes of graphs: device memory that a graph takes when it is launched.
//!
//! A node that does not fit the limit now is refused, and so is a launch whose nodes might make the device's graph
//! memory grow beyond it ([`graph_memory`]). A process without memory nodes pays one load from memory for a launch.

use super::entry::hooks;
use super::graph_memory::{self, launch};
use super::ledger::{refusal, size};
use super::reclaim::reserve;
use crate::abi::{AllocNodeParams, CUresult, Handle, Out, SUCCESS};
use crate::account;
use crate::driver::{
    ask, cuGraphChildGraphNodeGetGraph, cuGraphGetNodes, cuGraphMemAllocNodeGetParams, cuGraphNodeGetType,
};
use crate::ranges::Kind;

/// The beginning of `CUgraphNodeParams`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Node {
    kind: i32,
    reserved: [i32; 3],
    alloc: AllocNodeParams,
}

const CHILD_GRAPH: i32 = 4;
const ALLOC: i32 = 10;
/// Smallest unit in which graph memory is taken.
const STEP: u64 = 2 << 20;
/// Deepest nesting of child graphs that is followed.
const DEPTH: u32 = 16;

hooks! {
    fn cuGraphAddMemAllocNode(node: Out<Handle>, graph: Handle, after: u64, count: usize, parameters: Out<AllocNodeParams>) |real| {
        let bytes = parameters.get().map_or(0, |alloc| alloc.bytes);
        added(bytes, || real(node, graph, after, count, parameters))
    };
    fn cuGraphAddNode(node: Out<Handle>, graph: Handle, after: u64, count: usize, parameters: Out<Node>) |real| {
        added(asked_for(parameters), || real(node, graph, after, count, parameters))
    };
    fn cuGraphAddNode_v2(node: Out<Handle>, graph: Handle, after: u64, edges: u64, count: usize, parameters: Out<Node>) |real| {
        added(asked_for(parameters), || real(node, graph, after, edges, count, parameters))
    };
    fn cuGraphAddNode_v3(node: Out<Handle>, graph: Handle, after: u64, edges: u64, count: usize, parameters: Out<Node>) |real| {
        added(asked_for(parameters), || real(node, graph, after, edges, count, parameters))
    };
    fn cuGraphInstantiate(exec: Out<Handle>, graph: Handle, error: u64, log: u64, log_bytes: usize) |real| {
        instantiated(exec, graph, real(exec, graph, error, log, log_bytes))
    };
    fn cuGraphInstantiate_v2(exec: Out<Handle>, graph: Handle, error: u64, log: u64, log_bytes: usize) |real| {
        instantiated(exec, graph, real(exec, graph, error, log, log_bytes))
    };
    fn cuGraphInstantiateWithFlags(exec: Out<Handle>, graph: Handle, flags: u64) |real| {
        instantiated(exec, graph, real(exec, graph, flags))
    };
    fn cuGraphInstantiateWithParams(exec: Out<Handle>, graph: Handle, parameters: u64) |real| {
        instantiated(exec, graph, real(exec, graph, parameters))
    };
    fn cuGraphInstantiateWithParams_ptsz(exec: Out<Handle>, graph: Handle, parameters: u64) |real| {
        instantiated(exec, graph, real(exec, graph, parameters))
    };
    fn cuGraphLaunch(exec: Handle, stream: Handle) |real| launch(exec, || real(exec, stream));
    fn cuGraphLaunch_ptsz(exec: Handle, stream: Handle) |real| launch(exec, || real(exec, stream));
    fn cuGraphUpload(exec: Handle, stream: Handle) |real| launch(exec, || real(exec, stream));
    fn cuGraphUpload_ptsz(exec: Handle, stream: Handle) |real| launch(exec, || real(exec, stream));
    fn cuGraphExecDestroy(exec: Handle) |real| {
        if !graph_memory::is_used() {
            return real(exec);
        }
        settled(graph_memory::destroy(exec, || real(exec)))
    };
    fn cuGraphDestroy(graph: Handle) |real| settled(real(graph));
    fn cuGraphDestroyNode(node: Handle) |real| settled(real(node));
    fn cuDeviceGraphMemTrim(device: i32) |real| settled(real(device));
}

fn asked_for(parameters: Out<Node>) -> usize {
    parameters.get().filter(|node| node.kind == ALLOC).map_or(0, |node| node.alloc.bytes)
}

/// Counts an allocation in a stream that is being captured.
pub(super) fn captured(bytes: usize, call: impl FnOnce() -> CUresult) -> CUresult {
    added(bytes, call)
}

/// Refuses a memory node that would not fit now; it has no memory yet, so nothing stays counted.
fn added(bytes: usize, call: impl FnOnce() -> CUresult) -> CUresult {
    if bytes == 0 {
        return call();
    }
    graph_memory::set_used();
    if reserve(Kind::Device, size(bytes)).is_err() {
        return refusal();
    }
    let result = call();
    account::give_back(Kind::Device, size(bytes));
    result
}

fn instantiated(exec: Out<Handle>, graph: Handle, result: CUresult) -> CUresult {
    if let (SUCCESS, Some(exec), true) = (result, exec.get(), graph_memory::is_used()) {
        graph_memory::insert(exec, allocated_by(graph, DEPTH));
    }
    result
}

/// Bytes that the memory nodes of a graph and of its child graphs allocate.
fn allocated_by(graph: Handle, depth: u32) -> u64 {
    let mut count = 0;
    if depth == 0 || cuGraphGetNodes(graph, Out::null(), Out::of(&mut count)) != SUCCESS {
        return 0;
    }
    let mut nodes = vec![0; count];
    if nodes.is_empty() || cuGraphGetNodes(graph, Out::array(&mut nodes), Out::of(&mut count)) != SUCCESS {
        return 0;
    }
    let of_node = |node: &Handle| match ask(|kind| cuGraphNodeGetType(*node, kind)) {
        Ok(ALLOC) => ask(|alloc| cuGraphMemAllocNodeGetParams(*node, alloc))
            .map_or(0, |alloc: AllocNodeParams| size(alloc.bytes).checked_next_multiple_of(STEP).unwrap_or(u64::MAX)),
        Ok(CHILD_GRAPH) => {
            ask(|child| cuGraphChildGraphNodeGetGraph(*node, child)).map_or(0, |child| allocated_by(child, depth - 1))
        }
        _ => 0,
    };
    nodes.iter().map(of_node).fold(0, u64::saturating_add)
}

fn settled(result: CUresult) -> CUresult {
    graph_memory::settle();
    result
}
