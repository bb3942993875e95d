//! Capture of streams into graphs. What is put into a captured stream is not done; of what a graph could hold, memory
//! nodes are kept (`graph`).

use crate::abi::{Handle, Out, api};
use crate::backing::Region;
use crate::error::{Answer, Error};
use crate::memory::allocation::{Allocation, Kind};
use crate::objects::{Objects, objects};
use crate::stream::{self, thread};
use std::cell::Cell;

api! {
    fn cuStreamBeginCapture | cuStreamBeginCapture_ptsz(stream: Handle) = begin_global;
    fn cuStreamBeginCapture_v2 | cuStreamBeginCapture_v2_ptsz(stream: Handle, mode: u32) = begin;
    fn cuStreamEndCapture | cuStreamEndCapture_ptsz(stream: Handle, graph: Out<Handle>) = end;
    fn cuStreamIsCapturing | cuStreamIsCapturing_ptsz(stream: Handle, status: Out<u32>) = is_capturing;
    fn cuStreamGetCaptureInfo | cuStreamGetCaptureInfo_ptsz(stream: Handle, status: Out<u32>, id: Out<u64>) = info;
    fn cuStreamGetCaptureInfo_v2 | cuStreamGetCaptureInfo_v2_ptsz(
        stream: Handle, status: Out<u32>, id: Out<u64>, graph: Out<Handle>, nodes: Out<u64>, count: Out<usize>,
    ) = info_2;
    fn cuStreamGetCaptureInfo_v3 | cuStreamGetCaptureInfo_v3_ptsz(
        stream: Handle, status: Out<u32>, id: Out<u64>, graph: Out<Handle>, nodes: Out<u64>, edges: Out<u64>,
        count: Out<usize>,
    ) = info_3;
    fn cuThreadExchangeStreamCaptureMode(mode: Out<u32>) = exchange_mode;
}

/// `CUstreamCaptureMode`.
const GLOBAL: u32 = 0;
const THREAD_LOCAL: u32 = 1;
const RELAXED: u32 = 2;

/// A stream that is captured.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Capture {
    pub(crate) id: u64,
    pub(crate) mode: u32,
    pub(crate) thread: u64,
    pub(crate) graph: Handle,
    /// Something that cannot be captured happened.
    pub(crate) is_invalid: bool,
}

/// Memory operation of a captured stream, in order. The allocation has its address from now on, and its bytes of the
/// card when the graph runs.
#[derive(Debug, Clone, Copy)]
pub(crate) enum MemoryNode {
    /// `cuMemAllocAsync`.
    Allocate { device: usize, address: u64, bytes: u64 },
    /// `cuMemFreeAsync`.
    Free { address: u64 },
}

thread_local! {
    static MODE: Cell<u32> = const { Cell::new(GLOBAL) };
}

impl Objects {
    /// Work of this stream is recorded and not done.
    ///
    /// # Errors
    /// The capture was spoiled, or this is stream 0 and a stream that it would wait for is captured.
    pub(crate) fn records(&mut self, stream: Handle) -> Result<bool, Error> {
        let this = self.streams.get(&stream).ok_or(Error::INVALID_HANDLE)?;
        match this.capture {
            Some(capture) if capture.is_invalid => return Err(Error::STREAM_CAPTURE_INVALIDATED),
            Some(_) => return Ok(true),
            None => {}
        }
        let (kind, context) = (this.kind, this.context);
        let would_wait = |other: &&mut stream::Stream| {
            kind == stream::Kind::Legacy
                && other.kind == stream::Kind::Blocking
                && other.context == context
                && other.capture.is_some()
        };
        let mut is_implicit = false;
        for capture in self.streams.values_mut().filter(would_wait).filter_map(|other| other.capture.as_mut()) {
            (capture.is_invalid, is_implicit) = (true, true);
        }
        if is_implicit { Err(Error::STREAM_CAPTURE_IMPLICIT) } else { Ok(false) }
    }

    fn add_node(&mut self, stream: Handle, node: MemoryNode) -> Answer {
        let capture = self.streams.get(&stream).and_then(|stream| stream.capture).ok_or(Error::ILLEGAL_STATE)?;
        self.captured.entry(capture.graph).or_default().push(node);
        Ok(())
    }

    /// An allocation that the graph of a captured stream will make; answers where.
    ///
    /// # Errors
    /// The host has no such range of addresses left.
    pub(crate) fn record_allocation(&mut self, stream: Handle, device: usize, bytes: u64) -> Result<u64, Error> {
        let region = Region::new(bytes)?;
        let context = self.streams.get(&stream).ok_or(Error::INVALID_HANDLE)?.context;
        let (base, region, kind) = (region.base(), Some(region), Kind::Elsewhere);
        self.add_node(stream, MemoryNode::Allocate { device, address: base, bytes })?;
        self.allocations.add(Allocation { base, bytes, context, device, charged: 0, id: 0, region, kind });
        Ok(base)
    }

    /// The end of an allocation in the graph of a captured stream.
    ///
    /// # Errors
    /// When there is nothing at the address.
    pub(crate) fn record_free(&mut self, stream: Handle, address: u64) -> Answer {
        self.allocations.exact(address).ok_or(Error::INVALID_VALUE)?;
        self.add_node(stream, MemoryNode::Free { address })
    }

    /// Check of calls that wait: nothing is done in a captured stream, so there is nothing to wait for.
    ///
    /// # Errors
    /// The stream is captured; the capture is spoiled.
    pub(crate) fn refuse_while_recorded(&mut self, stream: Handle) -> Answer {
        if !self.records(stream)? {
            return Ok(());
        }
        if let Some(capture) = self.streams.get_mut(&stream).and_then(|stream| stream.capture.as_mut()) {
            capture.is_invalid = true;
        }
        Err(Error::STREAM_CAPTURE_UNSUPPORTED)
    }

    /// Check of calls about all work of a context: a stream of it is captured, and the capture is spoiled.
    ///
    /// # Errors
    /// When a stream of the context is captured.
    pub(crate) fn refuse_captured_streams(&mut self, context: Handle) -> Answer {
        let of_context = self.streams.values_mut().filter(|stream| stream.context == context);
        let mut answer = Ok(());
        for capture in of_context.filter_map(|stream| stream.capture.as_mut()) {
            capture.is_invalid = true;
            answer = Err(Error::STREAM_CAPTURE_UNSUPPORTED);
        }
        answer
    }

    /// Check of calls that may synchronise (allocating, freeing): a capture that is not relaxed forbids them, in all
    /// threads of the process or its own only; a thread may have exchanged its mode.
    ///
    /// # Errors
    /// Forbidden; the captures are spoiled.
    pub(crate) fn refuse_unsafe_while_captured(&mut self) -> Answer {
        let (mode, thread) = (MODE.get(), thread());
        let mut answer = Ok(());
        for capture in self.streams.values_mut().filter_map(|stream| stream.capture.as_mut()) {
            let own = capture.thread == thread && capture.mode != RELAXED;
            let forbidden = match mode {
                GLOBAL => own || capture.mode == GLOBAL,
                THREAD_LOCAL => own,
                _ => false,
            };
            if forbidden {
                capture.is_invalid = true;
                answer = Err(Error::STREAM_CAPTURE_UNSUPPORTED);
            }
        }
        answer
    }
}

fn begin_global(stream: Handle) -> Answer {
    begin(stream, GLOBAL)
}

fn begin(stream: Handle, mode: u32) -> Answer {
    let mut objects = objects()?;
    let stream = objects.stream(stream)?;
    if mode > RELAXED {
        return Err(Error::INVALID_VALUE);
    }
    let (id, graph) = (objects.handle(), objects.handle());
    let stream = objects.streams.get_mut(&stream).ok_or(Error::INVALID_HANDLE)?;
    if stream.kind == stream::Kind::Legacy {
        return Err(Error::STREAM_CAPTURE_UNSUPPORTED);
    }
    if stream.capture.is_some() {
        return Err(Error::ILLEGAL_STATE);
    }
    stream.capture = Some(Capture { id, mode, thread: thread(), graph, is_invalid: false });
    Ok(())
}

fn end(stream: Handle, graph: Out<Handle>) -> Answer {
    let mut objects = objects()?;
    graph.check()?;
    let stream = objects.stream(stream)?;
    let stream = objects.streams.get_mut(&stream).ok_or(Error::INVALID_HANDLE)?;
    let capture = stream.capture.ok_or(Error::ILLEGAL_STATE)?;
    if capture.mode != RELAXED && capture.thread != thread() {
        return Err(Error::STREAM_CAPTURE_WRONG_THREAD);
    }
    stream.capture = None;
    if capture.is_invalid {
        graph.put(0)?;
        return Err(Error::STREAM_CAPTURE_INVALIDATED);
    }
    crate::graph::captured(&mut objects, capture.graph);
    graph.put(capture.graph)
}

fn capture_of(stream: Handle) -> Result<Option<Capture>, Error> {
    let mut objects = objects()?;
    let stream = objects.stream(stream)?;
    Ok(objects.streams.get(&stream).ok_or(Error::INVALID_HANDLE)?.capture)
}

/// Number of a status: none, active, invalidated.
fn status_of(capture: Option<Capture>) -> u32 {
    capture.map_or(0, |capture| if capture.is_invalid { 2 } else { 1 })
}

fn is_capturing(stream: Handle, status: Out<u32>) -> Answer {
    status.check()?;
    status.put(status_of(capture_of(stream)?))
}

fn info(stream: Handle, status: Out<u32>, id: Out<u64>) -> Answer {
    let capture = capture_of(stream)?;
    status.put(status_of(capture))?;
    if let Some(capture) = capture {
        id.put_if(capture.id);
    }
    Ok(())
}

fn info_2(
    stream: Handle,
    status: Out<u32>,
    id: Out<u64>,
    graph: Out<Handle>,
    nodes: Out<u64>,
    count: Out<usize>,
) -> Answer {
    let capture = capture_of(stream)?;
    if let Some(capture) = capture {
        graph.put_if(capture.graph);
        nodes.put_if(0);
        count.put_if(0);
    }
    info(stream, status, id)
}

fn info_3(
    stream: Handle,
    status: Out<u32>,
    id: Out<u64>,
    graph: Out<Handle>,
    nodes: Out<u64>,
    edges: Out<u64>,
    count: Out<usize>,
) -> Answer {
    if capture_of(stream)?.is_some() {
        edges.put_if(0);
    }
    info_2(stream, status, id, graph, nodes, count)
}

fn exchange_mode(mode: Out<u32>) -> Answer {
    let wanted = mode.get()?;
    if wanted > RELAXED {
        return Err(Error::INVALID_VALUE);
    }
    mode.put(MODE.replace(wanted))
}
