//! Contexts: made, destroyed, current to a thread.

use crate::abi::{Handle, In, Out, api};
use crate::error::{Answer, Error};
use crate::host_functions::Pending;
use crate::memory::allocation::{self, Allocation};
use crate::memory::residency;
use crate::objects::{Context, Objects, alive, objects, with_stack};
use crate::stream::{Kind, Stream};
use crate::{host_functions, machine, time};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::c_void;

api! {
    fn cuCtxCreate(context: Out<Handle>, flags: u32, device: i32) = create_1;
    fn cuCtxCreate_v2(context: Out<Handle>, flags: u32, device: i32) = create_2;
    fn cuCtxCreate_v3(context: Out<Handle>, affinity: In<c_void>, count: i32, flags: u32, device: i32) = create_3;
    fn cuCtxCreate_v4(context: Out<Handle>, parameters: In<c_void>, flags: u32, device: i32) = create_4;
    fn cuCtxDestroy(context: Handle) = destroy;
    fn cuCtxDestroy_v2(context: Handle) = destroy;
    fn cuCtxAttach(context: Out<Handle>, flags: u32) = attach;
    fn cuCtxDetach(context: Handle) = detach;
    fn cuCtxPushCurrent(context: Handle) = push;
    fn cuCtxPushCurrent_v2(context: Handle) = push;
    fn cuCtxPopCurrent(context: Out<Handle>) = pop;
    fn cuCtxPopCurrent_v2(context: Out<Handle>) = pop;
    fn cuCtxSetCurrent(context: Handle) = set_current;
    fn cuCtxGetCurrent(context: Out<Handle>) = get_current;
    fn cuCtxGetDevice(device: Out<i32>) = device_of_current;
    fn cuCtxGetDevice_v2(device: Out<i32>, context: Handle) = device_of;
    fn cuCtxSynchronize() = synchronize_current;
    fn cuCtxSynchronize_v2(context: Handle) = synchronize;
    fn cuCtxEnablePeerAccess(context: Handle, flags: u32) = enable_peer;
    fn cuCtxDisablePeerAccess(context: Handle) = disable_peer;
}

/// Flags that a context can have.
const FLAGS: u32 = 0xff;
/// Contexts that a thread can have current over one another. The API knows no bound; we do.
const DEPTH: usize = 1 << 16;

impl Objects {
    /// Creates a context on a device, current in no thread.
    ///
    /// # Errors
    /// No room on the card, or the card is lost.
    pub(crate) fn make_context(&mut self, device: usize, flags: u32, api_version: u32) -> Result<Handle, Error> {
        alive(device)?;
        let of = machine::all()?.get(device).ok_or(Error::INVALID_DEVICE)?;
        let bytes = of.settings.context_bytes;
        // Also with nothing to take: from now on the process uses the card.
        residency::take(&mut self.allocations, device, bytes)?;
        let (context, legacy) = (self.handle(), self.handle());
        let (limits, per_thread, peers) = (BTreeMap::new(), HashMap::new(), BTreeSet::new());
        let (is_primary, attached, cache, shared) = (false, 0, 0, 0);
        let new = Context {
            device,
            flags,
            api_version,
            is_primary,
            attached,
            limits,
            cache,
            shared,
            legacy,
            per_thread,
            peers,
            bytes,
            awaited: None,
        };
        self.contexts.insert(context, new);
        self.streams.insert(legacy, Stream::new(context, Kind::Legacy, 0, 0));
        Ok(context)
    }

    /// Takes a context away with all that was made in it. Memory of pools is not made in a context.
    ///
    /// # Errors
    /// No such context.
    pub(crate) fn end_context(&mut self, context: Handle) -> Answer {
        let gone = self.contexts.remove(&context).ok_or(Error::INVALID_CONTEXT)?;
        let is_of = |allocation: &&Allocation| {
            allocation.context == context && !matches!(allocation.kind, allocation::Kind::Pooled { .. })
        };
        let all = self.allocations.iter().filter(is_of);
        let bases: Vec<u64> = all.map(|allocation| allocation.base).collect();
        for base in bases {
            self.discard(base);
        }
        self.streams.retain(|_, stream| stream.context != context);
        self.events.retain(|_, event| event.context != context);
        self.forget_code_of(context);
        crate::arrays::end_context(context);
        residency::release(gone.device, gone.bytes);
        Ok(())
    }

    /// The current context, or the one that is named.
    ///
    /// # Errors
    /// When there is none.
    pub(crate) fn context_or_current(&self, context: Handle) -> Result<Handle, Error> {
        if context == 0 {
            return Ok(self.current()?.0);
        }
        let known = self.contexts.get(&context).ok_or(Error::INVALID_CONTEXT)?;
        alive(known.device)?;
        Ok(context)
    }
}

fn create(context: Out<Handle>, flags: u32, device: i32, api_version: u32) -> Answer {
    let mut objects = objects()?;
    context.check()?;
    if flags & !FLAGS != 0 {
        return Err(Error::INVALID_VALUE);
    }
    let (device, _) = machine::device(device)?;
    let made = objects.make_context(device, flags, api_version)?;
    with_stack(|stack| stack.push(made));
    context.put(made)
}

fn create_1(context: Out<Handle>, flags: u32, device: i32) -> Answer {
    create(context, flags, device, 3010)
}

fn create_2(context: Out<Handle>, flags: u32, device: i32) -> Answer {
    create(context, flags, device, 3020)
}

/// Affinities are for MPS, which is not simulated.
fn create_3(context: Out<Handle>, _affinity: In<c_void>, count: i32, flags: u32, device: i32) -> Answer {
    if count != 0 {
        return Err(Error::NOT_SUPPORTED);
    }
    create(context, flags, device, 3020)
}

/// The parameters are for MPS and graphics, which are not simulated.
fn create_4(context: Out<Handle>, _parameters: In<c_void>, flags: u32, device: i32) -> Answer {
    create(context, flags, device, 3020)
}

fn destroy(context: Handle) -> Answer {
    let mut objects = objects()?;
    if objects.context(context)?.is_primary {
        return Err(Error::INVALID_CONTEXT);
    }
    objects.end_context(context)?;
    with_stack(|stack| {
        if stack.last() == Some(&context) {
            stack.pop();
        }
    });
    Ok(())
}

fn attach(context: Out<Handle>, flags: u32) -> Answer {
    if flags != 0 {
        return Err(Error::INVALID_VALUE);
    }
    let mut objects = objects()?;
    let (current, _) = objects.current()?;
    context.put(current)?;
    objects.context(current)?.attached += 1;
    Ok(())
}

/// The last one destroys. It has to be current here.
fn detach(context: Handle) -> Answer {
    {
        let mut objects = objects()?;
        let known = objects.context(context)?;
        if with_stack(|stack| stack.last() != Some(&context)) {
            return Err(Error::INVALID_CONTEXT);
        }
        if known.attached > 0 {
            known.attached -= 1;
            return Ok(());
        }
    }
    destroy(context)
}

fn push(context: Handle) -> Answer {
    objects()?.context(context)?;
    with_stack(|stack| {
        if stack.len() >= DEPTH {
            return Err(Error::INVALID_CONTEXT);
        }
        stack.push(context);
        Ok(())
    })
}

fn pop(context: Out<Handle>) -> Answer {
    let _objects = objects()?;
    let popped = with_stack(Vec::pop).ok_or(Error::INVALID_CONTEXT)?;
    context.put_if(popped);
    Ok(())
}

fn set_current(context: Handle) -> Answer {
    let mut objects = objects()?;
    if context != 0 {
        objects.context(context)?;
    }
    with_stack(|stack| {
        stack.pop();
        if context != 0 {
            stack.push(context);
        }
    });
    Ok(())
}

fn get_current(context: Out<Handle>) -> Answer {
    let _objects = objects()?;
    context.put(with_stack(|stack| stack.last().copied().unwrap_or(0)))
}

fn device_of_current(device: Out<i32>) -> Answer {
    device_of(device, 0)
}

fn device_of(device: Out<i32>, context: Handle) -> Answer {
    device.check()?;
    let mut objects = objects()?;
    let context = objects.context_or_current(context)?;
    device.put(i32::try_from(objects.context(context)?.device).unwrap_or(0))
}

fn synchronize_current() -> Answer {
    synchronize(0)
}

fn synchronize(context: Handle) -> Answer {
    let (mut end, mut functions) = (0, Pending::default());
    {
        let mut objects = objects()?;
        let context = objects.context_or_current(context)?;
        let streams = objects.streams.iter().filter(|(_, stream)| stream.context == context);
        let handles: Vec<Handle> = streams.map(|(handle, _)| *handle).collect();
        for handle in handles {
            objects.refuse_while_recorded(handle)?;
            if let Some(stream) = objects.streams.get(&handle) {
                end = end.max(stream.end);
                functions.join(&stream.functions);
            }
        }
    }
    host_functions::wait(&functions);
    time::wait(end);
    Ok(())
}

fn enable_peer(peer: Handle, flags: u32) -> Answer {
    let mut objects = objects()?;
    let (current, device) = objects.current()?;
    let of_peer = objects.context(peer)?.device;
    if flags != 0 {
        return Err(Error::INVALID_VALUE);
    }
    if of_peer == device {
        return Err(Error::PEER_ACCESS_UNSUPPORTED);
    }
    let is_new = objects.context(current)?.peers.insert(peer);
    if is_new { Ok(()) } else { Err(Error::PEER_ACCESS_ALREADY_ENABLED) }
}

fn disable_peer(peer: Handle) -> Answer {
    let mut objects = objects()?;
    let (current, _) = objects.current()?;
    objects.context(peer)?;
    let was = objects.context(current)?.peers.remove(&peer);
    if was { Ok(()) } else { Err(Error::PEER_ACCESS_NOT_ENABLED) }
}
