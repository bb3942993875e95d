//! Primary contexts: one for each device, retained and released.

use crate::abi::{Handle, Out, api};
use crate::error::{Answer, Error};
use crate::machine;
use crate::objects::objects;

api! {
    fn cuDevicePrimaryCtxRetain(context: Out<Handle>, device: i32) = retain;
    fn cuDevicePrimaryCtxRelease(device: i32) = release;
    fn cuDevicePrimaryCtxRelease_v2(device: i32) = release;
    fn cuDevicePrimaryCtxReset(device: i32) = reset;
    fn cuDevicePrimaryCtxReset_v2(device: i32) = reset;
    fn cuDevicePrimaryCtxGetState(device: i32, flags: Out<u32>, active: Out<i32>) = state;
    fn cuDevicePrimaryCtxSetFlags(device: i32, flags: u32) = set_flags;
    fn cuDevicePrimaryCtxSetFlags_v2(device: i32, flags: u32) = set_flags;
}

const FLAGS: u32 = 0xff;

fn retain(context: Out<Handle>, device: i32) -> Answer {
    let mut objects = objects()?;
    let (device, _) = machine::device(device)?;
    context.check()?;
    let (flags, retained) = objects.primary.get(&device).map_or((0, 0), |primary| (primary.flags, primary.retained));
    if retained == 0 {
        let made = objects.make_context(device, flags, 3020)?;
        objects.context(made)?.is_primary = true;
        objects.primary.entry(device).or_default().context = made;
    }
    let primary = objects.primary.entry(device).or_default();
    primary.retained = primary.retained.saturating_add(1);
    context.put(primary.context)
}

fn release(device: i32) -> Answer {
    let mut objects = objects()?;
    let (device, _) = machine::device(device)?;
    let primary = objects.primary.get_mut(&device).filter(|primary| primary.retained > 0);
    let primary = primary.ok_or(Error::INVALID_CONTEXT)?;
    primary.retained -= 1;
    let (left, context) = (primary.retained, primary.context);
    if left == 0 { objects.end_context(context) } else { Ok(()) }
}

fn reset(device: i32) -> Answer {
    let mut objects = objects()?;
    let (device, _) = machine::device(device)?;
    let Some(primary) = objects.primary.get_mut(&device).filter(|primary| primary.retained > 0) else { return Ok(()) };
    primary.retained = 0;
    let context = primary.context;
    objects.end_context(context)
}

fn state(device: i32, flags: Out<u32>, active: Out<i32>) -> Answer {
    let objects = objects()?;
    let (device, _) = machine::device(device)?;
    let primary = objects.primary.get(&device);
    flags.check()?;
    active.put(i32::from(primary.is_some_and(|primary| primary.retained > 0)))?;
    flags.put(primary.map_or(0, |primary| primary.flags))
}

fn set_flags(device: i32, flags: u32) -> Answer {
    let mut objects = objects()?;
    let (device, _) = machine::device(device)?;
    if flags & !FLAGS != 0 {
        return Err(Error::INVALID_VALUE);
    }
    let primary = objects.primary.entry(device).or_default();
    primary.flags = flags;
    let (context, retained) = (primary.context, primary.retained);
    if retained > 0 {
        objects.context(context)?.flags = flags;
    }
    Ok(())
}
