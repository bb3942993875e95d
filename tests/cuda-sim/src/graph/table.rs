//! The graphs of this process, and those that can be launched. One lock, taken after that of [`crate::objects`].

use super::memory::GraphMemory;
use crate::abi::{Handle, HostFunction};
use crate::arrays::Solid;
use crate::capture::MemoryNode;
use crate::error::{Answer, Error};
use crate::objects::Objects;
use std::collections::{BTreeMap, HashMap};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

/// See the file's header.
#[derive(Debug, Default)]
pub(super) struct Table {
    pub(super) graphs: HashMap<Handle, Graph>,
    pub(super) execs: HashMap<Handle, Exec>,
    /// Graph memory by device.
    pub(super) memory: BTreeMap<usize, GraphMemory>,
}

/// A graph as the program builds it.
#[derive(Debug, Default, Clone)]
pub(super) struct Graph {
    /// Nodes in the order in which they were added.
    pub(super) nodes: Vec<(Handle, Work)>,
    /// Edges: from, to.
    pub(super) edges: Vec<(Handle, Handle)>,
}

/// A graph that can be launched.
#[derive(Debug)]
pub(super) struct Exec {
    pub(super) work: Vec<Work>,
    pub(super) flags: u64,
    pub(super) graph: Handle,
}

/// Work of a node.
#[derive(Debug, Clone, Copy)]
pub(super) enum Work {
    /// A kernel, an event, nothing: by its `CUgraphNodeType`.
    Nothing(u32),
    Copy(Solid),
    Set(Fill),
    Host {
        function: HostFunction,
        data: u64,
    },
    Child(Handle),
    Allocate {
        device: usize,
        address: u64,
        bytes: u64,
    },
    Free {
        address: u64,
    },
}

/// `CUDA_MEMSET_NODE_PARAMS`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct Fill {
    pub(super) to: u64,
    pub(super) pitch: usize,
    pub(super) value: u32,
    pub(super) element: u32,
    pub(super) width: usize,
    pub(super) height: usize,
}

const _: () = assert!(size_of::<Fill>() == 40);

/// `CUgraphNodeType`.
pub(super) mod kind {
    pub(in crate::graph) const KERNEL: u32 = 0;
    pub(in crate::graph) const COPY: u32 = 1;
    pub(in crate::graph) const SET: u32 = 2;
    pub(in crate::graph) const HOST: u32 = 3;
    pub(in crate::graph) const CHILD: u32 = 4;
    pub(in crate::graph) const EMPTY: u32 = 5;
    pub(in crate::graph) const WAIT_EVENT: u32 = 6;
    pub(in crate::graph) const RECORD_EVENT: u32 = 7;
    pub(in crate::graph) const ALLOCATE: u32 = 10;
    pub(in crate::graph) const FREE: u32 = 11;
}

impl Work {
    pub(super) fn kind(&self) -> u32 {
        match self {
            Self::Nothing(kind) => *kind,
            Self::Copy(_) => kind::COPY,
            Self::Set(_) => kind::SET,
            Self::Host { .. } => kind::HOST,
            Self::Child(_) => kind::CHILD,
            Self::Allocate { .. } => kind::ALLOCATE,
            Self::Free { .. } => kind::FREE,
        }
    }

    pub(super) fn is_memory(&self) -> bool {
        matches!(self, Self::Allocate { .. } | Self::Free { .. })
    }
}

static TABLE: LazyLock<Mutex<Table>> = LazyLock::new(Mutex::default);

pub(super) fn table() -> MutexGuard<'static, Table> {
    TABLE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The graph that a captured stream has recorded: its memory nodes, one after the other.
pub(crate) fn captured(objects: &mut Objects, graph: Handle) {
    let nodes = objects.captured.remove(&graph).unwrap_or_default();
    let mut made = Graph::default();
    for node in nodes {
        let work = match node {
            MemoryNode::Allocate { device, address, bytes } => Work::Allocate { device, address, bytes },
            MemoryNode::Free { address } => Work::Free { address },
        };
        let handle = objects.handle();
        if let Some((before, _)) = made.nodes.last() {
            made.edges.push((*before, handle));
        }
        made.nodes.push((handle, work));
    }
    table().graphs.insert(graph, made);
}

impl Table {
    pub(super) fn graph(&mut self, graph: Handle) -> Result<&mut Graph, Error> {
        self.graphs.get_mut(&graph).ok_or(Error::INVALID_VALUE)
    }

    /// Work of a node.
    pub(super) fn work(&self, node: Handle) -> Result<Work, Error> {
        let mut all = self.graphs.values().flat_map(|graph| &graph.nodes);
        all.find(|(handle, _)| *handle == node).map(|(_, work)| *work).ok_or(Error::INVALID_VALUE)
    }

    /// A copy of a graph's nodes and edges under new handles.
    ///
    /// # Errors
    /// No such graph, or one with memory nodes, which cannot be copied.
    pub(super) fn copy(&mut self, objects: &mut Objects, graph: Handle) -> Result<Handle, Error> {
        let Graph { nodes, edges } = self.graph(graph)?.clone();
        if nodes.iter().any(|(_, work)| work.is_memory()) {
            return Err(Error::INVALID_VALUE);
        }
        let new: HashMap<Handle, Handle> = nodes.iter().map(|(node, _)| (*node, objects.handle())).collect();
        let nodes = nodes.into_iter().filter_map(|(node, work)| Some((*new.get(&node)?, work))).collect();
        let edges = edges.into_iter().filter_map(|(from, to)| Some((*new.get(&from)?, *new.get(&to)?))).collect();
        let copy = objects.handle();
        self.graphs.insert(copy, Graph { nodes, edges });
        Ok(copy)
    }

    /// Nodes of a graph, in an order that its edges allow; child graphs are in the places of their nodes.
    ///
    /// # Errors
    /// No such graph, or its edges go round in a circle.
    pub(super) fn in_order(&self, graph: Handle) -> Result<Vec<Work>, Error> {
        let Graph { nodes, edges } = self.graphs.get(&graph).ok_or(Error::INVALID_VALUE)?;
        let (mut left, mut done, mut work): (Vec<_>, Vec<Handle>, _) = (nodes.clone(), Vec::new(), Vec::new());
        while !left.is_empty() {
            let is_next = |(node, _): &(Handle, Work)| {
                edges.iter().filter(|(_, to)| to == node).all(|(from, _)| done.contains(from))
            };
            let next = left.iter().position(is_next).ok_or(Error::INVALID_VALUE)?;
            let (node, what) = left.remove(next);
            done.push(node);
            match what {
                Work::Child(graph) => work.extend(self.in_order(graph)?),
                other => work.push(other),
            }
        }
        Ok(work)
    }

    /// Gives addresses back that no graph has any more, and no launch has left in use.
    pub(super) fn forget(&self, objects: &mut Objects, addresses: &[u64]) {
        let allocates = |work: &Work, wanted: u64| matches!(work, Work::Allocate { address, .. } if *address == wanted);
        for address in addresses {
            let in_graphs = self.graphs.values().flat_map(|graph| &graph.nodes).map(|(_, work)| work);
            let mut all = in_graphs.chain(self.execs.values().flat_map(|exec| &exec.work));
            let in_use = self.memory.values().any(|memory| memory.live.contains_key(address));
            if !in_use && !all.any(|work| allocates(work, *address)) {
                objects.discard(*address);
            }
        }
    }

    /// Takes a graph away, with its child graphs.
    pub(super) fn destroy(&mut self, objects: &mut Objects, graph: Handle) -> Answer {
        let gone = self.graphs.remove(&graph).ok_or(Error::INVALID_VALUE)?;
        for (_, work) in &gone.nodes {
            if let Work::Child(child) = work {
                self.destroy(objects, *child)?;
            }
        }
        self.forget(objects, &addresses(gone.nodes.iter().map(|(_, work)| work)));
        Ok(())
    }
}

/// Addresses that such nodes allocate.
pub(super) fn addresses<'a>(work: impl Iterator<Item = &'a Work>) -> Vec<u64> {
    let address = |work: &Work| match work {
        Work::Allocate { address, .. } => Some(*address),
        Work::Nothing(_) | Work::Copy(_) | Work::Set(_) | Work::Host { .. } | Work::Child(_) | Work::Free { .. } => {
            None
        }
    };
    work.filter_map(address).collect()
}
