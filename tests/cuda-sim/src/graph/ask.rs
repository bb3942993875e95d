//! What graphs and nodes can be asked.

use super::add::AllocateNode;
use super::table::{Work, table};
use crate::abi::{Handle, Out, api};
use crate::error::{Answer, Error};
use crate::machine;

api! {
    fn cuGraphGetNodes(graph: Handle, nodes: Out<Handle>, count: Out<usize>) = nodes_of;
    fn cuGraphGetRootNodes(graph: Handle, nodes: Out<Handle>, count: Out<usize>) = roots_of;
    fn cuGraphNodeGetType(node: Handle, kind: Out<u32>) = kind_of;
    fn cuGraphMemAllocNodeGetParams(node: Handle, memory: Out<AllocateNode>) = allocates;
    fn cuGraphMemFreeNodeGetParams(node: Handle, address: Out<u64>) = frees;
    fn cuGraphChildGraphNodeGetGraph(node: Handle, graph: Out<Handle>) = child_of;
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
