//! Functions of the program that a stream calls when it gets there: in order, on a thread of ours, without our locks.

use crate::abi::{Handle, HostFunction, StreamCallback};
use crate::time;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Condvar, LazyLock, Mutex, MutexGuard, PoisonError};
use std::thread;

/// What is called. The program's contexts are not current there, as documented.
#[derive(Debug)]
pub(crate) enum Call {
    /// `cuLaunchHostFunc`.
    Function { function: HostFunction, data: u64 },
    /// `cuStreamAddCallback`.
    Callback { callback: StreamCallback, stream: Handle, data: u64 },
}

/// For each stream, how many of its functions must be done.
#[derive(Debug, Clone, Default)]
pub(crate) struct Pending(BTreeMap<Handle, u64>);

impl Pending {
    pub(crate) fn join(&mut self, other: &Self) {
        for (stream, number) in &other.0 {
            let own = self.0.entry(*stream).or_default();
            *own = (*own).max(*number);
        }
    }
}

/// Functions that wait at a time; whoever puts more waits, too.
const BOUND: usize = 4096;

#[derive(Debug, Default)]
struct Queue {
    /// By the time at which it is due, then in order.
    waiting: BTreeMap<(u64, u64), (Handle, Call)>,
    put: u64,
    by_stream: HashMap<Handle, u64>,
    done: HashMap<Handle, u64>,
    has_thread: bool,
}

static QUEUE: LazyLock<Mutex<Queue>> = LazyLock::new(Mutex::default);
static CHANGED: Condvar = Condvar::new();

fn queue() -> MutexGuard<'static, Queue> {
    QUEUE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Puts a function into a stream's order. Its caller may hold our other lock: the thread never takes it.
pub(crate) fn put(stream: Handle, pending: &mut Pending, due: u64, call: Call) {
    let mut queue = queue();
    while queue.waiting.len() >= BOUND {
        queue = CHANGED.wait(queue).unwrap_or_else(PoisonError::into_inner);
    }
    queue.put += 1;
    let number = queue.by_stream.entry(stream).or_default();
    *number += 1;
    pending.0.insert(stream, *number);
    let order = queue.put;
    queue.waiting.insert((due, order), (stream, call));
    if !queue.has_thread {
        queue.has_thread = thread::Builder::new().name("cuda-sim-host".to_owned()).spawn(work).is_ok();
    }
    CHANGED.notify_all();
}

/// Until all of them are done.
pub(crate) fn wait(pending: &Pending) {
    let mut queue = queue();
    while !queue.has_done(pending) {
        queue = CHANGED.wait(queue).unwrap_or_else(PoisonError::into_inner);
    }
}

pub(crate) fn are_done(pending: &Pending) -> bool {
    queue().has_done(pending)
}

impl Queue {
    fn has_done(&self, pending: &Pending) -> bool {
        pending.0.iter().all(|(stream, number)| self.done.get(stream).is_some_and(|done| done >= number))
    }
}

fn work() {
    let mut guard = queue();
    loop {
        let Some(first) = guard.waiting.pop_first() else {
            guard = CHANGED.wait(guard).unwrap_or_else(PoisonError::into_inner);
            continue;
        };
        let ((due, _), (stream, call)) = first;
        drop(guard);
        time::wait(due);
        match call {
            Call::Function { function, data } => function.call(data),
            Call::Callback { callback, stream, data } => callback.call(stream, data),
        }
        guard = queue();
        *guard.done.entry(stream).or_default() += 1;
        CHANGED.notify_all();
    }
}
