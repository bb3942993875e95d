//! Memory nodes of graphs: device memory that a graph takes when it is launched, and that graphs of a device share.
//!
//! How much they have is what the driver says (`RESERVED_MEM_CURRENT` of a device's graph memory), asked for after
//! everything that can change it. A node is refused that does not fit the limit now, and a launch whose nodes might make
//! the device's graph memory grow beyond it. A process without memory nodes pays one load from memory for a launch.

use super::driver::{
    Handle, ask, cuDeviceGetGraphMemAttribute, cuGraphChildGraphNodeGetGraph, cuGraphGetNodes,
    cuGraphMemAllocNodeGetParams, cuGraphNodeGetType, device,
};
use super::entry::{CUresult, Out, SUCCESS, hooks};
use super::ledger::{refusal, size};
use super::{deferred, driver};
use crate::account;
use crate::process::PerProcess;
use crate::ranges::Kind;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// `CUDA_MEM_ALLOC_NODE_PARAMS`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct AllocNode {
    pool: [u64; 11],
    access: u64,
    access_count: usize,
    bytes: usize,
    address: u64,
}

/// The beginning of `CUgraphNodeParams`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Node {
    kind: i32,
    reserved: [i32; 3],
    alloc: AllocNode,
}

const CHILD_GRAPH: i32 = 4;
const ALLOC: i32 = 10;
const USED_MEM_CURRENT: i32 = 0;
const RESERVED_MEM_CURRENT: i32 = 2;
/// Graph memory is taken in pieces of this size at least.
const STEP: u64 = 2 << 20;
/// Graphs within graphs are followed this far.
const DEPTH: u32 = 16;

hooks! {
    fn cuGraphAddMemAllocNode(node: Out<Handle>, graph: Handle, after: u64, count: usize, parameters: Out<AllocNode>) |real| {
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
    fn cuGraphLaunch(exec: Handle, stream: Handle) |real| launched(exec, || real(exec, stream));
    fn cuGraphLaunch_ptsz(exec: Handle, stream: Handle) |real| launched(exec, || real(exec, stream));
    fn cuGraphUpload(exec: Handle, stream: Handle) |real| launched(exec, || real(exec, stream));
    fn cuGraphUpload_ptsz(exec: Handle, stream: Handle) |real| launched(exec, || real(exec, stream));
    fn cuGraphExecDestroy(exec: Handle) |real| {
        if !IS_USED.load(Ordering::Acquire) {
            return real(exec);
        }
        // Forgotten first: what is instantiated meanwhile may get this handle.
        let bytes = lock().execs.remove(&exec);
        let result = real(exec);
        if let (true, Some(bytes)) = (result != SUCCESS, bytes) {
            lock().execs.insert(exec, bytes);
        }
        settled(result)
    };
    fn cuGraphDestroy(graph: Handle) |real| settled(real(graph));
    fn cuGraphDestroyNode(node: Handle) |real| settled(real(node));
    fn cuDeviceGraphMemTrim(device: i32) |real| settled(real(device));
}

#[derive(Default)]
struct Graphs {
    /// What the nodes of an executable graph allocate.
    execs: BTreeMap<Handle, u64>,
    /// Device to what the account says of its graph memory.
    charged: BTreeMap<i32, u64>,
}

static GRAPHS: PerProcess<Mutex<Graphs>> = PerProcess::new();
/// Whether there was a memory node ever.
static IS_USED: AtomicBool = AtomicBool::new(false);

fn lock() -> MutexGuard<'static, Graphs> {
    GRAPHS.get(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

fn asked_for(parameters: Out<Node>) -> usize {
    parameters.get().filter(|node| node.kind == ALLOC).map_or(0, |node| node.alloc.bytes)
}

/// An allocation in a stream that is being captured.
pub(super) fn captured(bytes: usize, call: impl FnOnce() -> CUresult) -> CUresult {
    added(bytes, call)
}

/// A node has no memory yet; one that could not have it now is refused.
fn added(bytes: usize, call: impl FnOnce() -> CUresult) -> CUresult {
    if bytes == 0 {
        return call();
    }
    IS_USED.store(true, Ordering::Release);
    if super::ledger::reserve(Kind::Device, size(bytes)).is_err() {
        return refusal();
    }
    let result = call();
    account::give_back(Kind::Device, size(bytes));
    result
}

fn instantiated(exec: Out<Handle>, graph: Handle, result: CUresult) -> CUresult {
    if let (SUCCESS, Some(exec), true) = (result, exec.get(), IS_USED.load(Ordering::Acquire)) {
        let bytes = allocated_by(graph, DEPTH);
        if bytes > 0 {
            lock().execs.insert(exec, bytes);
        }
    }
    result
}

/// What the memory nodes of a graph allocate, and those of its child graphs.
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
            .map_or(0, |alloc: AllocNode| size(alloc.bytes).checked_next_multiple_of(STEP).unwrap_or(u64::MAX)),
        Ok(CHILD_GRAPH) => {
            ask(|child| cuGraphChildGraphNodeGetGraph(*node, child)).map_or(0, |child| allocated_by(child, depth - 1))
        }
        _ => 0,
    };
    nodes.iter().map(of_node).fold(0, u64::saturating_add)
}

fn launched(exec: Handle, call: impl FnOnce() -> CUresult) -> CUresult {
    if !IS_USED.load(Ordering::Acquire) {
        return call();
    }
    let mut graphs = lock();
    let (Some(bytes), Ok(device)) = (graphs.execs.get(&exec).copied(), device()) else {
        drop(graphs);
        return call();
    };
    if !graphs.reserve_growth(device, bytes) {
        return refusal();
    }
    let result = call();
    graphs.settle(device);
    result
}

fn settled(result: CUresult) -> CUresult {
    settle();
    result
}

/// Follows what the driver has given back to the device meanwhile.
pub(super) fn settle() {
    if IS_USED.load(Ordering::Acquire) {
        lock().settle_all();
    }
}

/// Gives back to the device what no graph uses now.
pub(super) fn trim() {
    if IS_USED.load(Ordering::Acquire) {
        lock().trim();
    }
}

impl Graphs {
    fn settle(&mut self, device: i32) {
        let Ok(taken) = ask(|value| cuDeviceGetGraphMemAttribute(device, RESERVED_MEM_CURRENT, value)) else { return };
        let charged = self.charged.entry(device).or_default();
        match taken.checked_sub(*charged) {
            Some(0) => {}
            Some(more) => {
                if account::charge(Kind::Device, more).is_err() {
                    return;
                }
            }
            None => account::give_back(Kind::Device, *charged - taken),
        }
        *charged = taken;
    }

    fn settle_all(&mut self) {
        let devices: Vec<i32> = self.charged.keys().copied().collect();
        devices.into_iter().for_each(|device| self.settle(device));
    }

    fn trim(&mut self) {
        self.charged.keys().for_each(|device| {
            driver::cuDeviceGraphMemTrim(*device);
        });
        self.settle_all();
    }

    /// Reserves what a launch may make the device's graph memory grow by; the account has it as the device's.
    fn reserve_growth(&mut self, device: i32, bytes: u64) -> bool {
        self.settle(device);
        self.reserve(device, bytes) || {
            deferred::wait_for_all();
            self.trim();
            self.reserve(device, bytes)
        }
    }

    fn reserve(&mut self, device: i32, bytes: u64) -> bool {
        let used = ask(|value| cuDeviceGetGraphMemAttribute(device, USED_MEM_CURRENT, value)).unwrap_or(0);
        let charged = self.charged.entry(device).or_default();
        let growth = used.saturating_add(bytes).saturating_sub(*charged);
        let is_reserved = account::reserve(Kind::Device, growth, 0).is_ok();
        if is_reserved {
            *charged += growth;
        }
        is_reserved
    }
}
