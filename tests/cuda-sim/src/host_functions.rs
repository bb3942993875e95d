//! Work of a stream at its time, and not at once: functions of the program that it calls, values that it waits for and
//! writes. In order, on a thread of this driver, without its locks.

use crate::abi::{Handle, HostFunction, StreamCallback};
use crate::backing;
use crate::time;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// Function to call. The program's contexts are not current there, as documented.
#[derive(Debug)]
pub(crate) enum Call {
    /// `cuLaunchHostFunc`.
    Function { function: HostFunction, data: u64 },
    /// `cuStreamAddCallback`.
    Callback { callback: StreamCallback, stream: Handle, data: u64 },
    /// `cuStreamWriteValue`.
    Write { at: u64, value: u64, is_wide: bool },
}

/// A value in memory that a stream waits for (`cuStreamWaitValue`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Awaited {
    pub(crate) at: u64,
    pub(crate) value: u64,
    /// 64 bits, not 32.
    pub(crate) is_wide: bool,
    pub(crate) how: Until,
}

/// Condition on a value in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Until {
    /// The value has reached the wanted one, modulo wrap-around.
    Reached,
    Equal,
    /// The two have a bit in common.
    And,
    /// Neither has a certain bit.
    Nor,
}

impl Until {
    /// `CUstreamWaitValue_flags`.
    pub(crate) fn of(flags: u32) -> Option<Self> {
        [Self::Reached, Self::Equal, Self::And, Self::Nor].get(flags as usize).copied()
    }
}

impl Awaited {
    fn is_there(&self) -> bool {
        let there = backing::load(self.at, self.is_wide);
        let all = if self.is_wide { u64::MAX } else { u32::MAX.into() };
        match self.how {
            Until::Reached => there.wrapping_sub(self.value) & all <= all >> 1,
            Until::Equal => there == self.value,
            Until::And => there & self.value != 0,
            Until::Nor => !(there | self.value) & all != 0,
        }
    }
}

/// Pending work of a stream.
#[derive(Debug, Clone, Default)]
pub(crate) struct Pending {
    /// Number of functions that must be done, for each stream.
    functions: BTreeMap<Handle, u64>,
    values: Vec<Arc<Value>>,
}

/// A value that is waited for: once it was there, it counts as there.
#[derive(Debug)]
struct Value {
    awaited: Awaited,
    was_there: AtomicBool,
}

impl Value {
    fn was_there(&self) -> bool {
        let was_there = self.was_there.load(Ordering::Relaxed) || self.awaited.is_there();
        self.was_there.store(was_there, Ordering::Relaxed);
        was_there
    }
}

impl Pending {
    pub(crate) fn join(&mut self, other: &Self) {
        for (stream, number) in &other.functions {
            let own = self.functions.entry(*stream).or_default();
            *own = (*own).max(*number);
        }
        self.values.retain(|value| !value.was_there());
        for value in &other.values {
            if !value.was_there() && !self.values.iter().any(|known| Arc::ptr_eq(known, value)) {
                self.values.push(Arc::clone(value));
            }
        }
    }

    /// Makes all later work of the stream wait for this value.
    pub(crate) fn wait_for(&mut self, awaited: Awaited) {
        self.values.retain(|value| !value.was_there());
        self.values.push(Arc::new(Value { awaited, was_there: AtomicBool::new(false) }));
    }

    fn has_values(&self) -> bool {
        self.values.iter().all(|value| value.was_there())
    }
}

/// Most functions that wait at a time; a call beyond waits, too.
const BOUND: usize = 4096;
/// Interval of polling for an awaited value.
const LOOK: Duration = Duration::from_micros(200);

#[derive(Debug, Default)]
struct Queue {
    /// Work by its due time, then in order.
    waiting: BTreeMap<(u64, u64), Waiting>,
    put: u64,
    by_stream: HashMap<Handle, u64>,
    done: HashMap<Handle, u64>,
    has_thread: bool,
}

#[derive(Debug)]
struct Waiting {
    stream: Handle,
    call: Call,
    /// Values that its stream waits for before.
    values: Vec<Arc<Value>>,
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
    pending.functions.insert(stream, *number);
    let order = queue.put;
    let values = pending.values.clone();
    queue.waiting.insert((due, order), Waiting { stream, call, values });
    if !queue.has_thread {
        queue.has_thread = thread::Builder::new().name("cuda-sim-host".to_owned()).spawn(work).is_ok();
    }
    CHANGED.notify_all();
}

/// Waits until all of them are done.
pub(crate) fn wait(pending: &Pending) {
    let mut queue = queue();
    while !queue.has_done(pending) {
        queue = CHANGED.wait(queue).unwrap_or_else(PoisonError::into_inner);
    }
    while !pending.has_values() {
        queue = CHANGED.wait_timeout(queue, LOOK).unwrap_or_else(PoisonError::into_inner).0;
    }
}

pub(crate) fn are_done(pending: &Pending) -> bool {
    pending.has_values() && queue().has_done(pending)
}

impl Queue {
    fn has_done(&self, pending: &Pending) -> bool {
        pending.functions.iter().all(|(stream, number)| self.done.get(stream).is_some_and(|done| done >= number))
    }
}

fn work() {
    let mut guard = queue();
    loop {
        // Later work of a stream waits for the same values and more.
        let first = guard.waiting.iter().find(|(_, one)| one.values.iter().all(|value| value.was_there()));
        let Some((due, order)) = first.map(|(key, _)| *key) else {
            guard = if guard.waiting.is_empty() {
                CHANGED.wait(guard).unwrap_or_else(PoisonError::into_inner)
            } else {
                CHANGED.wait_timeout(guard, LOOK).unwrap_or_else(PoisonError::into_inner).0
            };
            continue;
        };
        let Some(Waiting { stream, call, .. }) = guard.waiting.remove(&(due, order)) else { continue };
        drop(guard);
        time::wait(due);
        match call {
            Call::Function { function, data } => function.call(data),
            Call::Callback { callback, stream, data } => callback.call(stream, data),
            Call::Write { at, value, is_wide } => backing::store(at, value, is_wide),
        }
        guard = queue();
        *guard.done.entry(stream).or_default() += 1;
        CHANGED.notify_all();
    }
}
