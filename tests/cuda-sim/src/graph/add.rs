//! Graphs and their nodes: made and destroyed.

use super::table::{Fill, Graph, Table, Work, kind, table};
use crate::abi::{self, Handle, HostFunction, In, Out, api};
use crate::arrays::Solid;
use crate::backing::Region;
use crate::error::{Answer, Error};
use crate::memory::allocation::{Allocation, Kind};
use crate::objects::{Objects, objects};
use crate::vmm::Location;

api! {
    fn cuGraphCreate(graph: Out<Handle>, flags: u32) = create;
    fn cuGraphDestroy(graph: Handle) = destroy;
    fn cuGraphClone(clone: Out<Handle>, graph: Handle) = clone;
    fn cuGraphAddEmptyNode(node: Out<Handle>, graph: Handle, after: In<Handle>, count: usize) = add_empty;
    fn cuGraphAddKernelNode(node: Out<Handle>, graph: Handle, after: In<Handle>, count: usize, kernel: In<u64>)
        = add_kernel;
    fn cuGraphAddKernelNode_v2(node: Out<Handle>, graph: Handle, after: In<Handle>, count: usize, kernel: In<u64>)
        = add_kernel;
    fn cuGraphAddEventRecordNode(node: Out<Handle>, graph: Handle, after: In<Handle>, count: usize, event: Handle)
        = add_record;
    fn cuGraphAddEventWaitNode(node: Out<Handle>, graph: Handle, after: In<Handle>, count: usize, event: Handle)
        = add_wait;
    fn cuGraphAddMemcpyNode(
        node: Out<Handle>, graph: Handle, after: In<Handle>, count: usize, copy: In<Solid>, context: Handle,
    ) = add_copy;
    fn cuGraphAddMemsetNode(
        node: Out<Handle>, graph: Handle, after: In<Handle>, count: usize, fill: In<Fill>, context: Handle,
    ) = add_set;
    fn cuGraphAddHostNode(node: Out<Handle>, graph: Handle, after: In<Handle>, count: usize, call: In<Call>) = add_host;
    fn cuGraphAddChildGraphNode(node: Out<Handle>, graph: Handle, after: In<Handle>, count: usize, child: Handle)
        = add_child;
    fn cuGraphAddMemAllocNode(
        node: Out<Handle>, graph: Handle, after: In<Handle>, count: usize, memory: Out<AllocateNode>,
    ) = add_allocate;
    fn cuGraphAddMemFreeNode(node: Out<Handle>, graph: Handle, after: In<Handle>, count: usize, address: u64)
        = add_free;
    fn cuGraphAddNode(node: Out<Handle>, graph: Handle, after: In<Handle>, count: usize, node_is: u64) = add_any;
    fn cuGraphAddNode_v2(
        node: Out<Handle>, graph: Handle, after: In<Handle>, edges: u64, count: usize, node_is: u64,
    ) = add_any_with_edges;
    fn cuGraphAddNode_v3(
        node: Out<Handle>, graph: Handle, after: In<Handle>, edges: u64, count: usize, node_is: u64,
    ) = add_any_with_edges;
    fn cuGraphAddDependencies(graph: Handle, from: In<Handle>, to: In<Handle>, count: usize) = add_edges;
    fn cuGraphAddDependencies_v2(graph: Handle, from: In<Handle>, to: In<Handle>, edges: u64, count: usize)
        = add_edges_with_data;
    fn cuGraphDestroyNode(node: Handle) = destroy_node;
}

/// `CUDA_HOST_NODE_PARAMS`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct Call {
    function: HostFunction,
    data: u64,
}

/// `CUDA_MEM_ALLOC_NODE_PARAMS`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct AllocateNode {
    kind: u32,
    handle_types: u32,
    location: Location,
    _rest: [u64; 9],
    _access: u64,
    _access_count: usize,
    pub(super) bytes: usize,
    pub(super) address: u64,
}

impl AllocateNode {
    /// Parameters as the node's own call gives them.
    pub(super) fn of(device: usize, address: u64, bytes: u64) -> Self {
        let location = Location { kind: 1, id: i32::try_from(device).unwrap_or(0) };
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        Self { kind: 1, handle_types: 0, location, _rest: [0; 9], _access: 0, _access_count: 0, bytes, address }
    }
}

const _: () = assert!(size_of::<AllocateNode>() == 120);

/// Offset of the union in `CUgraphNodeParams`, and of the copy in `CUDA_MEMCPY_NODE_PARAMS`.
const UNION: u64 = 16;
const COPY: u64 = 16;

/// Adds a node behind others.
fn add(node: Out<Handle>, graph: Handle, (after, count): (In<Handle>, usize), work: Work) -> Answer {
    let mut objects = objects()?;
    let mut table = table();
    put(&mut objects, &mut table, node, graph, (after, count), work)
}

fn put(
    objects: &mut Objects,
    table: &mut Table,
    node: Out<Handle>,
    graph: Handle,
    (after, count): (In<Handle>, usize),
    work: Work,
) -> Answer {
    node.check()?;
    let graph = table.graph(graph)?;
    let after = after.get_all(count)?;
    if after.iter().any(|before| graph.nodes.iter().all(|(node, _)| node != before)) {
        return Err(Error::INVALID_VALUE);
    }
    let handle = objects.handle();
    graph.edges.extend(after.into_iter().map(|before| (before, handle)));
    graph.nodes.push((handle, work));
    node.put(handle)
}

fn create(graph: Out<Handle>, flags: u32) -> Answer {
    graph.check()?;
    let mut objects = objects()?;
    if flags != 0 {
        return Err(Error::INVALID_VALUE);
    }
    let handle = objects.handle();
    table().graphs.insert(handle, Graph::default());
    graph.put(handle)
}

fn destroy(graph: Handle) -> Answer {
    let mut objects = objects()?;
    table().destroy(&mut objects, graph)
}

fn clone(clone: Out<Handle>, graph: Handle) -> Answer {
    clone.check()?;
    let mut objects = objects()?;
    let copy = table().copy(&mut objects, graph)?;
    clone.put(copy)
}

fn add_empty(node: Out<Handle>, graph: Handle, after: In<Handle>, count: usize) -> Answer {
    add(node, graph, (after, count), Work::Nothing(kind::EMPTY))
}

fn add_kernel(node: Out<Handle>, graph: Handle, after: In<Handle>, count: usize, kernel: In<u64>) -> Answer {
    kernel.get()?;
    add(node, graph, (after, count), Work::Nothing(kind::KERNEL))
}

fn add_record(node: Out<Handle>, graph: Handle, after: In<Handle>, count: usize, _event: Handle) -> Answer {
    add(node, graph, (after, count), Work::Nothing(kind::RECORD_EVENT))
}

fn add_wait(node: Out<Handle>, graph: Handle, after: In<Handle>, count: usize, _event: Handle) -> Answer {
    add(node, graph, (after, count), Work::Nothing(kind::WAIT_EVENT))
}

fn add_copy(
    node: Out<Handle>,
    graph: Handle,
    after: In<Handle>,
    count: usize,
    copy: In<Solid>,
    _context: Handle,
) -> Answer {
    add(node, graph, (after, count), Work::Copy(copy.get()?))
}

fn add_set(
    node: Out<Handle>,
    graph: Handle,
    after: In<Handle>,
    count: usize,
    fill: In<Fill>,
    _context: Handle,
) -> Answer {
    add(node, graph, (after, count), Work::Set(fill.get()?))
}

fn add_host(node: Out<Handle>, graph: Handle, after: In<Handle>, count: usize, call: In<Call>) -> Answer {
    let Call { function, data } = call.get()?;
    if function.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    add(node, graph, (after, count), Work::Host { function, data })
}

fn add_child(node: Out<Handle>, graph: Handle, after: In<Handle>, count: usize, child: Handle) -> Answer {
    let mut objects = objects()?;
    let mut table = table();
    node.check()?;
    table.graph(graph)?;
    let copy = table.copy(&mut objects, child)?;
    put(&mut objects, &mut table, node, graph, (after, count), Work::Child(copy))
}

fn add_allocate(
    node: Out<Handle>,
    graph: Handle,
    after: In<Handle>,
    count: usize,
    memory: Out<AllocateNode>,
) -> Answer {
    let mut wanted = memory.get()?;
    let mut objects = objects()?;
    let (context, _) = objects.current()?;
    // Pinned memory of a device, for this process only.
    let device = wanted.location.device()?.ok_or(Error::INVALID_VALUE)?;
    if wanted.kind != 1 || wanted.handle_types != 0 || wanted.bytes == 0 {
        return Err(Error::INVALID_VALUE);
    }
    let bytes = wanted.bytes as u64;
    let region = Region::new(bytes)?;
    let address = region.base();
    let work = Work::Allocate { device, address, bytes };
    put(&mut objects, &mut table(), node, graph, (after, count), work)?;
    let (base, region, kind) = (address, Some(region), Kind::Elsewhere);
    objects.allocations.add(Allocation { base, bytes, context, device, charged: 0, id: 0, region, kind });
    wanted.address = address;
    memory.put(wanted)
}

fn add_free(node: Out<Handle>, graph: Handle, after: In<Handle>, count: usize, address: u64) -> Answer {
    let mut objects = objects()?;
    let mut table = table();
    let has = |table: &Table, wanted: fn(&Work) -> Option<u64>| {
        let mut all = table.graphs.values().flat_map(|graph| &graph.nodes);
        all.any(|(_, work)| wanted(work) == Some(address))
    };
    let allocated = has(&table, |work| if let Work::Allocate { address, .. } = work { Some(*address) } else { None });
    let freed = has(&table, |work| if let Work::Free { address } = work { Some(*address) } else { None });
    if !allocated || freed {
        return Err(Error::INVALID_VALUE);
    }
    put(&mut objects, &mut table, node, graph, (after, count), Work::Free { address })
}

/// Adds a node of any kind, whose parameters are in a union.
fn add_any(node: Out<Handle>, graph: Handle, after: In<Handle>, count: usize, node_is: u64) -> Answer {
    let kind = abi::out_at::<u32>(node_is).get()?;
    let content = node_is + UNION;
    match kind {
        kind::KERNEL | kind::EMPTY | kind::WAIT_EVENT | kind::RECORD_EVENT => {
            add(node, graph, (after, count), Work::Nothing(kind))
        }
        kind::COPY => add(node, graph, (after, count), Work::Copy(abi::out_at(content + COPY).get()?)),
        kind::SET => add(node, graph, (after, count), Work::Set(abi::out_at(content).get()?)),
        kind::HOST => {
            let Call { function, data } = abi::out_at(content).get()?;
            add(node, graph, (after, count), Work::Host { function, data })
        }
        kind::CHILD => add_child(node, graph, after, count, abi::out_at(content).get()?),
        kind::ALLOCATE => add_allocate(node, graph, after, count, abi::out_at(content)),
        kind::FREE => add_free(node, graph, after, count, abi::out_at(content).get()?),
        _ => Err(Error::NOT_SUPPORTED),
    }
}

fn add_any_with_edges(
    node: Out<Handle>,
    graph: Handle,
    after: In<Handle>,
    _edges: u64,
    count: usize,
    node_is: u64,
) -> Answer {
    add_any(node, graph, after, count, node_is)
}

fn add_edges(graph: Handle, from: In<Handle>, to: In<Handle>, count: usize) -> Answer {
    let _objects = objects()?;
    let mut table = table();
    let graph = table.graph(graph)?;
    let edges: Vec<_> = from.get_all(count)?.into_iter().zip(to.get_all(count)?).collect();
    let is_node = |node: &Handle| graph.nodes.iter().any(|(known, _)| known == node);
    if edges.iter().any(|(from, to)| from == to || !is_node(from) || !is_node(to)) {
        return Err(Error::INVALID_VALUE);
    }
    graph.edges.extend(edges);
    Ok(())
}

fn add_edges_with_data(graph: Handle, from: In<Handle>, to: In<Handle>, _edges: u64, count: usize) -> Answer {
    add_edges(graph, from, to, count)
}

/// Refused in a graph with memory nodes, as documented.
fn destroy_node(node: Handle) -> Answer {
    let mut objects = objects()?;
    let mut table = table();
    let mut graphs = table.graphs.values_mut();
    let graph = graphs.find(|graph| graph.nodes.iter().any(|(known, _)| *known == node));
    let graph = graph.ok_or(Error::INVALID_VALUE)?;
    if graph.nodes.iter().any(|(_, work)| work.is_memory()) {
        return Err(Error::INVALID_VALUE);
    }
    let at = graph.nodes.iter().position(|(known, _)| *known == node).ok_or(Error::INVALID_VALUE)?;
    let (_, work) = graph.nodes.remove(at);
    graph.edges.retain(|(from, to)| *from != node && *to != node);
    if let Work::Child(child) = work { table.destroy(&mut objects, child) } else { Ok(()) }
}
