//! Objects of this process: contexts, streams, events, memory. One lock guards them all.
//!
//! Lock order: this one, then a card's. Nobody waits for modelled time, or calls functions of the program, under it.

use crate::abi::Handle;
use crate::capture::MemoryNode;
use crate::error::{Answer, Error};
use crate::event::Event;
use crate::machine;
use crate::memory::allocation::{Allocation, Allocations};
use crate::memory::pool::{Places, Pool};
use crate::stream::Stream;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::mem::ManuallyDrop;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

/// See the file's header.
#[derive(Debug, Default)]
pub(crate) struct Objects {
    pub(crate) contexts: HashMap<Handle, Context>,
    /// Contexts, destroyed ones too, by device: the primary ones.
    pub(crate) primary: BTreeMap<usize, Primary>,
    pub(crate) streams: HashMap<Handle, Stream>,
    pub(crate) events: HashMap<Handle, Event>,
    pub(crate) pools: HashMap<Handle, Pool>,
    pub(crate) places: Places,
    /// Memory operations of captured streams, by graph.
    pub(crate) captured: HashMap<Handle, Vec<MemoryNode>>,
    pub(crate) allocations: Allocations,
    /// Modules, libraries, functions, kernels: they have a name and a parent, and do nothing.
    pub(crate) code: HashMap<Handle, crate::module::Code>,
    pub(crate) linkers: BTreeSet<Handle>,
    last: u64,
}

/// A context.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) device: usize,
    pub(crate) flags: u32,
    /// Answer of `cuCtxGetApiVersion`: the version of the entry that made it.
    pub(crate) api_version: u32,
    pub(crate) is_primary: bool,
    /// Number of attaches (`cuCtxAttach`) without a detach.
    pub(crate) attached: u64,
    pub(crate) limits: BTreeMap<u32, usize>,
    pub(crate) cache: u32,
    pub(crate) shared: u32,
    /// Stream 0 of the context.
    pub(crate) legacy: Handle,
    /// Stream 0 of each thread.
    pub(crate) per_thread: HashMap<u64, Handle>,
    pub(crate) peers: BTreeSet<Handle>,
    /// Bytes on the card that it takes for itself.
    pub(crate) bytes: u64,
    /// Event that all its work waits for (`cuCtxWaitEvent`).
    pub(crate) awaited: Option<crate::event::Recorded>,
}

/// A device's primary context: it stays the same handle for the life of the process.
#[derive(Debug, Default)]
pub(crate) struct Primary {
    pub(crate) context: Handle,
    pub(crate) retained: u32,
    pub(crate) flags: u32,
}

static OBJECTS: LazyLock<Mutex<Objects>> = LazyLock::new(Mutex::default);

thread_local! {
    /// Stack of current contexts. Never dropped: programs call from handlers of `exit` and from destructors, when a
    /// thread's other variables are gone.
    static STACK: RefCell<ManuallyDrop<Vec<Handle>>> = const { RefCell::new(ManuallyDrop::new(Vec::new())) };
}

/// # Errors
/// `cuInit` was not called, or this is the child of a fork.
pub(crate) fn objects() -> Result<MutexGuard<'static, Objects>, Error> {
    machine::all()?;
    Ok(OBJECTS.lock().unwrap_or_else(PoisonError::into_inner))
}

/// The thread's stack of current contexts; the last is the current one.
pub(crate) fn with_stack<T>(work: impl FnOnce(&mut Vec<Handle>) -> T) -> T {
    STACK.with_borrow_mut(|stack| work(stack))
}

impl Objects {
    /// A number that was no handle before. Small ones mean something to the API.
    pub(crate) fn handle(&mut self) -> Handle {
        self.last += 1;
        0x5100_0000 + self.last * 16
    }

    /// The thread's current context and its device.
    ///
    /// # Errors
    /// When there is none, it was destroyed, or its card is lost.
    pub(crate) fn current(&self) -> Result<(Handle, usize), Error> {
        let context = with_stack(|stack| stack.last().copied()).filter(|context| *context != 0);
        let context = context.ok_or(Error::INVALID_CONTEXT)?;
        let device = self.contexts.get(&context).ok_or(Error::CONTEXT_IS_DESTROYED)?.device;
        alive(device)?;
        Ok((context, device))
    }

    /// # Errors
    /// No such context.
    pub(crate) fn context(&mut self, context: Handle) -> Result<&mut Context, Error> {
        self.contexts.get_mut(&context).ok_or(Error::INVALID_CONTEXT)
    }

    pub(crate) fn allocation(&mut self, address: u64) -> Result<&mut Allocation, Error> {
        self.allocations.at_mut(address).ok_or(Error::INVALID_VALUE)
    }
}

/// # Errors
/// Error of a lost card.
pub(crate) fn alive(device: usize) -> Answer {
    machine::all()?.get(device).and_then(|device| device.card.lost()).map_or(Ok(()), |code| Err(Error(code)))
}
