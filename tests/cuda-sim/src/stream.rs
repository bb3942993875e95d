//! Streams: virtual timelines. What is put into one takes effect at once; when it is done is modelled, and waited for.

use crate::abi::{self, Handle, HostFunction, In, Out, StreamCallback, api};
use crate::capture::Capture;
use crate::error::{Answer, Error};
use crate::host_functions::{self, Call, Pending};
use crate::objects::{Objects, objects};
use crate::time;
use omni_cuda_card::now;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

api! {
    fn cuStreamCreate(stream: Out<Handle>, flags: u32) = create;
    fn cuStreamCreateWithPriority(stream: Out<Handle>, flags: u32, priority: i32) = create_with_priority;
    fn cuStreamDestroy(stream: Handle) = destroy;
    fn cuStreamDestroy_v2(stream: Handle) = destroy;
    fn cuStreamSynchronize | cuStreamSynchronize_ptsz(stream: Handle) = synchronize;
    fn cuStreamQuery | cuStreamQuery_ptsz(stream: Handle) = query;
    fn cuStreamGetFlags | cuStreamGetFlags_ptsz(stream: Handle, flags: Out<u32>) = flags;
    fn cuStreamGetPriority | cuStreamGetPriority_ptsz(stream: Handle, priority: Out<i32>) = priority;
    fn cuStreamGetId | cuStreamGetId_ptsz(stream: Handle, id: Out<u64>) = id;
    fn cuStreamGetCtx | cuStreamGetCtx_ptsz(stream: Handle, context: Out<Handle>) = context;
    fn cuStreamGetCtx_v2 | cuStreamGetCtx_v2_ptsz(stream: Handle, context: Out<Handle>, green: Out<Handle>)
        = context_or_green;
    fn cuStreamGetDevice | cuStreamGetDevice_ptsz(stream: Handle, device: Out<i32>) = device;
    fn cuStreamCopyAttributes | cuStreamCopyAttributes_ptsz(to: Handle, from: Handle) = copy_attributes;
    fn cuStreamGetAttribute | cuStreamGetAttribute_ptsz(stream: Handle, attribute: u32, value: Out<AttributeValue>)
        = get_attribute;
    fn cuStreamSetAttribute | cuStreamSetAttribute_ptsz(stream: Handle, attribute: u32, value: In<AttributeValue>)
        = set_attribute;
    fn cuStreamAttachMemAsync | cuStreamAttachMemAsync_ptsz(stream: Handle, at: u64, length: usize, flags: u32) = attach;
    fn cuStreamAddCallback | cuStreamAddCallback_ptsz(stream: Handle, call: StreamCallback, data: u64, flags: u32)
        = add_callback;
    fn cuLaunchHostFunc | cuLaunchHostFunc_ptsz(stream: Handle, function: HostFunction, data: u64) = host_function;
    fn cuLaunchHostFunc_v2 | cuLaunchHostFunc_v2_ptsz(stream: Handle, function: HostFunction, data: u64, mode: u32)
        = host_function_with_mode;
}

/// `CU_STREAM_LEGACY`, `CU_STREAM_PER_THREAD`: streams without a handle of their own.
const LEGACY: Handle = 1;
const PER_THREAD: Handle = 2;
/// `CU_STREAM_NON_BLOCKING`.
const NON_BLOCKING: u32 = 1;
/// Priorities: a smaller number is a higher one.
pub(crate) const PRIORITIES: (i32, i32) = (0, -5);

/// `CUstreamAttrID`: what streams have of the attributes of launches.
const POLICY_WINDOW: u32 = 1;
const SYNC_POLICY: u32 = 3;
const PRIORITY: u32 = 8;
const SYNC_DOMAIN_MAP: u32 = 9;
const SYNC_DOMAIN: u32 = 10;
const NVLINK_CENTRIC: u32 = 16;
/// `CUstreamAttrValue`.
type AttributeValue = [u64; 8];

/// A stream.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) context: Handle,
    pub(crate) kind: Kind,
    pub(crate) flags: u32,
    pub(crate) priority: i32,
    /// End of all its work, by the monotonic clock, in nanoseconds.
    pub(crate) end: u64,
    /// Functions of the host that are in it, or that it waits for.
    pub(crate) functions: Pending,
    /// Capture, during which it records a graph and does nothing.
    pub(crate) capture: Option<Capture>,
    /// Attributes set by the program, by `CUstreamAttrID`: nothing here depends on them.
    attributes: BTreeMap<u32, AttributeValue>,
}

/// Role of a stream in its context.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Stream 0: it waits for the blocking ones, and they for it.
    Legacy,
    /// A thread's own, or one that the program made.
    Blocking,
    /// Made to run beside stream 0.
    NonBlocking,
}

static THREADS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static THREAD: u64 = THREADS.fetch_add(1, Ordering::Relaxed);
}

/// A number of the calling thread.
pub(crate) fn thread() -> u64 {
    THREAD.with(|thread| *thread)
}

/// The call means stream 0 of the context, which some calls do not take.
pub(crate) fn is_legacy(stream: Handle) -> bool {
    stream == LEGACY || (stream == 0 && !abi::per_thread())
}

impl Stream {
    pub(crate) fn new(context: Handle, kind: Kind, flags: u32, priority: i32) -> Self {
        Self {
            context,
            kind,
            flags,
            priority,
            end: 0,
            functions: Pending::default(),
            capture: None,
            attributes: BTreeMap::new(),
        }
    }
}

impl Objects {
    /// The stream that a caller's handle means in the current context.
    ///
    /// # Errors
    /// No such stream; no current context, for those without a handle of their own.
    pub(crate) fn stream(&mut self, handle: Handle) -> Result<Handle, Error> {
        if handle > PER_THREAD {
            let context = self.streams.get(&handle).ok_or(Error::INVALID_HANDLE)?.context;
            self.context_or_current(context)?;
            return Ok(handle);
        }
        let (current, _) = self.current()?;
        if is_legacy(handle) {
            return Ok(self.context(current)?.legacy);
        }
        let thread = thread();
        if let Some(stream) = self.context(current)?.per_thread.get(&thread) {
            return Ok(*stream);
        }
        let made = self.handle();
        self.streams.insert(made, Stream::new(current, Kind::Blocking, 0, 0));
        self.context(current)?.per_thread.insert(thread, made);
        Ok(made)
    }

    /// Start of work that is put into the stream now. It waits for the stream's earlier work, and for stream 0, or
    /// stream 0 for the others.
    ///
    /// # Errors
    /// No such stream.
    pub(crate) fn begin(&mut self, stream: Handle) -> Result<u64, Error> {
        let (context, kind) =
            self.streams.get(&stream).map(|stream| (stream.context, stream.kind)).ok_or(Error::INVALID_HANDLE)?;
        let awaited = match kind {
            Kind::Legacy => Kind::Blocking,
            Kind::Blocking => Kind::Legacy,
            Kind::NonBlocking => Kind::NonBlocking,
        };
        let mut begins = (now(), Pending::default());
        for (handle, other) in &self.streams {
            let before = kind != Kind::NonBlocking && other.kind == awaited && other.context == context;
            if before || *handle == stream {
                begins.0 = begins.0.max(other.end);
                begins.1.join(&other.functions);
            }
        }
        if let Some(awaited) = self.contexts.get(&context).and_then(|context| context.awaited.as_ref()) {
            begins.0 = begins.0.max(awaited.end);
            begins.1.join(&awaited.functions);
        }
        let stream = self.streams.get_mut(&stream).ok_or(Error::INVALID_HANDLE)?;
        (stream.end, stream.functions) = begins;
        Ok(stream.end)
    }

    /// The device of a stream's context.
    ///
    /// # Errors
    /// No such stream.
    pub(crate) fn device_of_stream(&mut self, stream: Handle) -> Result<usize, Error> {
        let context = self.streams.get(&stream).ok_or(Error::INVALID_HANDLE)?.context;
        Ok(self.context(context)?.device)
    }

    /// The stream is busy until then.
    pub(crate) fn busy_until(&mut self, stream: Handle, end: u64) {
        if let Some(stream) = self.streams.get_mut(&stream) {
            stream.end = stream.end.max(end);
        }
    }
}

/// Puts work into a stream: `work` gets its start and returns its end. A captured stream does nothing now.
///
/// # Errors
/// No such stream, or what the work answers.
pub(crate) fn submit(handle: Handle, work: impl FnOnce(&mut Objects, usize, u64) -> Result<u64, Error>) -> Answer {
    let mut objects = objects()?;
    let stream = objects.stream(handle)?;
    if objects.records(stream)? {
        return Ok(());
    }
    let (device, begin) = (objects.device_of_stream(stream)?, objects.begin(stream)?);
    let end = work(&mut objects, device, begin)?;
    objects.busy_until(stream, end);
    Ok(())
}

/// Puts work into the stream 0 of the call, and waits for it.
///
/// # Errors
/// As [`submit`].
pub(crate) fn run(work: impl FnOnce(&mut Objects, usize, u64) -> Result<u64, Error>) -> Answer {
    submit(0, work)?;
    synchronize(0)
}

fn create(stream: Out<Handle>, flags: u32) -> Answer {
    create_with_priority(stream, flags, 0)
}

fn create_with_priority(stream: Out<Handle>, flags: u32, priority: i32) -> Answer {
    let mut objects = objects()?;
    let (context, _) = objects.current()?;
    stream.check()?;
    if flags & !NON_BLOCKING != 0 {
        return Err(Error::INVALID_VALUE);
    }
    let (made, kind) = (objects.handle(), if flags == NON_BLOCKING { Kind::NonBlocking } else { Kind::Blocking });
    let priority = priority.clamp(PRIORITIES.1, PRIORITIES.0);
    objects.streams.insert(made, Stream::new(context, kind, flags, priority));
    stream.put(made)
}

/// Destroys a stream; its work is done all the same.
fn destroy(stream: Handle) -> Answer {
    let mut objects = objects()?;
    if stream <= PER_THREAD {
        return Err(Error::INVALID_HANDLE);
    }
    let stream = objects.stream(stream)?;
    let gone = objects.streams.remove(&stream).ok_or(Error::INVALID_HANDLE)?;
    let legacy = objects.contexts.get(&gone.context).map(|context| context.legacy);
    if let Some(legacy) = legacy.and_then(|legacy| objects.streams.get_mut(&legacy)) {
        // Synchronising the context still waits for it.
        legacy.end = legacy.end.max(gone.end);
        legacy.functions.join(&gone.functions);
    }
    Ok(())
}

fn synchronize(stream: Handle) -> Answer {
    let (end, functions) = {
        let mut objects = objects()?;
        let stream = objects.stream(stream)?;
        objects.refuse_while_recorded(stream)?;
        objects.begin(stream)?;
        objects
            .streams
            .get(&stream)
            .map(|stream| (stream.end, stream.functions.clone()))
            .ok_or(Error::INVALID_HANDLE)?
    };
    host_functions::wait(&functions);
    time::wait(end);
    Ok(())
}

fn query(stream: Handle) -> Answer {
    let mut objects = objects()?;
    let stream = objects.stream(stream)?;
    objects.refuse_while_recorded(stream)?;
    let stream = objects.streams.get(&stream).ok_or(Error::INVALID_HANDLE)?;
    if stream.end <= now() && host_functions::are_done(&stream.functions) { Ok(()) } else { Err(Error::NOT_READY) }
}

fn with<T: Copy>(stream: Handle, to: Out<T>, what: impl FnOnce(Handle, &Stream) -> T) -> Answer {
    let mut objects = objects()?;
    let handle = objects.stream(stream)?;
    to.put(what(handle, objects.streams.get(&handle).ok_or(Error::INVALID_HANDLE)?))
}

fn flags(stream: Handle, flags: Out<u32>) -> Answer {
    with(stream, flags, |_, stream| stream.flags)
}

fn priority(stream: Handle, priority: Out<i32>) -> Answer {
    with(stream, priority, |_, stream| stream.priority)
}

fn id(stream: Handle, id: Out<u64>) -> Answer {
    with(stream, id, |handle, _| handle)
}

fn context(stream: Handle, context: Out<Handle>) -> Answer {
    with(stream, context, |_, stream| stream.context)
}

/// Green contexts are not simulated.
fn context_or_green(stream: Handle, to: Out<Handle>, green: Out<Handle>) -> Answer {
    green.put_if(0);
    context(stream, to)
}

fn device(stream: Handle, device: Out<i32>) -> Answer {
    device.check()?;
    let mut objects = objects()?;
    let stream = objects.stream(stream)?;
    device.put(i32::try_from(objects.device_of_stream(stream)?).unwrap_or(0))
}

fn copy_attributes(to: Handle, from: Handle) -> Answer {
    let mut objects = objects()?;
    let (to, from) = (objects.stream(to)?, objects.stream(from)?);
    let from = objects.streams.get(&from).ok_or(Error::INVALID_HANDLE)?;
    let (context, attributes) = (from.context, from.attributes.clone());
    let to = objects.streams.get_mut(&to).ok_or(Error::INVALID_HANDLE)?;
    if to.context != context {
        return Err(Error::INVALID_VALUE);
    }
    to.attributes = attributes;
    Ok(())
}

fn get_attribute(stream: Handle, attribute: u32, value: Out<AttributeValue>) -> Answer {
    value.check()?;
    let mut objects = objects()?;
    let stream = objects.stream(stream)?;
    let stream = objects.streams.get(&stream).ok_or(Error::INVALID_HANDLE)?;
    let set = stream.attributes.get(&attribute).copied();
    value.put(match attribute {
        POLICY_WINDOW | SYNC_DOMAIN | NVLINK_CENTRIC => set.unwrap_or_default(),
        SYNC_POLICY => set.unwrap_or([1, 0, 0, 0, 0, 0, 0, 0]),
        PRIORITY => [u64::from(stream.priority.cast_unsigned()), 0, 0, 0, 0, 0, 0, 0],
        // Two bytes: the local domain is 0, the remote one 1.
        SYNC_DOMAIN_MAP => set.unwrap_or([1 << 8, 0, 0, 0, 0, 0, 0, 0]),
        _ => return Err(Error::INVALID_VALUE),
    })
}

fn set_attribute(stream: Handle, attribute: u32, value: In<AttributeValue>) -> Answer {
    let mut objects = objects()?;
    let (stream, value) = (objects.stream(stream)?, value.get()?);
    let stream = objects.streams.get_mut(&stream).ok_or(Error::INVALID_HANDLE)?;
    match attribute {
        POLICY_WINDOW | SYNC_POLICY | SYNC_DOMAIN_MAP | SYNC_DOMAIN | NVLINK_CENTRIC => {
            stream.attributes.insert(attribute, value);
        }
        PRIORITY => {
            let wanted = value[0].to_le_bytes();
            let wanted = i32::from_le_bytes([wanted[0], wanted[1], wanted[2], wanted[3]]);
            stream.priority = wanted.clamp(PRIORITIES.1, PRIORITIES.0);
        }
        _ => return Err(Error::INVALID_VALUE),
    }
    Ok(())
}

/// Attaches managed memory, which changes nothing: every stream may use it.
fn attach(stream: Handle, at: u64, _length: usize, flags: u32) -> Answer {
    let mut objects = objects()?;
    objects.stream(stream)?;
    let is_managed = objects.allocation(at)?.managed().is_some();
    if is_managed && matches!(flags, 1 | 2 | 4) { Ok(()) } else { Err(Error::INVALID_VALUE) }
}

fn put_function(stream: Handle, call: Call) -> Answer {
    let mut objects = objects()?;
    let handle = objects.stream(stream)?;
    if objects.records(handle)? {
        return Ok(());
    }
    let due = objects.begin(handle)?;
    let stream = objects.streams.get_mut(&handle).ok_or(Error::INVALID_HANDLE)?;
    host_functions::put(handle, &mut stream.functions, due, call);
    Ok(())
}

fn host_function(stream: Handle, function: HostFunction, data: u64) -> Answer {
    if function.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    put_function(stream, Call::Function { function, data })
}

/// Ignores the way in which the device waits for it.
fn host_function_with_mode(stream: Handle, function: HostFunction, data: u64, mode: u32) -> Answer {
    if mode > 1 { Err(Error::INVALID_VALUE) } else { host_function(stream, function, data) }
}

fn add_callback(stream: Handle, callback: StreamCallback, data: u64, flags: u32) -> Answer {
    if callback.is_null() || flags != 0 {
        return Err(Error::INVALID_VALUE);
    }
    put_function(stream, Call::Callback { callback, stream, data })
}
