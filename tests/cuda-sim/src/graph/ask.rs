//! Queries of graphs and nodes.

use super::add::AllocateNode;
use super::table::{Fill, Work, table};
use crate::abi::{Handle, HostFunction, Out, api};
use crate::arrays::Solid;
use crate::error::{Answer, Error};
use crate::machine;

api! {
    fn cuGraphGetNodes(graph: Handle, nodes: Out<Handle>, count: Out<usize>) = nodes_of;
    fn cuGraphGetRootNodes(graph: Handle, nodes: Out<Handle>, count: Out<usize>) = roots_of;
    fn cuGraphGetEdges(graph: Handle, from: Out<Handle>, to: Out<Handle>, count: Out<usize>) = edges_of;
    fn cuGraphGetEdges_v2(graph: Handle, from: Out<Handle>, to: Out<Handle>, data: Out<EdgeData>, count: Out<usize>)
        = edges_with_data;
    fn cuGraphNodeGetDependencies(node: Handle, before: Out<Handle>, count: Out<usize>) = before;
    fn cuGraphNodeGetDependencies_v2(node: Handle, before: Out<Handle>, data: Out<EdgeData>, count: Out<usize>)
        = before_with_data;
    fn cuGraphNodeGetDependentNodes(node: Handle, after: Out<Handle>, count: Out<usize>) = after;
    fn cuGraphNodeGetDependentNodes_v2(node: Handle, after: Out<Handle>, data: Out<EdgeData>, count: Out<usize>)
        = after_with_data;
    fn cuGraphHostNodeGetParams(node: Handle, host: Out<HostNode>) = host_of;
    fn cuGraphMemsetNodeGetParams(node: Handle, fill: Out<Fill>) = fill_of;
    fn cuGraphMemcpyNodeGetParams(node: Handle, copy: Out<Solid>) = copy_of;
    fn cuGraphNodeGetType(node: Handle, kind: Out<u32>) = kind_of;
    fn cuGraphMemAllocNodeGetParams(node: Handle, memory: Out<AllocateNode>) = allocates;
    fn cuGraphMemFreeNodeGetParams(node: Handle, address: Out<u64>) = frees;
    fn cuGraphChildGraphNodeGetGraph(node: Handle, graph: Out<Handle>) = child_of;
}

/// `CUgraphEdgeData`: no edge here has any.
pub(super) type EdgeData = u64;

/// `CUDA_HOST_NODE_PARAMS`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct HostNode {
    function: HostFunction,
    data: u64,
}

/// Without a place for them, how many there are; with one, as many as there is room for, and null for the rest of it.
fn list(found: &[Handle], nodes: Out<Handle>, count: Out<usize>) -> Answer {
    let room = count.get()?;
    if nodes.check().is_err() {
        return count.put(found.len());
    }
    let mut filled: Vec<Handle> = found.iter().copied().take(room).collect();
    count.put(filled.len())?;
    // The caller has this much room; more than there can be nodes is no number of theirs.
    filled.resize(room.min(1 << 20), 0);
    nodes.put_all(&filled)
}

fn nodes_of(graph: Handle, nodes: Out<Handle>, count: Out<usize>) -> Answer {
    machine::all()?;
    let all: Vec<Handle> = table().graph(graph)?.nodes.iter().map(|(node, _)| *node).collect();
    list(&all, nodes, count)
}

fn roots_of(graph: Handle, nodes: Out<Handle>, count: Out<usize>) -> Answer {
    machine::all()?;
    let mut table = table();
    let graph = table.graph(graph)?;
    let is_root = |node: &Handle| graph.edges.iter().all(|(_, to)| to != node);
    let roots: Vec<Handle> = graph.nodes.iter().map(|(node, _)| *node).filter(is_root).collect();
    list(&roots, nodes, count)
}

/// Edges are listed twice, once for each end, in the same order.
fn edges_of(graph: Handle, from: Out<Handle>, to: Out<Handle>, count: Out<usize>) -> Answer {
    machine::all()?;
    let edges = table().graph(graph)?.edges.clone();
    let (begins, ends): (Vec<Handle>, Vec<Handle>) = edges.into_iter().unzip();
    if from.check().is_err() != to.check().is_err() {
        return Err(Error::INVALID_VALUE);
    }
    let room = count.get()?;
    list(&begins, from, count)?;
    if to.check().is_err() {
        return Ok(());
    }
    count.put(room)?;
    list(&ends, to, count)
}

fn edges_with_data(
    graph: Handle,
    from: Out<Handle>,
    to: Out<Handle>,
    data: Out<EdgeData>,
    count: Out<usize>,
) -> Answer {
    without_data(data, count)?;
    edges_of(graph, from, to, count)
}

/// The nodes at the other ends of a node's edges.
fn around(node: Handle, is_wanted: impl Fn(&(Handle, Handle)) -> Option<Handle>) -> Result<Vec<Handle>, Error> {
    machine::all()?;
    let table = table();
    table.work(node)?;
    let of_node = table.graphs.values().find(|graph| graph.nodes.iter().any(|(known, _)| *known == node));
    Ok(of_node.map_or_else(Vec::new, |graph| graph.edges.iter().filter_map(is_wanted).collect()))
}

fn before(node: Handle, before: Out<Handle>, count: Out<usize>) -> Answer {
    list(&around(node, |(from, to)| (*to == node).then_some(*from))?, before, count)
}

fn before_with_data(node: Handle, nodes: Out<Handle>, data: Out<EdgeData>, count: Out<usize>) -> Answer {
    without_data(data, count)?;
    before(node, nodes, count)
}

fn after(node: Handle, after: Out<Handle>, count: Out<usize>) -> Answer {
    list(&around(node, |(from, to)| (*from == node).then_some(*to))?, after, count)
}

fn after_with_data(node: Handle, nodes: Out<Handle>, data: Out<EdgeData>, count: Out<usize>) -> Answer {
    without_data(data, count)?;
    after(node, nodes, count)
}

/// Zeros for as many edges as the caller has room for.
fn without_data(data: Out<EdgeData>, count: Out<usize>) -> Answer {
    if data.check().is_err() {
        return Ok(());
    }
    data.put_all(&vec![0; count.get()?.min(1 << 20)])
}

fn host_of(node: Handle, host: Out<HostNode>) -> Answer {
    machine::all()?;
    let Work::Host { function, data } = table().work(node)? else { return Err(Error::INVALID_VALUE) };
    host.put(HostNode { function, data })
}

fn fill_of(node: Handle, fill: Out<Fill>) -> Answer {
    machine::all()?;
    let Work::Set(found) = table().work(node)? else { return Err(Error::INVALID_VALUE) };
    fill.put(found)
}

fn copy_of(node: Handle, copy: Out<Solid>) -> Answer {
    machine::all()?;
    let Work::Copy(found) = table().work(node)? else { return Err(Error::INVALID_VALUE) };
    copy.put(found)
}

fn kind_of(node: Handle, kind: Out<u32>) -> Answer {
    machine::all()?;
    kind.put(table().work(node)?.kind())
}

fn allocates(node: Handle, memory: Out<AllocateNode>) -> Answer {
    machine::all()?;
    let Work::Allocate { device, address, bytes } = table().work(node)? else { return Err(Error::INVALID_VALUE) };
    memory.put(AllocateNode::of(device, address, bytes))
}

fn frees(node: Handle, address: Out<u64>) -> Answer {
    machine::all()?;
    let Work::Free { address: found } = table().work(node)? else { return Err(Error::INVALID_VALUE) };
    address.put(found)
}

fn child_of(node: Handle, graph: Out<Handle>) -> Answer {
    machine::all()?;
    let Work::Child(found) = table().work(node)? else { return Err(Error::INVALID_VALUE) };
    graph.put(found)
}
