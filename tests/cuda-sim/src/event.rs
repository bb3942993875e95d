//! Events: marks in streams, and the time between them.

use crate::abi::{Handle, Out, api};
use crate::error::{Answer, Error};
use crate::host_functions::{self, Pending};
use crate::objects::{Objects, objects};
use crate::sharable::Sharable;
use crate::time;
use omni_cuda_card::now;
use std::sync::Arc;

api! {
    fn cuEventCreate(event: Out<Handle>, flags: u32) = create;
    fn cuEventDestroy(event: Handle) = destroy;
    fn cuEventDestroy_v2(event: Handle) = destroy;
    fn cuEventRecord | cuEventRecord_ptsz(event: Handle, stream: Handle) = record;
    fn cuEventRecordWithFlags | cuEventRecordWithFlags_ptsz(event: Handle, stream: Handle, flags: u32)
        = record_with_flags;
    fn cuCtxRecordEvent(context: Handle, event: Handle) = record_context;
    fn cuCtxWaitEvent(context: Handle, event: Handle) = wait_in_context;
    fn cuEventQuery(event: Handle) = query;
    fn cuEventSynchronize(event: Handle) = synchronize;
    fn cuEventElapsedTime(milliseconds: Out<f32>, start: Handle, end: Handle) = elapsed;
    fn cuEventElapsedTime_v2(milliseconds: Out<f32>, start: Handle, end: Handle) = elapsed;
    fn cuStreamWaitEvent | cuStreamWaitEvent_ptsz(stream: Handle, event: Handle, flags: u32) = wait;
}

/// Blocking, without timing, between processes (that one with "without timing" only).
const FLAGS: u32 = 7;
const DISABLE_TIMING: u32 = 2;
pub(crate) const INTERPROCESS: u32 = 4;
/// Flags of an event that came from another process.
pub(crate) const FLAGS_OF_SHARED: u32 = INTERPROCESS | DISABLE_TIMING;

/// An event.
#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) context: Handle,
    pub(crate) flags: u32,
    pub(crate) recorded: Option<Recorded>,
    /// Memory through which processes share its end.
    pub(crate) shared: Option<Arc<Sharable>>,
}

impl Event {
    fn record(&mut self, recorded: Recorded) {
        if let Some(shared) = &self.shared {
            shared.store(recorded.end);
        }
        self.recorded = Some(recorded);
    }

    /// The last record, whichever process made it.
    fn last(&self) -> Option<Recorded> {
        let Some(shared) = &self.shared else { return self.recorded.clone() };
        match (shared.load(), &self.recorded) {
            (0, _) => None,
            (end, Some(own)) if own.end == end => Some(own.clone()),
            (end, _) => Some(Recorded { end, functions: Pending::default() }),
        }
    }
}

/// Work before an event in its stream.
#[derive(Debug, Clone)]
pub(crate) struct Recorded {
    /// End, in nanoseconds of the monotonic clock.
    pub(crate) end: u64,
    pub(crate) functions: Pending,
}

impl Recorded {
    fn is_done(&self) -> bool {
        self.end <= now() && host_functions::are_done(&self.functions)
    }
}

fn create(event: Out<Handle>, flags: u32) -> Answer {
    let mut objects = objects()?;
    let (context, _) = objects.current()?;
    event.check()?;
    if flags & !FLAGS != 0 || (flags & INTERPROCESS != 0 && flags & DISABLE_TIMING == 0) {
        return Err(Error::INVALID_VALUE);
    }
    let made = objects.handle();
    objects.events.insert(made, Event { context, flags, recorded: None, shared: None });
    event.put(made)
}

fn destroy(event: Handle) -> Answer {
    objects()?.events.remove(&event).map(drop).ok_or(Error::INVALID_HANDLE)
}

fn record(event: Handle, stream: Handle) -> Answer {
    record_with_flags(event, stream, 0)
}

fn record_with_flags(event: Handle, stream: Handle, flags: u32) -> Answer {
    let mut objects = objects()?;
    if flags > 1 {
        return Err(Error::INVALID_VALUE);
    }
    let of_event = objects.events.get(&event).ok_or(Error::INVALID_HANDLE)?.context;
    let stream = objects.stream(stream)?;
    if objects.records(stream)? {
        return Ok(());
    }
    let end = objects.begin(stream)?;
    let stream = objects.streams.get(&stream).ok_or(Error::INVALID_HANDLE)?;
    if stream.context != of_event {
        return Err(Error::INVALID_HANDLE);
    }
    let recorded = Recorded { end, functions: stream.functions.clone() };
    objects.event(event)?.record(recorded);
    Ok(())
}

impl Objects {
    pub(crate) fn event(&mut self, event: Handle) -> Result<&mut Event, Error> {
        self.events.get_mut(&event).ok_or(Error::INVALID_HANDLE)
    }
}

/// Records all work of a context's streams.
fn record_context(context: Handle, event: Handle) -> Answer {
    let mut objects = objects()?;
    let context = objects.context_or_current(context)?;
    if objects.event(event)?.context != context {
        return Err(Error::INVALID_HANDLE);
    }
    objects.refuse_captured_streams(context)?;
    let mut recorded = Recorded { end: now(), functions: Pending::default() };
    for stream in objects.streams.values().filter(|stream| stream.context == context) {
        recorded.end = recorded.end.max(stream.end);
        recorded.functions.join(&stream.functions);
    }
    objects.event(event)?.record(recorded);
    Ok(())
}

/// Makes all later work of a context's streams wait.
fn wait_in_context(context: Handle, event: Handle) -> Answer {
    let mut objects = objects()?;
    let context = objects.context_or_current(context)?;
    objects.refuse_captured_streams(context)?;
    let Some(recorded) = objects.event(event)?.last() else { return Ok(()) };
    let awaited = &mut objects.context(context)?.awaited;
    match awaited {
        Some(awaited) => {
            awaited.end = awaited.end.max(recorded.end);
            awaited.functions.join(&recorded.functions);
        }
        None => *awaited = Some(recorded),
    }
    Ok(())
}

/// Queries an event; one that was never recorded is done.
fn query(event: Handle) -> Answer {
    let mut objects = objects()?;
    let is_done = objects.event(event)?.last().as_ref().is_none_or(Recorded::is_done);
    if is_done { Ok(()) } else { Err(Error::NOT_READY) }
}

fn synchronize(event: Handle) -> Answer {
    let recorded = objects()?.event(event)?.last();
    if let Some(recorded) = recorded {
        host_functions::wait(&recorded.functions);
        time::wait(recorded.end);
    }
    Ok(())
}

fn elapsed(milliseconds: Out<f32>, start: Handle, end: Handle) -> Answer {
    let mut objects = objects()?;
    milliseconds.check()?;
    let mut when = |event: Handle| -> Result<u64, Error> {
        let event = objects.event(event)?;
        let recorded = event.recorded.as_ref().filter(|_| event.flags & DISABLE_TIMING == 0);
        let recorded = recorded.ok_or(Error::INVALID_HANDLE)?;
        if recorded.is_done() { Ok(recorded.end) } else { Err(Error::NOT_READY) }
    };
    let (start, end) = (when(start)?, when(end)?);
    let seconds = |from: u64, to: u64| std::time::Duration::from_nanos(to - from).as_secs_f32();
    milliseconds.put(if end >= start { seconds(start, end) } else { -seconds(end, start) } * 1000.0)
}

fn wait(stream: Handle, event: Handle, flags: u32) -> Answer {
    let mut objects = objects()?;
    if flags > 1 {
        return Err(Error::INVALID_VALUE);
    }
    let recorded = objects.event(event)?.last();
    let stream = objects.stream(stream)?;
    if let Some(recorded) = recorded
        && !objects.records(stream)?
        && let Some(stream) = objects.streams.get_mut(&stream)
    {
        stream.end = stream.end.max(recorded.end);
        stream.functions.join(&recorded.functions);
    }
    Ok(())
}
